"""Measure packing, and the head and loss after it, against what they replace.

    python recipes/benchmark_pack.py
    python recipes/benchmark_pack.py --device cuda --dtype bfloat16 --num-prompts 2 --g-sizes 8 \
        --completion-lens 1024 --hidden-dim 4096 --vocab-sizes 32768 --mask-densities 0.1,0.3,1.0

Table 1: ``NativePackOp``, forward and forward + backward, over the least that any packing does, ``x[mask]`` (which
returns no ``cu_seqlens``). Table 2: head and cross-entropy, forward + backward, over dense logits; peak memory is that
of tensors, beyond the parameters and their gradients. All ways run in turn, and medians are compared. With a tiny
vocabulary the packed copies of the hidden states can be larger than the logits that they avoid: then project densely.
"""

import argparse
import csv
import itertools
import os
import statistics
import time
import warnings
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts bytes here, and need not say when it starts

import torch
import torch.nn.functional as F  # noqa: N812

from packdata.kernels import NativePackOp, linear_cross_entropy, token_logprobs


def numbers(kind):
    """Read a list such as ``0.1,0.3``."""
    return lambda text: [kind(part) for part in text.split(",")]


def measure(functions: dict, device: str, rounds: int) -> dict[str, float]:
    """Milliseconds of each function, the median over rounds in which each runs once, after one to warm up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = {name: [] for name in functions}
    for number, (name, function) in itertools.product(range(rounds + 1), functions.items()):
        wait()
        start = time.perf_counter()
        function()
        wait()
        if number:
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(function, device: str) -> int:
    """Most bytes of tensors held during a call beyond those before it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = (event for event in profile.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0)


def host_waits(function, device: str) -> int | str:
    """How often a call makes the host wait for the GPU."""
    if device != "cuda":
        return "-"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        function()
        torch.cuda.set_sync_debug_mode("default")
    return len(caught)


def with_backward(function, *leaves):
    """A step: the function, and gradients of its sum with respect to fresh leaves."""

    def step():
        for leaf in leaves:
            leaf.grad = None
        function().sum().backward()

    return step


def packing_rows(x: torch.Tensor, mask: torch.Tensor, options) -> list[dict]:
    """Table 1 for one mask."""
    pack = NativePackOp()
    ways = {"x[mask]": lambda: x[mask], "NativePackOp": lambda: pack(x, mask)[0]}
    assert torch.equal(*(way() for way in ways.values())), "the packed rows differ"
    forward = measure(ways, options.device, options.rounds)
    both = measure({name: with_backward(way, x) for name, way in ways.items()}, options.device, options.rounds)
    shape, density = "x".join(map(str, x.shape)), f"{mask.float().mean():.2f}"
    return [
        {
            "table": "pack", "shape": shape, "density": density, "way": name,
            "forward_ms": f"{forward[name]:.3f}", "forward_backward_ms": f"{both[name]:.3f}",
            "over_x[mask]": f"{both[name] / both['x[mask]']:.2f}",
            "host_waits": host_waits(way, options.device),
        }
        for name, way in ways.items()
    ]  # fmt: skip


def head_ways(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> dict:
    """Every way from hidden states to the summed cross-entropy, the dense one first."""
    there = targets != -100
    flat = targets.flatten()
    ways = {
        "dense": lambda: F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), flat, reduction="sum"),
        "pack, then dense": lambda: F.cross_entropy(
            F.linear(NativePackOp()(hidden, there)[0], weight).float(), flat[there.flatten()], reduction="sum"
        ),
        "linear_cross_entropy": lambda: linear_cross_entropy(hidden, weight, targets).total,
        "token_logprobs": lambda: -token_logprobs(hidden, weight, targets).sum(),
    }
    if hasattr(F, "linear_cross_entropy"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        ways["torch's linear_cross_entropy"] = lambda: F.linear_cross_entropy(
            hidden.flatten(0, 1), weight, flat, reduction="sum", options=chunks
        )
    try:
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction as Chunked

        ways["TRL's chunked logprobs"] = lambda: (
            -Chunked.apply(hidden[there], weight, None, targets[there], 1.0, 8192, None, 1.0, ())[0].sum()
        )
    except ImportError:
        pass
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        if hidden.is_cuda:
            liger = LigerFusedLinearCrossEntropyLoss(reduction="sum")
            ways["Liger's fused loss"] = lambda: liger(weight, hidden.flatten(0, 1), flat)
    except ImportError:
        pass
    return ways


def head_rows(hidden: torch.Tensor, mask: torch.Tensor, vocabulary: int, options) -> list[dict]:
    """Table 2 for one mask and vocabulary."""
    weight = (torch.randn(vocabulary, hidden.shape[-1]) / hidden.shape[-1] ** 0.5).to(hidden).requires_grad_()
    targets = torch.randint(vocabulary, mask.shape, device=mask.device).masked_fill(~mask, -100)
    ways = head_ways(hidden, weight, targets)
    expected = ways["dense"]().item()
    for name, way in ways.items():
        if "torch's" not in name or hidden.dtype == torch.float32:  # in low precision it adds up in low precision
            assert abs(way().item() - expected) <= 0.01 * abs(expected) + 1e-3, f"{name} differs from the dense loss"
    steps = {name: with_backward(way, hidden, weight) for name, way in ways.items()}
    milliseconds = measure(steps, options.device, options.rounds)
    beyond = {}
    for name, step in steps.items():
        weight.grad = hidden.grad = None
        beyond[name] = (peak_bytes(step, options.device) - weight.nbytes) / 2**20
    return [
        {
            "table": "head", "vocabulary": vocabulary, "density": f"{mask.float().mean():.2f}", "way": name,
            "ms": f"{milliseconds[name]:.1f}", "time_over_dense": f"{milliseconds[name] / milliseconds['dense']:.3f}",
            "peak_MiB": f"{beyond[name]:.1f}", "memory_over_dense": f"{beyond[name] / beyond['dense']:.3f}",
        }
        for name in ways
    ]  # fmt: skip


def show(rows: list[dict]) -> None:
    """Print rows of one table in columns."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def main() -> None:
    """Measure every combination, print two tables, write them as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--num-prompts", type=int, default=1)
    parser.add_argument("--g-sizes", type=numbers(int), default=[4], help="completions per prompt")
    parser.add_argument("--completion-lens", type=numbers(int), default=[384])
    parser.add_argument("--prompt-lens", type=numbers(int), default=[128])
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--vocab-sizes", type=numbers(int), default=[16384, 32768])
    parser.add_argument("--mask-densities", type=numbers(float), default=[0.1, 0.3, 1.0], help="share of active slots")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write both tables to this CSV file")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU that torch can see")
    if options.smoke:
        options.completion_lens, options.prompt_lens, options.hidden_dim = [24], [8], 32
        options.vocab_sizes, options.mask_densities, options.rounds = [64, 1024], [0.3, 1.0], 1
    torch.manual_seed(0)
    packing, head = [], []
    for group, completion, prompt, density in itertools.product(
        options.g_sizes, options.completion_lens, options.prompt_lens, options.mask_densities
    ):
        shape = options.num_prompts * group, prompt + completion
        x = torch.randn(*shape, options.hidden_dim, device=options.device, dtype=getattr(torch, options.dtype))
        slots = x[..., 0].numel()
        mask = (torch.randperm(slots, device=options.device) < round(density * slots)).reshape(shape)
        packing += packing_rows(x.requires_grad_(), mask, options)
        head += [row for size in options.vocab_sizes for row in head_rows(x, mask, size, options)]
    show(packing)
    show(head)
    print("A tiny vocabulary can make the packed copies larger than the logits that they avoid.")
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys([*packing[0], *head[0]])))
            writer.writeheader()
            writer.writerows(packing + head)


if __name__ == "__main__":
    main()

"""Drafter training: what building the mask costs, and one packed pass against one pass per document.

The pass per document is how drafters used to be trained. It is kept here as the reference: the packed loss must equal
it, or the benchmark fails.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from packdata.batches import PackedBatch, PackingCollator
from packdata.drafting import (
    BlockDrafter,
    DrafterGeometry,
    StaticBlocks,
    anchor_block_mask,
    anchor_dense_mask,
    draft_loss,
    draft_targets,
)
from packdata.losses import LossSum

WIDTH, CAPTURED, VOCABULARY, DECAY = 128, 2, 256, 4.0


def packed_loss(drafter: BlockDrafter, embedding: Tensor, stream: PackedBatch, blocks: StaticBlocks) -> LossSum:
    """Run the drafter once, on all blocks of all documents."""
    anchor_embeddings = embedding[stream.input_ids[0, blocks.anchors]]
    positions = (stream.position_ids, anchor_embeddings, blocks.targets.slot_positions)
    states = drafter(stream["hidden_states"], *positions, blocks.mask)
    return draft_loss(states, embedding, blocks.targets, stream.input_ids)


def per_document_loss(
    drafter: BlockDrafter, embedding: Tensor, stream: PackedBatch, anchors: Tensor, *, block_size: int, decay: float
) -> LossSum:
    """Cut each document out of the stream and run the drafter on it alone, with those of the anchors that lie in it."""
    losses = []
    for start, length in zip(stream.document_starts, stream.lengths, strict=True):
        here = anchors[(anchors >= start) & (anchors < start + length)] - start
        if len(here) == 0:
            continue
        keys = ("input_ids", "position_ids", "hidden_states")
        ids, positions, hidden = (stream[key][:, start : start + length] for key in keys)
        labels = stream.labels[:, start : start + length]
        remaining = torch.arange(length - 1, -1, -1, device=ids.device)[None]
        valid = torch.ones_like(here, dtype=torch.bool)
        targets = draft_targets(labels, remaining, positions, here, valid, block_size=block_size, decay=decay)
        mask = anchor_dense_mask(torch.zeros_like(ids), here, valid, block_size=block_size)
        states = drafter(hidden, positions, embedding[ids[0, here]], targets.slot_positions, mask)
        losses.append(draft_loss(states, embedding, targets, ids))
    return sum(losses, LossSum(embedding.new_zeros(()), 0))


def seconds_of(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time functions in turns, after one turn to warm up; the median of each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def random_stream(length: int, slots: int, seed: int = 0) -> PackedBatch:
    """Fill a stream with documents of one length, with random states."""
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(VOCABULARY, (length,), generator=generator) for _ in range(slots // length)]
    stream = PackingCollator(slots)(documents)
    stream["hidden_states"] = torch.randn(1, slots, CAPTURED * WIDTH, generator=generator)
    return stream


def measure_mask(tokens: int, num_anchors: int, block_size: int) -> None:
    """Print what building the block mask takes, in time and memory."""
    ids = torch.arange(tokens)[None] // 640
    anchors = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))[:num_anchors].sort().values
    arguments = (ids, anchors, torch.ones(num_anchors, dtype=torch.bool))

    def build() -> object:
        return anchor_block_mask(*arguments, block_size=block_size)

    seconds = seconds_of({"build": build}, 7)["build"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        build()
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages())
    slots = f"{num_anchors * block_size:,} queries, {tokens + num_anchors * block_size:,} keys"
    print(f"block mask of {slots}: {seconds * 1e3:.1f} ms, {allocated / 2**20:.1f} MB allocated in all")


def measure_step(length: int, slots: int, num_anchors: int, block_size: int, repeats: int) -> float:
    """Time loss and gradients, packed and per document, check that they agree, and return how much faster packed is."""
    torch.manual_seed(0)
    drafter = BlockDrafter(DrafterGeometry(hidden_size=WIDTH, captured=CAPTURED, head_dim=24, heads=6, kv_heads=2))
    embedding = torch.randn(VOCABULARY, WIDTH)
    stream = random_stream(length, slots)
    blocks = StaticBlocks(
        stream, num_anchors=num_anchors, block_size=block_size, mask="windows", window=length, decay=DECAY
    )
    anchors = blocks.anchors[blocks.anchor_valid]

    def backward(loss: LossSum) -> float:
        drafter.zero_grad()
        loss.total.backward()
        return loss.total.item() / float(loss.count)

    def packed() -> float:
        return backward(packed_loss(drafter, embedding, stream, blocks))

    def loop() -> float:
        return backward(per_document_loss(drafter, embedding, stream, anchors, block_size=block_size, decay=DECAY))

    difference = abs(packed() - loop())
    if difference > 1e-5:
        raise SystemExit(f"the packed loss differs from the loss document by document by {difference:.1e}, over 1e-5")
    seconds = seconds_of({"packed": packed, "loop": loop}, repeats)
    speed = {name: slots // length * length / taken for name, taken in seconds.items()}
    gain = seconds["loop"] / seconds["packed"]
    print(f"{length:>9}{slots // length:>11}{speed['packed']:>14,.0f}{speed['loop']:>14,.0f}{gain:>9.2f}")
    return gain


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--anchors", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--smoke", action="store_true", help="small sizes, few repeats")
    options = parser.parse_args()
    if options.smoke:
        torch.set_num_threads(1)  # threads that wait for each other are slow where other tests run beside this one
    measure_mask(49_152, 1024, 32)
    lengths, repeats = ((64, 256), 1) if options.smoke else ((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 5)
    print(f"\n{options.slots} slots, {options.anchors} blocks of {options.block_size}; forward and backward, tokens/s")
    print(f"{'length':>9}{'documents':>11}{'packed':>14}{'one by one':>14}{'ratio':>9}")
    for length in lengths:
        measure_step(length, options.slots, options.anchors, options.block_size, repeats)


if __name__ == "__main__":
    main()

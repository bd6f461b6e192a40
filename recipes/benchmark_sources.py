"""How fast documents are packed and loaded, against TRL's packing and the stack of datasets and transformers.

    python recipes/benchmark_sources.py            100,000 documents, 66M tokens; takes a few minutes
    python recipes/benchmark_sources.py --smoke    2,000 documents

All contenders take turns in one process, and each figure is the median of its rounds. Where pack_dataset's time goes:
planning, and one gather, which is one memcpy per document into pages that Arrow's pool keeps from window to window.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening

from packdata.batches import PackingCollator
from packdata.planning import plan_packs
from packdata.samplers import PackBatchSampler
from packdata.sources import Documents, pack_dataset

BUDGET = 8192


def make_documents(count: int, mean: int) -> datasets.Dataset:
    """Documents in memory with log-normal lengths, int32."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(mean) - 0.5, 1, count).astype(np.int64), 1, BUDGET)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = rng.integers(0, 32000, int(offsets[-1]), dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    return datasets.Dataset(pa.table({"input_ids": lists}))


def take_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Run each contender in each round; return the median seconds and the last results that are numbers."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            results[name] = run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def benchmark_packing(dataset: datasets.Dataset, rounds: int) -> None:
    """Pack in memory, against TRL over one map batch and over its default of 1,000 rows."""
    values = dataset.data.table.column("input_ids").chunk(0).values.to_numpy()
    copy = values.copy()
    lengths = Documents(dataset).lengths
    in_memory = {"keep_in_memory": True, "load_from_cache_file": False}
    one_batch = in_memory | {"batch_size": None}
    contenders: dict[str, Callable[[], Any]] = {
        "one copy of the tokens": lambda: np.copyto(copy, values),
        "plan alone": lambda: len(plan_packs(lengths, BUDGET)),
        "packdata": lambda: len(pack_dataset(dataset, BUDGET)),
    }
    if importlib.util.find_spec("trl"):
        from trl import pack_dataset as trl_pack

        contenders |= {
            "TRL, one batch": lambda: len(trl_pack(dataset, BUDGET, "bfd", map_kwargs=one_batch)),
            "TRL, 1,000 rows": lambda: len(trl_pack(dataset, BUDGET, "bfd", map_kwargs=in_memory)),
        }
    else:
        print("\nTRL is not installed (pip install trl): it is left out")
    seconds, packs = take_turns(contenders, rounds)
    print(f"\npack {len(dataset):,} documents, {len(values):,} tokens, in memory")
    for name, time_taken in seconds.items():
        print(
            f"  {name:<24}{time_taken:8.3f} s {time_taken / seconds['packdata']:7.1f} x packdata  packs {packs[name]}"
        )
    gather = seconds["packdata"] - seconds["plan alone"]
    print(f"  gather / copy: {gather / seconds['one copy of the tokens']:.1f} (at most 5)")
    print("  at least 10 x and 8 x, and never more packs than TRL")
    if packs["packdata"] > min(packs[name] for name in contenders if name.startswith(("packdata", "TRL"))):
        raise SystemExit("packdata made more packs than TRL")


def benchmark_writing(dataset: datasets.Dataset) -> None:
    """Pack to disk, and see how far memory rises above what the table takes."""
    with tempfile.TemporaryDirectory() as folder:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, start = memory("VmRSS"), time.perf_counter()
        pack_dataset(dataset, BUDGET, output_dir=Path(folder) / "packed")
        seconds, peak = time.perf_counter() - start, memory("VmHWM") - before
    print(f"\nwrite the packs: {seconds:.2f} s, peak memory above the table {peak / 2**20:.0f} MiB (at most 512)")


def memory(entry: str) -> int:
    """Read one of the process's memory figures, bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(entry))
    return int(line.split()[1]) * 1024


def benchmark_lengths(count: int, rounds: int) -> None:
    """Read the lengths of many documents off Arrow's offsets."""
    offsets = np.arange(0, 4 * count + 1, 4, dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(4 * count, np.int8)))
    table = pa.table({"input_ids": lists})
    seconds, _ = take_turns({"lengths": lambda: Documents(table).lengths}, rounds)
    print(f"\nlengths of {count:,} documents: {seconds['lengths']:.3f} s (at most 0.2)")


def benchmark_loading(dataset: datasets.Dataset, batches: int, rounds: int) -> None:
    """Load batches in one process, against the same sampler over datasets with transformers' collator."""
    documents = Documents(dataset)
    sampler = PackBatchSampler(documents.lengths, 49_152, seed=0, rank=0, world_size=1)
    drawn = list(sampler)[:: max(1, len(sampler) // batches)]  # planned once: the loading is what differs
    flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)  # what ours gives too

    def load(source: Any, collate: Callable[..., Any]) -> int:
        return sum(batch["input_ids"].numel() for batch in DataLoader(source, batch_sampler=drawn, collate_fn=collate))

    seconds, tokens = take_turns(
        {
            "packdata": lambda: load(documents, PackingCollator()),
            "datasets, flattening": lambda: load(dataset, DataCollatorWithFlattening()),
            "… and cu_seqlens": lambda: load(dataset, flattening),
        },
        rounds,
    )
    speeds = {name: tokens[name] / seconds[name] for name in seconds}
    print(f"\nload {len(drawn)} batches of an epoch, of up to 49,152 tokens, in one process")
    for name, speed in speeds.items():
        print(f"  {name:<24}{speed / 1e6:8.1f} M tokens/s")
    for name in list(speeds)[1:]:
        print(f"  {speeds['packdata'] / speeds[name]:.0f} x as fast as {name} (at least 30)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--mean-length", type=int, default=660)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="2,000 documents, one round")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.documents, options.rounds = 2_000, 1
        print("The short form shows that everything runs; the limits that it prints are those of the full size.")
    datasets.disable_progress_bars()
    dataset = make_documents(options.documents, options.mean_length)
    benchmark_writing(dataset)
    benchmark_packing(dataset, options.rounds)
    benchmark_lengths(100_000 if options.smoke else 10_000_000, options.rounds)
    benchmark_loading(dataset, batches=5 if options.smoke else 600, rounds=options.rounds)


if __name__ == "__main__":
    main()

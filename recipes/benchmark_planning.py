"""How fast planning is, beside a sort of the lengths and beside other people's best-fit, and how well it packs.

    python recipes/benchmark_planning.py                  # all sizes; about ten minutes
    python recipes/benchmark_planning.py --documents 1000000 --budgets 8192 --distributions lognormal

Times are medians of interleaved runs in this process. The peers (``pip install packdata[peers]``) are TRL's
``pack_dataset(strategy="bfd")``, which also moves the tokens, and OLMo-core's ``InstancePacker``. The exit status is 1
where a figure is missed: more packs than a peer in any run, and the times in a full run.
"""

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from packdata import plan_packs, plan_patterns

DISTRIBUTIONS = {
    "lognormal": lambda rng, size, budget: rng.lognormal(6, 1, size),
    "uniform": lambda rng, size, budget: rng.integers(1, budget + 1, size),
    "bimodal": lambda rng, size, budget: rng.normal(
        np.where(rng.random(size) < 0.8, 0.05, 0.7) * budget, 0.02 * budget
    ),
    "constant": lambda rng, size, budget: np.full(size, budget // 3),
}
PEERS, TOKENS = 100_000, 200_000_000
"""Peers run on so many documents at most, and TRL, which needs the tokens themselves, on so many tokens."""

SORTS = {("lognormal", 1_000_000, 8192): 2, ("lognormal", 1_000_000, 1_048_576): 6}
"""How many times the sort a plan may take."""

PEER_TIMES = {("trl", "lognormal", 100_000, 8192): 100}
"""How many times as long a peer must take; OLMo-core's search tree takes 40 to 90 times as long, and is only shown."""


def draw(distribution: str, size: int, budget: int) -> np.ndarray:
    """Draw int64 lengths from 1 to the budget."""
    rng = np.random.default_rng(0)
    return np.clip(DISTRIBUTIONS[distribution](rng, size, budget), 1, budget).astype(np.int64)


def medians(*functions: Callable[[], object], rounds: int) -> list[float]:
    """Time functions in turn, and return the median seconds of each."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for taken, function in zip(seconds, functions, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) for taken in seconds]


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the most memory that a call allocates."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def trl_packs(lengths: np.ndarray, budget: int) -> int:
    """Pack with TRL, the whole as one batch."""
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(offsets, np.zeros(offsets[-1], dtype=np.int32))
    dataset = datasets.Dataset(pa.table({"input_ids": tokens}))
    return len(pack_dataset(dataset, budget, strategy="bfd", map_kwargs={"batch_size": len(lengths)}))


def olmo_packs(lengths: np.ndarray, budget: int) -> int:
    """Pack with OLMo-core."""
    from olmo_core.data.utils import InstancePacker

    ends = np.cumsum(lengths)
    return len(InstancePacker(budget).pack_documents(np.stack([ends - lengths, ends], axis=1))[0])


def row(distribution: str, size: int, budget: int, rounds: int, strict: bool) -> list[str]:
    """Measure one setting, print it, and return what is missed."""
    lengths = draw(distribution, size, budget)
    plan = plan_packs(lengths, budget)
    sort, ours = medians(lambda: np.argsort(lengths, kind="stable"), lambda: plan_packs(lengths, budget), rounds=rounds)
    lower = -(-int(lengths.sum()) // budget)
    peak = peak_bytes(lambda: plan_packs(lengths, budget)) / size
    times = (f"{sort * 1e3:.1f} ms", f"{ours * 1e3:.1f} ms", f"{ours / sort:.2f}x")
    cells = (f"{size:,}", f"{budget:,}", *times, f"{peak:.0f}", f"{len(plan):,}", f"{len(plan) / lower:.4f}")
    print(f"{distribution:<10}" + "".join(f"{cell:>12}" for cell in cells), end="", flush=True)
    setting = (distribution, size, budget)
    missed = []
    if strict and ours > SORTS.get(setting, np.inf) * sort:
        missed.append(f"{ours / sort:.2f}x the sort, over {SORTS[setting]}x")
    peers = {"trl": trl_packs} if size <= PEERS and lengths.sum() <= TOKENS else {}
    peers |= {"olmo": olmo_packs} if size <= PEERS else {}
    for name, peer in peers.items():
        try:
            start = time.perf_counter()
            packs = peer(lengths, budget)
            faster = (time.perf_counter() - start) / ours
        except ImportError as error:
            print(f"  {name} skipped ({error.name} is not installed)", end="")
            continue
        print(f"  {name} {packs:,} packs, {faster:,.0f}x", end="", flush=True)
        missed += [f"{name} has fewer packs: {packs}"] if packs < len(plan) else []
        missed += (
            [f"only {faster:.0f}x faster than {name}"]
            if strict and faster < PEER_TIMES.get((name, *setting), 0)
            else []
        )
    print()
    return [f"{distribution} {size} {budget}: {what}" for what in missed]


def patterns_row(budget: int, strict: bool) -> list[str]:
    """Compare patterns of a billion documents with those of a million."""
    million = np.bincount(draw("lognormal", 1_000_000, budget))
    small, large = medians(
        lambda: plan_patterns(million, budget), lambda: plan_patterns(million * 1000, budget), rounds=5
    )
    print(f"plan_patterns, budget {budget:,}: 1e6 {small * 1e3:.1f} ms, 1e9 {large * 1e3:.1f} ms, {large / small:.2f}x")
    return [f"patterns of 1e9 take {large / small:.1f}x those of 1e6"] if strict and large > 3 * small else []


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--budgets", type=int, nargs="+", default=[2048, 8192, 32_768, 131_072])
    parser.add_argument("--distributions", nargs="+", choices=DISTRIBUTIONS, default=list(DISTRIBUTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="a few seconds; no figure for the time")
    options = parser.parse_args()
    if options.smoke:
        options.documents, options.budgets, options.rounds = [2000], [2048], 1
    heads = ("documents", "budget", "argsort", "plan_packs", "ratio", "B/doc", "packs", "/ bound")
    print(f"{'lengths':<10}" + "".join(f"{head:>12}" for head in heads))
    settings = [
        (kind, size, budget)
        for kind in options.distributions
        for size in options.documents
        for budget in options.budgets
    ]
    if not options.smoke and 1_000_000 in options.documents:
        settings.append(("lognormal", 1_000_000, 1_048_576))
    missed = [what for setting in settings for what in row(*setting, options.rounds, not options.smoke)]
    missed += patterns_row(8192, not options.smoke)
    print(*(f"MISSED {what}" for what in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

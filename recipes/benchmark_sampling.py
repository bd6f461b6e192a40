"""What the samplers cost and what they give, on log-normal lengths.

Time to construct a sampler and to go through an epoch, beside one stable sort of the lengths; the share of padding in
bucketed, packed and random batches; how long the ranks of a step wait for each other, with ``balance`` and without; and
how often two documents that shared a step share one again in the next epoch.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from packdata import LengthBucketBatchSampler, PackBatchSampler

BUDGET = 8192
SAMPLERS: dict[str, Callable] = {
    "packed": PackBatchSampler,
    "packed, balanced": lambda *args, **ranks: PackBatchSampler(*args, balance="attention", **ranks),
    "bucketed": LengthBucketBatchSampler,
    "bucketed, padded": lambda *args, **ranks: LengthBucketBatchSampler(*args, padded=True, **ranks),
}


def log_normal_lengths(documents: int) -> np.ndarray:
    """Draw lengths with a median of 490 tokens, from 1 to the budget."""
    return np.clip(np.random.default_rng(0).lognormal(6.2, 1.1, documents), 1, BUDGET).astype(np.int64)


def seconds_of(work: Callable) -> float:
    """Return the least of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def print_times(lengths: np.ndarray) -> None:
    """Print what constructing and iterating cost, in seconds and in sorts."""
    sort = seconds_of(lambda: np.argsort(lengths, kind="stable"))
    print(f"{len(lengths):,} documents; one stable argsort takes {sort:.3f} s\n")
    print(f"{'':20}{'construct':>12}{'':10}{'an epoch':>12}{'':10}{'batches':>10}")
    for name, make in SAMPLERS.items():
        sampler = make(lengths, BUDGET, rank=0, world_size=8)
        construct = seconds_of(lambda make=make: make(lengths, BUDGET, rank=0, world_size=8))
        sampler.set_epoch(1)  # epoch 0 was formed by the constructor
        epoch = seconds_of(lambda sampler=sampler: sum(map(len, sampler)))  # each run is another epoch
        columns = f"{construct:>10.3f} s{construct / sort:>8.1f} x{epoch:>10.3f} s{epoch / sort:>8.1f} x"
        print(f"{name:20}{columns}{len(sampler):>10,}")


def print_padding(lengths: np.ndarray) -> None:
    """Print the share of slots without a token, for rectangles of random or bucketed documents and for packed rows."""
    order = np.random.default_rng(1).permutation(len(lengths))
    size = round(BUDGET / lengths.mean())  # random batches of as many documents as fill the budget on average
    random = [lengths[order[first : first + size]] for first in range(0, len(order), size)]
    slots = sum(len(batch) * int(batch.max()) for batch in random)
    shares = {f"random, {size} documents": 1 - lengths.sum() / slots}
    for name in "bucketed, padded", "bucketed", "packed":
        shares[name] = 1 - SAMPLERS[name](lengths, BUDGET, rank=0, world_size=1).ledger.fill
    print("\npadding (of rectangles; of rows of the whole budget for those that are not padded)")
    for name, share in shares.items():
        print(f"{name:20}{share:>12.2%}")


def print_stragglers(lengths: np.ndarray, ranks: int) -> float:
    """Print how much longer steps take than evenly spread ones, and how often documents meet again.

    Returns:
        The straggler ratio of balanced steps.
    """
    print(f"\n{ranks} ranks{'':12}{'attention':>12}{'and tokens':>12}{'meet again':>12}{'by chance':>12}")
    ratios = {}
    for name in "packed", "packed, balanced":
        sampler = SAMPLERS[name](lengths, BUDGET, rank="all", world_size=ranks)
        ratios[name] = sampler.straggler_ratio()
        both = sampler.straggler_ratio(token_cost=6 * 2048)
        again, chance = meetings(sampler, len(lengths), ranks)
        print(f"{name:20}{ratios[name]:>12.3f}{both:>12.3f}{again:>12.2%}{chance:>12.2%}")
    return ratios["packed, balanced"]


def meetings(sampler: PackBatchSampler, documents: int, ranks: int) -> tuple[float, float]:
    """Say which share of the pairs of documents in one step are in one step again in the next epoch, and by chance."""
    steps = np.zeros((2, documents), dtype=np.int64)
    for epoch in range(2):
        for number, batch in enumerate(sampler):
            steps[epoch, batch] = number // ranks
    pairs = [np.bincount(step) for step in steps]
    again = np.unique(steps[0] * (steps[1].max() + 1) + steps[1], return_counts=True)[1]
    first, second, common = (int((counts * (counts - 1) // 2).sum()) for counts in (*pairs, again))
    return common / first, second / (documents * (documents - 1) // 2)


def main() -> None:
    """Run all of it; exit with an error if balanced steps wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--smoke", action="store_true", help="few documents")
    options = parser.parse_args()
    lengths = log_normal_lengths(150_000 if options.smoke else options.documents)
    print_times(lengths)
    print_padding(lengths)
    for ranks in options.ranks:
        ratio = print_stragglers(lengths, ranks)
        if ratio > 1.05:
            raise SystemExit(f"balanced steps of {ranks} ranks take {ratio:.3f} times as long as evenly spread ones")


if __name__ == "__main__":
    main()

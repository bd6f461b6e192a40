"""Forms batches of documents of similar length, within a budget of tokens or of slots.

The sizes of the batches come from the histogram of lengths alone; a shuffle only decides which of the documents of
equal length goes where, and in which order the batches come. So their number is the same in every epoch.

Within a bucket the lengths are walked downwards, and a batch takes documents until the next one would not fit:

    lengths 5 5 5 3 3 3 2, budget 8, boundaries (4,)
    bucket (4, 8]                5 | 5 | 5
    bucket (0, 4]                3 3 2 -> no: 3 3 | 3 2        by sum: 6 of 8, then 5 of 8
    padded to the longest        3 3 | 3 2                     documents x longest: 6 of 8, then 6 of 8

Documents of one length come by the thousand, so whole runs of equal batches are counted by a division, and the walk
costs a step for each distinct length, not for each document.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..planning import Ledger, Plan
from ..planning.policy import Policy
from ..planning.randomness import generator
from .dealing import require_at_least
from .fingerprints import CHUNK, digest
from .forming import Array, Formed


@dataclass(frozen=True, eq=False, kw_only=True)
class Buckets:
    """Batches of documents of one bucket.

    Attributes:
        lengths: Tokens of each document.
        budget: The most tokens (or slots, if ``padded``) of a batch.
        boundaries: The longest length of each bucket, ascending; one more bucket reaches up to the budget.
        padded: Whether the budget bounds documents times longest, instead of the sum of lengths.
        overlong: "error", or "drop" documents over the budget.
    """

    lengths: Array
    budget: int
    boundaries: tuple[int, ...]
    padded: bool
    overlong: Literal["error", "drop"]

    def __post_init__(self) -> None:
        """Refuse documents over the budget, unless they are to be dropped."""
        if self.overlong not in ("error", "drop"):
            raise ValueError(f'overlong must be "error" or "drop", got {self.overlong!r}: a document is not cut here')
        require_at_least(self.budget, 1, "budget")
        over = np.flatnonzero(self.lengths > self.budget) if self.overlong == "error" else []
        if len(over):
            first = ", ".join(f"document {index} has {self.lengths[index]} tokens" for index in over[:3])
            raise ValueError(
                f"{first}, over the budget of {self.budget} ({len(over)} in all): "
                'raise the budget, cut them before, or give overlong="drop"'
            )

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Form the batches, longest documents first, and shuffle them if there is a seed."""
        rng = None if seed is None else generator(seed)
        counts = _histogram(self.lengths, self.budget)
        runs = [
            run for low, high in self._bucket_ranges() for run in _runs(counts, low, high, self.budget, self.padded)
        ]
        each, batches = np.array(runs, dtype=np.int64).reshape(-1, 2).T
        bounds = np.concatenate([[0], np.cumsum(np.repeat(each, batches))])
        documents = _longest_first(self.lengths, self.budget, rng)
        plan = self._plan(documents, bounds)
        order = np.arange(len(plan))
        return Formed(plan, order if rng is None else rng.permutation(order))

    def identity(self) -> dict[str, Any]:
        """Name the lengths and how they are batched."""
        return {
            "lengths": digest(self.lengths),
            "budget": self.budget,
            "boundaries": list(self.boundaries),
            "padded": self.padded,
            "overlong": self.overlong,
        }

    def slots(self, plan: Plan, packs: Array) -> int:
        """Count the slots of a rectangle if ``padded``, else a budget, for each batch."""
        if not self.padded:
            return len(packs) * self.budget
        firsts = plan.bounds[packs]  # the longest document comes first
        return int(((plan.bounds[packs + 1] - firsts) * plan.lengths[firsts]).sum())

    def _bucket_ranges(self) -> list[tuple[int, int]]:
        """Give (previous, boundary] of each bucket, the longest first."""
        edges = [0, *(edge for edge in self.boundaries if edge < self.budget), self.budget]
        return list(pairwise(edges))[::-1]

    def _plan(self, documents: Array, bounds: Array) -> Plan:
        lengths = self.lengths[documents].astype(np.int32)
        starts = bounds[:-1]
        slots = np.diff(bounds) * lengths[starts] if self.padded else np.full(len(starts), self.budget)
        total, kept = int(self.lengths.sum(dtype=np.int64)), int(lengths.sum(dtype=np.int64))
        empty = int((self.lengths == 0).sum())
        ledger = Ledger(
            documents_in=len(self.lengths),
            documents_kept=len(documents),
            documents_dropped=len(self.lengths) - len(documents) - empty,
            documents_empty=empty,
            tokens_in=total,
            tokens_kept=kept,
            tokens_dropped=total - kept,
            slots=int(slots.sum()),
        )
        return Plan(
            bounds=bounds,
            documents=documents,
            lengths=lengths,
            starts=None,
            policy=Policy(budget=self.budget, overlong=self.overlong),
            ledger=ledger,
            fingerprint=digest(self.lengths),
        )


def as_boundaries(boundaries: Sequence[int]) -> tuple[int, ...]:
    """Check that the boundaries ascend from at least 1.

    Raises:
        ValueError: If they do not, naming the offender.
    """
    try:
        edges = [operator.index(edge) for edge in boundaries]
    except TypeError:
        raise ValueError(f"boundaries must be integers, got {boundaries!r}") from None
    for position, edge in enumerate(edges):
        if edge < 1:
            raise ValueError(f"boundaries must be at least 1, got {edge} at position {position}")
        if position and edge <= edges[position - 1]:
            raise ValueError(f"boundaries must ascend, got {edge} after {edges[position - 1]} at position {position}")
    return tuple(edges)


def _histogram(lengths: Array, budget: int) -> Array:
    counts = np.zeros(budget + 1, dtype=np.int64)
    for first in range(0, len(lengths), CHUNK):
        part = lengths[first : first + CHUNK]
        counts += np.bincount(part[part <= budget].astype(np.int64), minlength=budget + 1)
    return counts


def _longest_first(lengths: Array, budget: int, rng: np.random.Generator | None) -> Array:
    """Order the documents that fit by falling length; those of equal length by the generator, or by index."""
    documents = np.flatnonzero((lengths > 0) & (lengths <= budget))
    if rng is not None:
        documents = rng.permutation(documents)
    return documents[np.argsort(budget - lengths[documents].astype(np.int64), kind="stable")]


def _runs(counts: Array, low: int, high: int, budget: int, padded: bool) -> Iterator[tuple[int, int]]:
    """Walk the lengths of (low, high] downwards; yield (documents in a batch, how many such batches), in order."""
    documents = room = longest = 0  # of the batch that is open
    for length in (low + 1 + np.flatnonzero(counts[low + 1 : high + 1])[::-1]).tolist():
        count = int(counts[length])
        cost = longest if padded and documents else length
        fit = min(count, room // cost)
        documents, room, count = documents + fit, room - fit * cost, count - fit
        if count:
            if documents:
                yield documents, 1
            each, longest = budget // length, length
            whole, documents = divmod(count, each)
            yield each, whole
            room = budget - documents * length if documents else 0
    if documents:
        yield documents, 1

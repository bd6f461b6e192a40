"""Forms batches of documents of similar length, within a budget of tokens or of slots.

Documents of one bucket share a batch, and the lengths in the batches come from the histogram alone: a shuffle only
decides which of the documents of equal length goes where, and in which order the batches come. So their number is the
same in every epoch. Within a bucket, best-fit packs against a budget of tokens. A budget of slots, documents times
longest, wants neighbours in length: from the longest down, as many documents as such rectangles hold.

    lengths 7 6 5 4 3 3 2, budget 9, boundaries (3,)
                     tokens         slots
    bucket (3, 9]    7 | 6 | 5 4    7 | 6 | 5 | 4
    bucket (0, 3]    3 3 2          3 3 2

Documents of one length come by the thousand, so both count whole classes of equal batches by a division: they cost a
step for each distinct length, not for each document.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from packdata.planning import Plan
from packdata.planning.accounts import account
from packdata.planning.blocks import Array, blocks
from packdata.planning.edge import no_type_check, require_at_least
from packdata.planning.fingerprints import fingerprint
from packdata.planning.fit import best_fit
from packdata.planning.overlong import cut_overlong
from packdata.planning.packing import Packing, join
from packdata.planning.policy import Policy
from packdata.planning.randomness import generator
from packdata.planning.sorting import distinct_descending, order_descending
from packdata.planning.strategies import deal

from .forming import Formed, in_order


@no_type_check
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
    boundaries: Iterable[int]
    padded: bool
    overlong: Literal["error", "drop"]

    def __post_init__(self) -> None:
        """Check the boundaries, and refuse documents over the budget unless they are to be dropped."""
        object.__setattr__(self, "budget", require_at_least(self.budget, 1, "budget"))
        object.__setattr__(self, "boundaries", _checked(self.boundaries))
        if not isinstance(self.padded, bool):
            raise ValueError(f"padded must be True or False, got {self.padded!r}")
        if self.overlong not in ("error", "drop"):
            raise ValueError(f'overlong must be "error" or "drop", since nothing is cut here, got {self.overlong!r}')
        if self.overlong == "error" and self.lengths.max(initial=0) > self.budget:
            raise _overlong_error(self.lengths, self.budget)

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Form the batches, in random order if there is a seed, else the longest documents first."""
        policy = Policy(budget=self.budget, overlong=self.overlong)
        rng = None if seed is None else generator(seed)
        spans = cut_overlong(self.lengths, policy)
        packing = self._pack(spans.lengths, rng)
        held = _gather(spans.lengths, packing.items)
        ledger = account(self.lengths, policy, (packing.bounds, packing.items, held, None), truncated=0, split=0)
        plan = Plan(
            bounds=packing.bounds,
            documents=packing.items,
            lengths=held,
            starts=None,
            policy=policy,
            ledger=ledger,
            fingerprint=fingerprint(self.lengths, policy),
        )
        order = in_order(plan)
        if rng is not None:
            rng.shuffle(order)
        slots = self.slots(plan, in_order(plan))
        return Formed(replace(plan, ledger=replace(ledger, slots=slots)), order)

    def identity(self) -> dict[str, Any]:
        """Name the lengths and how they are batched."""
        return {
            "lengths": fingerprint(self.lengths),
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

    def _pack(self, lengths: Array, rng: np.random.Generator | None) -> Packing:
        """Pack each bucket on its own: a slice of the documents, ordered from the longest down."""
        distinct, counts = distinct_descending(lengths)
        documents = order_descending(lengths, distinct, counts, rng)
        edges = np.array([edge for edge in self.boundaries if edge < self.budget][::-1], dtype=np.int64)
        kinds = [0, *np.searchsorted(-distinct, -edges).tolist(), len(distinct)]  # those above an edge come before it
        ends = np.concatenate([[0], np.cumsum(counts)])[kinds]
        form = _rectangles if self.padded else _best_fit
        return join(
            [
                form(distinct[kind:next_kind], counts[kind:next_kind], documents[first:last], self.budget)
                for (kind, next_kind), (first, last) in zip(pairwise(kinds), pairwise(ends), strict=True)
            ]
        )


def _gather(lengths: Array, documents: Array) -> Array:
    """Look up the lengths of documents, as int32: a block at a time, since lengths may be of 64 bits."""
    found = np.empty(len(documents), dtype=np.int32)
    for block in blocks(len(documents)):
        found[block] = lengths[documents[block]]
    return found


def _best_fit(sizes: Array, counts: Array, documents: Array, budget: int) -> Packing:
    placements = best_fit(sizes, np.ones_like(sizes), counts, capacity=budget, max_documents=None)
    return deal(placements, documents)


def _rectangles(sizes: Array, counts: Array, documents: Array, budget: int) -> Packing:
    """Cut the documents into batches of as many as fit if all are as long as the first."""
    heights: list[int] = []
    times: list[int] = []
    room = 0  # documents that the last batch still takes
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        fit = min(count, room)
        if fit:
            heights[-1] += fit
        room, left = room - fit, count - fit
        if left:
            most = budget // size
            heights += [most, (left - 1) % most + 1]
            times += [(left - 1) // most, 1]
            room = most - heights[-1]
    bounds = np.concatenate([[0], np.cumsum(np.repeat(heights, times).astype(np.int64))])
    return Packing(bounds=bounds, items=documents)


def _checked(boundaries: Any) -> tuple[int, ...]:
    """Check that the boundaries ascend from at least 1."""
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


def _overlong_error(lengths: Array, budget: int) -> ValueError:
    over = np.flatnonzero(lengths > budget)
    named = ", ".join(f"document {document} has {lengths[document]} tokens" for document in over[:3].tolist())
    return ValueError(
        f"{named}, over the budget of {budget} ({len(over)} of {len(lengths)} documents): raise the budget, cut them "
        'before, or leave them out with overlong="drop"'
    )

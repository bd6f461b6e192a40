"""Forms batches of documents of similar length, within a budget of tokens or of slots.

The sizes of the batches come from the histogram of lengths alone; a shuffle only decides which of the documents of
equal length goes where, and in which order the batches come. So their number is the same in every epoch.

The lengths are walked downwards, and a batch takes documents until the next one would not fit or is of another bucket:

    lengths 7 5 5 3 3 3 2, budget 9, boundaries (4,)
    bucket (4, 9]    7 | 5 | 5          7 and 5 are more than 9
    bucket (0, 4]    3 3 3 | 2

``padded``, where documents times longest must be within the budget, only changes what a document takes: as much as the
first, and longest, one of its batch.

Documents of one length come by the thousand, so that runs of equal batches are counted by a division, and the walk
costs a step for each distinct length, not for each document.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..planning import Plan
from ..planning.accounts import account
from ..planning.blocks import Array
from ..planning.fingerprints import fingerprint
from ..planning.overlong import cut_overlong
from ..planning.packing import Packing, assemble
from ..planning.policy import Policy
from ..planning.randomness import generator
from ..planning.sorting import distinct_descending, order_descending
from .dealing import require_at_least
from .forming import Formed, in_order


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
    boundaries: Sequence[int]
    padded: bool
    overlong: Literal["error", "drop"]

    def __post_init__(self) -> None:
        """Check the boundaries, and refuse documents over the budget unless they are to be dropped."""
        object.__setattr__(self, "budget", require_at_least(self.budget, 1, "budget"))
        object.__setattr__(self, "boundaries", _checked(self.boundaries))
        object.__setattr__(self, "padded", bool(self.padded))
        if self.overlong not in ("error", "drop"):
            raise ValueError(f'overlong must be "error" or "drop", since nothing is cut here, got {self.overlong!r}')
        if self.overlong == "error" and self.lengths.max(initial=0) > self.budget:
            raise _overlong_error(self.lengths, self.budget)

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Form the batches, in random order if there is a seed, else the longest documents first."""
        policy = Policy(budget=self.budget, overlong=self.overlong)
        rng = None if seed is None else generator(seed)
        spans = cut_overlong(self.lengths, policy)
        distinct, counts = distinct_descending(spans.lengths)
        runs = np.array(list(self._runs(distinct.tolist(), counts.tolist())), dtype=np.int64).reshape(-1, 2)
        bounds = np.concatenate([[0], np.cumsum(np.repeat(*runs.T))])
        packing = Packing(bounds=bounds, items=order_descending(spans.lengths, distinct, counts, rng))
        order = None if rng is None else rng.permutation(len(bounds) - 1)
        arrays = bounds, documents, lengths, starts = assemble(packing, spans, order)
        ledger = account(self.lengths, policy, arrays, truncated=0, split=0)
        plan = Plan(
            bounds=bounds,
            documents=documents,
            lengths=lengths,
            starts=starts,
            policy=policy,
            ledger=ledger,
            fingerprint=fingerprint(self.lengths, policy),
        )
        slots = self.slots(plan, np.arange(len(plan)))
        return Formed(replace(plan, ledger=replace(ledger, slots=slots)), in_order(plan))

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

    def _runs(self, distinct: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
        """Walk the lengths downwards; yield (documents in a batch, how many such batches in a row)."""
        edges = [edge for edge in self.boundaries if edge < self.budget]
        documents = room = longest = 0  # of the open batch
        for length, count in zip(distinct, counts, strict=True):
            if edges and length <= edges[-1]:
                room = 0  # the open batch is of the bucket above
                while edges and length <= edges[-1]:
                    edges.pop()
            taken = longest if self.padded else length
            fit = min(count, room // taken) if documents else 0
            documents, room, count = documents + fit, room - fit * taken, count - fit
            if not count:
                continue
            if documents:
                yield documents, 1
            whole, documents = divmod(count, self.budget // length)
            yield self.budget // length, whole
            longest, room = length, self.budget - documents * length
        if documents:
            yield documents, 1


def _checked(boundaries: Sequence[int]) -> tuple[int, ...]:
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

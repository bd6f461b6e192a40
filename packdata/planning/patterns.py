"""A plan on the histogram of lengths alone: a few thousand patterns, whatever the number of documents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from packdata.layout import as_lengths

from .blocks import Array
from .edge import no_type_check, require_at_least
from .fit import Placements, best_fit
from .overlong import over_budget
from .packing import ragged
from .policy import Policy
from .sorting import present_descending
from .spread import runs, spread_placements
from .wording import counted


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Patterns:
    """Groups of packs that hold the same lengths, and which documents of each length go where.

    Attributes:
        policy: The options that the patterns were made with.
        lengths: The distinct lengths, descending, int64.
        counts: Documents of each of them, int64.
        placements: Where the documents go, counted from the longest down.
    """

    policy: Policy
    lengths: Array
    counts: Array
    placements: Placements

    @property
    def packs(self) -> int:
        """The number of packs."""
        return self.placements.num_packs

    @property
    def multiplicity(self) -> Array:
        """How many packs each pattern stands for, int64; packs are numbered pattern after pattern."""
        return runs(self.placements)[1]

    @property
    def documents(self) -> Array:
        """How many documents a pack of each pattern holds, int64."""
        return runs(self.placements)[2]

    @property
    def slots(self) -> Array:
        """How many slots the documents of a pack of each pattern take, each rounded up to ``align``, int64."""
        sizes = -(-self.lengths // self.policy.align) * self.policy.align
        longest_first = np.searchsorted(np.cumsum(self.counts), self.placements.ranks[:-1], side="right")
        return runs(self.placements, sizes[longest_first])[2]

    @property
    def tokens(self) -> int:
        """The number of tokens of all documents."""
        return int(self.lengths @ self.counts)

    @property
    def fill(self) -> float:
        """The share of all slots that hold a token; 1.0 where there is no pack."""
        return self.tokens / (self.packs * self.policy.budget) if self.packs else 1.0

    @no_type_check
    def deal(self, length: int, first: int, count: int) -> tuple[Array, Array]:
        """Say where documents of one length go.

        Args:
            length: Their length in tokens.
            first: How many documents of that length come before them.
            count: How many they are.

        Returns:
            For each, its pack and its place among the documents of that pack, int64, shape ``(count,)``.

        Raises:
            ValueError: If an argument is no integer from 0, or the patterns were not made for so many documents of
                that length.

        Example:
            >>> patterns = plan_patterns([0, 0, 0, 4], budget=6)  # four documents of three tokens
            >>> patterns.deal(3, first=1, count=3)
            (array([0, 1, 1]), array([1, 0, 1]))
        """
        length, first = require_at_least(length, 0, "length"), require_at_least(first, 0, "first")
        count = require_at_least(count, 0, "count")
        kind = int(np.searchsorted(-self.lengths, -length))
        here = int(self.counts[kind]) if kind < len(self.lengths) and self.lengths[kind] == length else 0
        if first + count > here:
            raise ValueError(
                f"the patterns hold {here} documents of length {length}, so numbers {first} to {first + count} are not "
                "among them; make the patterns from the counts of all documents"
            )
        before = int(self.counts[:kind].sum()) + first
        return locate(self.placements, before, before + count)

    def __len__(self) -> int:
        return len(self.multiplicity)

    def __repr__(self) -> str:
        documents = int(self.counts.sum())
        return (
            f"Patterns({counted(len(self), 'pattern')} for {counted(self.packs, 'pack')} of "
            f"{counted(self.policy.budget, 'token')}, {counted(documents, 'document')}, {self.fill:.2%} full)"
        )


@no_type_check
def plan_patterns(
    counts: Any,
    budget: int,
    *,
    max_documents: int | None = None,
    align: int = 1,
    packs_multiple_of: int = 1,
) -> Patterns:
    """Plan best-fit packs from the histogram of lengths; the time does not depend on the number of documents.

    Args:
        counts: ``counts[length]`` = how many documents have that length; 1-D, integers. Documents of no tokens are
            left out.
        budget: The most tokens in a pack, up to 2³¹ − 1.
        max_documents: The most documents in a pack.
        align: Each document takes a multiple of this many slots.
        packs_multiple_of: Open more packs until their number is a multiple of this.

    Returns:
        The patterns. ``plan_packs`` with the same options deals its documents by them.

    Raises:
        ValueError: If the counts are not 1-D non-negative integers, an option is out of range, or a document is
            over the budget.

    Example:
        >>> counts = np.bincount([6, 6, 4, 3, 3, 2])
        >>> plan_patterns(counts, budget=10)
        Patterns(3 patterns for 3 packs of 10 tokens, 6 documents, 80.00% full)
    """
    policy = Policy(budget=budget, max_documents=max_documents, align=align, packs_multiple_of=packs_multiple_of)
    lengths, documents = present_descending(as_lengths(counts, name="counts").astype(np.int64))
    refuse_overlong(lengths, documents, policy)
    return patterns_of(lengths, documents, policy)


def refuse_overlong(lengths: Array, counts: Array, policy: Policy) -> None:
    """Raise if some of the distinct lengths, in descending order, are over the budget."""
    if len(lengths) and lengths[0] > policy.limit:
        many = int(counts[lengths > policy.limit].sum())
        raise ValueError(
            f"counts has {counted(many, 'document')} of more tokens than {over_budget(policy)}, "
            f"the longest of {lengths[0]}; raise the budget, or leave them out of the counts"
        )


def patterns_of(lengths: Array, counts: Array, policy: Policy) -> Patterns:
    """Plan from distinct lengths in descending order, all within the budget, and their counts."""
    placements = best_fit(
        -(-lengths // policy.align),
        np.ones_like(lengths),
        counts,
        capacity=policy.units,
        max_documents=policy.max_documents,
    )
    spread = spread_placements(placements, policy.packs_multiple_of)
    return Patterns(policy=policy, lengths=lengths, counts=counts, placements=spread)


def locate(placements: Placements, first: int, last: int) -> tuple[Array, Array]:
    """Find the packs, and the places in them, of the items of ranks ``first`` up to ``last``, int64."""
    pack, place, many = visits(placements, first, last)
    return np.repeat(pack, many), ragged(place, many)


def visits(placements: Placements, first: int, last: int) -> tuple[Array, Array, Array]:
    """Cut the items of ranks ``first`` up to ``last`` wherever the next one goes to another pack.

    The rows are unrolled to pairs of row and pack; so nothing is divided item by item.

    Returns:
        Of each part the pack, the place of its first item there, and how many items it has, int64.
    """
    if first >= last:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    low = int(np.searchsorted(placements.ranks, first, side="right")) - 1
    high = int(np.searchsorted(placements.ranks, last, side="left"))
    each, packs = placements.per_pack[low:high], placements.packs[low:high].copy()
    packs[-1] = -(-(last - int(placements.ranks[high - 1])) // int(each[-1]))  # the last row may be needed in part,
    skipped, head = divmod(first - int(placements.ranks[low]), int(each[0]))  # and so may the first
    packs[0] -= skipped
    first_pack = placements.first_pack[low:high].copy()
    first_pack[0] += skipped
    place, many = np.repeat(placements.position[low:high], packs), np.repeat(each, packs)
    place[0] += head
    many[0] -= head
    many[-1] -= many.sum() - (last - first)
    return ragged(first_pack, packs), place, many

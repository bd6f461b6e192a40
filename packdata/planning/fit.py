"""Best-fit decreasing on the histogram of sizes.

Best-fit decreasing takes the items from the largest down, and puts each where it leaves the least room. Items of equal
size are interchangeable, and so are open packs of equal room and equally many documents. So whole classes of packs move
at once, and what remains is a table of *placements*: "so many packs from this one on get so many items of this kind
each". Budget 10 and the lengths 6, 6, 4, 3, 3, 2, with classes written as packs x room:

    kind    placed                             classes after it
    2 of 6  no room: open 2 packs, 1 each      2x4
    1 of 4  tightest room from 4 up is 4       1x4           (one pack is full)
    2 of 3  1 into room 4; no room: open 1     1x1 1x7
    1 of 2  tightest room from 2 up is 7       1x1 1x5

A pack that took an item of some size is the tightest for the next one of that size, since all tighter rooms were too
small: so a pack takes ``room // size`` of them in one go. Each step either uses up a class or is the last of its kind,
and makes at most two classes more than it used: the number of steps follows the number of *distinct sizes*, and a
billion documents cost what a million do. The loads are exactly those of the document-by-document algorithm.

Sizes only shrink, so nothing has to be searched for the tightest room. The classes with room for the kind at hand are
kept in order, the tightest last. A class with less room waits for the first kind that it has room for; it is tighter
than all that had room before, so it goes behind them. Where ``max_documents`` bounds groups of several, there is
one such list for each number of documents that a class still allows.

Sources: best-fit decreasing for training data: Ding et al., "Fewer Truncations Improve Language Modeling",
arXiv 2404.10830; packing on the histogram: Krell et al., "Efficient Sequence Packing without Cross-contamination",
arXiv 2107.02027.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

_Class = tuple[int, int, int, int, int]
"""Packs that are alike: units taken, documents still allowed, minus the first pack, packs, items in each pack.

The largest is the one to take: the fullest, of these the one with the fewest documents, of these the first.
"""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placements:
    """Where the items go, counted from the largest down: row ``i`` takes the items of its ranks, pack after pack.

    Attributes:
        ranks: First rank of each row, and the number of items at the end.
        first_pack: The first pack that the row's items go to.
        packs: How many packs they go to.
        per_pack: How many go to each.
        position: The first one's place among the items of its pack.
        num_packs: How many packs there are in all.
    """

    ranks: Int64[np.ndarray, " bounds"]
    first_pack: Int64[np.ndarray, " rows"]
    packs: Int64[np.ndarray, " rows"]
    per_pack: Int64[np.ndarray, " rows"]
    position: Int64[np.ndarray, " rows"]
    num_packs: int

    @classmethod
    def from_rows(cls, rows: Int64[np.ndarray, "rows 4"], num_packs: int) -> "Placements":
        """Make the table from rows of (first pack, packs, items per pack, position)."""
        first_pack, packs, per_pack, position = (np.ascontiguousarray(column) for column in rows.T)
        ranks = np.concatenate([np.zeros(1, np.int64), np.cumsum(packs * per_pack)])
        return cls(
            ranks=ranks, first_pack=first_pack, packs=packs, per_pack=per_pack, position=position, num_packs=num_packs
        )


def best_fit(
    sizes: Int64[np.ndarray, " kinds"],
    weights: Int64[np.ndarray, " kinds"],
    counts: Int64[np.ndarray, " kinds"],
    *,
    capacity: int,
    max_documents: int | None,
) -> Placements:
    """Place all items, kind after kind.

    Args:
        sizes: The size of each kind of item, in units, descending, from 1 to ``capacity``.
        weights: Documents in one item of that kind (1 unless it is a group), at most ``max_documents``.
        counts: Items of each kind.
        capacity: Units in a pack.
        max_documents: The most documents in a pack, or None. Among equally tight packs, the one with the fewest
            documents is taken.

    Returns:
        The placements, in the order of the kinds.
    """
    limits = (capacity - sizes).tolist()  # a pack takes an item of a kind while it is not fuller than this
    fullest = limits[-1] if limits else 0
    allowed = int((weights * counts).sum()) if max_documents is None else max_documents
    heaviest = 1 if max_documents is None else int(weights.max(initial=1))
    fitting: list[list[_Class]] = [[] for _ in range(heaviest + 1)]  # by the heaviest kind that they still allow
    waiting: defaultdict[int, list[_Class]] = defaultdict(list)
    rows: list[int] = []
    num_packs = 0
    kinds = zip(sizes.tolist(), weights.tolist(), counts.tolist(), limits, strict=True)
    for kind, (size, weight, count, limit) in enumerate(kinds):
        if kind in waiting:
            for found in sorted(waiting.pop(kind)):
                fitting[found[1] if found[1] < heaviest else heaviest].append(found)
        while count:
            alike = fitting[-1] if weight >= heaviest else max(fitting[weight:], key=_last)
            load, spare, minus, packs, items = alike.pop() if alike else (0, allowed, -num_packs, count, 0)
            most = (capacity - load) // size
            if most * weight > spare:
                most = spare // weight
            while packs and count:  # packs that take as many as they can, then one that takes the rest
                each = most if most < count else count
                filled = count // each
                if filled > packs:
                    filled = packs
                rows += (-minus, filled, each, items)
                fuller, fewer = load + each * size, spare - each * weight
                if fewer and fuller <= limit:
                    insort(fitting[min(fewer, heaviest)], (fuller, fewer, minus, filled, items + each))
                elif fewer and fuller <= fullest:
                    next_kind = bisect_left(limits, fuller, kind)
                    waiting[next_kind].append((fuller, fewer, minus, filled, items + each))
                minus, packs, count = minus - filled, packs - filled, count - filled * each
            if not load:
                num_packs = -minus
            elif packs:
                insort(alike, (load, spare, minus, packs, items))
    return Placements.from_rows(np.array(rows, dtype=np.int64).reshape(-1, 4), num_packs)


def _last(classes: list[_Class]) -> tuple[int, ...]:
    return classes[-1] if classes else ()

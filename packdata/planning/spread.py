"""Open more packs, so that their number becomes a multiple.

The packs with the most items are halved, each half a pack of its own, in rounds until there are enough; where no pack
has two items left, the rest are empty packs. Which packs are halved depends on their items alone, never on a seed.
"""

import numpy as np
from jaxtyping import Int64

from .blocks import Array
from .fit import Placements
from .rounding import round_up


def spread_bounds(bounds: Int64[np.ndarray, " bounds"], multiple: int) -> Int64[np.ndarray, " wider"]:
    """Make the number of packs a multiple, each half staying beside the other.

    Args:
        bounds: Where the items of each pack begin, and the number of items at the end.
        multiple: What the number of packs is to be a multiple of.

    Returns:
        The bounds of more packs over the same items.

    Example:
        >>> spread_bounds(np.array([0, 4, 5]), 3)
        array([0, 2, 4, 5])
    """
    missing = _missing(len(bounds) - 1, multiple)
    while missing:
        items = np.diff(bounds)
        halved, _ = _packs_to_halve(items, np.ones_like(items), missing)
        if not len(halved):
            return np.concatenate([bounds, np.repeat(bounds[-1:], missing)])
        bounds = np.sort(np.concatenate([bounds, bounds[halved] + _kept(items[halved])]))
        missing -= len(halved)
    return bounds


def spread_placements(placements: Placements, multiple: int) -> Placements:
    """Make the number of packs a multiple; the second halves become new packs at the end.

    Args:
        placements: Where the items go.
        multiple: What the number of packs is to be a multiple of.

    Returns:
        The placements of the same items in more packs.
    """
    missing = _missing(placements.num_packs, multiple)
    while missing:
        first, packs, items = runs(placements)
        halved, taken = _packs_to_halve(items, packs, missing)
        if not len(halved):
            return Placements.from_rows(_rows(placements), placements.num_packs + missing)
        ascending = np.argsort(first[halved])
        halved, taken = halved[ascending], taken[ascending]
        rows = _halve(placements, first[halved], taken, _kept(items[halved]))
        placements = Placements.from_rows(rows, placements.num_packs + int(taken.sum()))
        missing -= int(taken.sum())
    return placements


def runs(placements: Placements, amounts: Array | None = None) -> tuple[Array, Array, Array]:
    """Find the runs of alike packs.

    Args:
        placements: Where the items go.
        amounts: What one item of each row counts (by default 1, so that the totals are items).

    Returns:
        For each run: its first pack, its number of packs, and the total of one of its packs.
    """
    ends = placements.first_pack + placements.packs
    bounds = np.unique(np.concatenate([[0, placements.num_packs], placements.first_pack, ends]))
    change = np.zeros(len(bounds), dtype=np.int64)
    amount = placements.per_pack if amounts is None else placements.per_pack * amounts
    np.add.at(change, np.searchsorted(bounds, placements.first_pack), amount)
    np.subtract.at(change, np.searchsorted(bounds, ends), amount)
    return bounds[:-1], np.diff(bounds), np.cumsum(change)[:-1]


def _missing(packs: int, multiple: int) -> int:
    return round_up(packs, multiple) - packs


def _kept(items: Array) -> Array:
    return (items + 1) // 2


def _packs_to_halve(items: Array, packs: Array, most: int) -> tuple[Array, Array]:
    """Choose runs with the most items (at least two), and how many packs of each, ``most`` at most."""
    order = np.argsort(-items, kind="stable")
    order = order[items[order] > 1][:most]
    taken = np.clip(most - (np.cumsum(packs[order]) - packs[order]), 0, packs[order])
    return order[taken > 0], taken[taken > 0]


def _rows(placements: Placements) -> Array:
    columns = (placements.first_pack, placements.packs, placements.per_pack, placements.position)
    return np.stack(columns, axis=1)


def _halve(placements: Placements, first: Array, packs: Array, kept: Array) -> Array:
    """Move what stands at position ``kept`` and later, in the packs of disjoint ascending ranges, to new packs."""
    rows = _cut_rows(_rows(placements), np.concatenate([first, first + packs]))
    home = np.searchsorted(first, rows[:, 0], side="right") - 1
    inside = (home >= 0) & (rows[:, 0] < (first + packs)[home])
    stays = np.where(inside, np.clip(kept[home] - rows[:, 3], 0, rows[:, 2]), rows[:, 2])
    new_pack = placements.num_packs + (np.cumsum(packs) - packs)[home] + rows[:, 0] - first[home]
    staying, moving = rows.copy(), rows.copy()
    staying[:, 2] = stays
    moving[:, 0] = new_pack
    moving[:, 2] -= stays
    moving[:, 3] = np.maximum(rows[:, 3] - kept[home], 0)
    both = np.stack([staying, moving], axis=1).reshape(-1, 4)
    return both[both[:, 2] > 0]


def _cut_rows(rows: Array, cuts: Array) -> Array:
    """Cut the rows' ranges of packs wherever one of ``cuts`` lies inside."""
    for cut in np.unique(cuts).tolist():
        inside = (rows[:, 0] < cut) & (cut < rows[:, 0] + rows[:, 1])
        if inside.any():
            index = np.flatnonzero(inside)
            later = rows[index]
            later[:, 1] -= cut - later[:, 0]
            later[:, 0] = cut
            rows[index, 1] = cut - rows[index, 0]
            rows = np.insert(rows, index + 1, later, axis=0)
    return rows

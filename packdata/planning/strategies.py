"""The three ways to fill packs, each from a window of items to the items of each pack."""

from collections.abc import Callable

import numpy as np

from .blocks import BLOCK, Array, blocks, index_dtype, nonzero_indices
from .concat import concat
from .fit import Placements, best_fit
from .items import Items
from .packing import Packing, ragged
from .patterns import visits
from .policy import Policy, Strategy
from .sorting import distinct_descending, order_descending
from .spread import spread_placements

Rng = np.random.Generator | None


def _best_fit(items: Items, window: slice, policy: Policy, rng: Rng) -> Packing:
    """Place the histogram of the keys, and deal the items out to the placements."""
    keys = items.keys[window]
    distinct, counts = distinct_descending(keys)
    placements = best_fit(
        items.units(distinct),
        items.documents(distinct),
        counts,
        capacity=policy.units,
        max_documents=policy.max_documents,
    )
    if policy.window is None:
        placements = spread_placements(placements, policy.packs_multiple_of)
    return deal(placements, _of_window(window, order_descending(keys, distinct, counts, rng)))


def deal(placements: Placements, order: Array) -> Packing:
    """Hand items, given from the largest down, out to the placements."""
    bounds = _bounds(placements)
    dealt = np.empty_like(order)
    for block in blocks(len(order)):
        pack, place, many = visits(placements, block.start, block.stop)
        dealt[ragged(bounds[pack] + place, many)] = order[block]
    return Packing(bounds=bounds, items=dealt)


def _bounds(placements: Placements) -> Array:
    """Where the items of each pack begin, and their number at the end: the twofold running sum of each row's change."""
    bounds = np.zeros(placements.num_packs + 2, dtype=np.int64)
    np.add.at(bounds, placements.first_pack + 1, placements.per_pack)
    np.subtract.at(bounds, placements.first_pack + placements.packs + 1, placements.per_pack)
    np.cumsum(bounds, out=bounds)  # the items of the pack before
    np.cumsum(bounds, out=bounds)
    return bounds[:-1]


def _sequential(items: Items, window: slice, policy: Policy, rng: Rng) -> Packing:
    """Next-fit: close the pack at the first item that does not fit.

    Where each pack would end, were it to begin at any item, is one search in the running total; then the packs are
    followed from end to end.
    """
    order = _in_order(items, window, rng)
    ends: list[Array] = []
    first, size = 0, BLOCK
    while first < len(order):
        following = _followers(items, items.keys[order[first : first + size]], policy)
        last = first + len(following) == len(order)
        begin, found = 0, []
        while begin < len(following) and (following[begin] < len(following) or last):
            begin = following[begin]
            found.append(begin)
        ends.append(np.array(found, dtype=np.int64) + first)
        first, size = first + begin, BLOCK if begin else 2 * size  # a pack longer than the block wants a longer one
    return Packing(bounds=np.concatenate([np.zeros(1, np.int64), *ends]), items=order)


def _followers(items: Items, keys: Array, policy: Policy) -> list[int]:
    """For each item, the first one that does not fit into a pack that begins with it."""
    following = _reach(items.units(keys), policy.units)
    if policy.max_documents is not None:
        following = np.minimum(following, _reach(items.documents(keys), policy.max_documents))
    ends: list[int] = following.tolist()
    return ends


def _reach(amounts: Array, most: int) -> Array:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(amounts)])
    return np.searchsorted(total, total[:-1] + most, side="right") - 1


def _in_order(items: Items, window: slice, rng: Rng) -> Array:
    """The items that are not left out, in order; with a generator, items of equal key take each other's places."""
    keys = items.keys[window]
    if rng is None:
        order = nonzero_indices(keys)
    else:
        distinct, counts = distinct_descending(keys)
        taker = np.empty(len(keys), dtype=index_dtype(len(keys)))
        taker[order_descending(keys, distinct, counts)] = order_descending(keys, distinct, counts, rng)
        order = taker[nonzero_indices(keys)]
    return _of_window(window, order)


def _of_window(window: slice, indices: Array) -> Array:
    """Turn indices within a window to indices of items."""
    return np.add(indices, window.start, dtype=index_dtype(window.stop)) if window.start else indices


def _concat(items: Items, window: slice, policy: Policy, rng: Rng) -> Packing:
    return concat(items, _in_order(items, window, rng), policy)


STRATEGIES: dict[Strategy, Callable[[Items, slice, Policy, Rng], Packing]] = {
    "best_fit": _best_fit,
    "sequential": _sequential,
    "concat": _concat,
}

"""One stream of all documents, cut wherever a pack is full.

The stream is counted in units of ``align`` slots. A document that begins at a unit and ends within one takes the whole
unit; a cut always falls between two units, so the pieces of a document take as many units as the document does.
"""

from bisect import bisect_right

import numpy as np

from .blocks import Array, blocks, index_dtype
from .items import Items
from .packing import Packing
from .policy import Policy


def concat(items: Items, order: Array, policy: Policy) -> Packing:
    """Cut the stream of the items in this order.

    Args:
        items: Spans, not groups.
        order: Those in the stream, none of them empty.
        policy: Its budget, alignment and ``max_documents``.

    Returns:
        The pieces of each pack. All packs but the last are full, unless ``max_documents`` closed them.
    """
    lengths = items.keys
    total = sum(int(items.units(lengths[order[block]]).sum()) for block in blocks(len(order)))
    cuts = _cuts(items, order, total, policy)
    most = len(order) + len(cuts)
    longest = int(lengths.max(initial=0))
    whose = np.empty(most, dtype=order.dtype)
    starts = np.empty(most, dtype=np.uint16 if longest < 2**16 else index_dtype(longest + 1))
    pieces = np.empty(most, dtype=np.uint16 if longest < 2**16 else np.int32)
    bounds = np.zeros(len(cuts) + 1, dtype=np.int64)
    filled = reached = split = 0
    for block in blocks(len(order)):
        here = lengths[order[block]].astype(np.int64)
        ends = reached + np.cumsum(items.units(here))
        low, high = np.searchsorted(cuts, [reached, ends[-1]], side="right")
        stops = np.sort(np.concatenate([ends, cuts[low:high]]), kind="stable")  # merges the two sorted runs
        stops = stops[np.diff(stops, prepend=reached) > 0]
        begins = np.concatenate([[reached], stops[:-1]])
        item = np.searchsorted(ends, begins, side="right")
        start = (begins - np.concatenate([[reached], ends[:-1]])[item]) * policy.align
        piece = np.minimum((stops - begins) * policy.align, here[item] - start)
        to = slice(filled, filled + len(stops))
        whose[to], starts[to], pieces[to] = order[block][item], start, piece
        bounds[low + 1 : high + 1] = filled + np.searchsorted(stops, cuts[low:high]) + 1
        split += int(((start == 0) & (piece < here[item])).sum())
        filled, reached = to.stop, int(ends[-1])
    return Packing(bounds=bounds, items=whose[:filled], starts=starts[:filled], lengths=pieces[:filled], split=split)


def _cuts(items: Items, order: Array, total: int, policy: Policy) -> Array:
    """Where packs end in the stream, the end of the stream included."""
    if policy.max_documents is None:
        return np.append(np.arange(policy.units, total, policy.units), total) if total else np.empty(0, np.int64)
    ends = np.cumsum(items.units(items.keys[order])).tolist()
    cuts, item, cut = [], 0, 0
    while cut < total:
        last = min(item + policy.max_documents, len(ends)) - 1
        cut = min(cut + policy.units, ends[last])
        item = bisect_right(ends, cut, item)
        cuts.append(cut)
    return np.array(cuts, dtype=np.int64)

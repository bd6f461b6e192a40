"""Histograms and stable counting sorts of lengths, in bounded memory.

numpy's stable sort of 16-bit integers is a radix sort, which takes a tenth of the time of sorting int64. A block of
keys is sorted by its low 16 bits, then by the next ones if there are any. Blocks are joined by counting: the histogram
says where the entries of each key begin in the whole order, and a block's entries go behind those of the blocks before.
"""

import numpy as np

from .blocks import BLOCK, Array, blocks, index_dtype, unsigned_dtype

_DENSE = 4
"""Count into an array of all keys up to the largest, as long as that array has at most so many entries per key."""


def distinct_descending(keys: Array) -> tuple[Array, Array]:
    """Count equal keys, leaving out 0.

    Args:
        keys: Integers from 0, any integer dtype, shape ``(keys,)``.

    Returns:
        The distinct keys in descending order and how often each occurs, both int64.
    """
    largest = int(keys.max(initial=0))
    if largest > _DENSE * max(len(keys), 1 << 16):
        distinct, counts = np.unique(keys, return_counts=True)
        above = int(distinct[0] == 0)
        return distinct[above:][::-1].astype(np.int64), counts[above:][::-1].astype(np.int64)
    histogram = np.zeros(largest + 1, dtype=np.int64)
    for block in blocks(len(keys)):
        part = np.bincount(keys[block].astype(np.int64, copy=False))
        histogram[: len(part)] += part
    return present_descending(histogram)


def present_descending(histogram: Array) -> tuple[Array, Array]:
    """Return the keys above 0 that occur, in descending order, and how often, from ``histogram[key]``."""
    keys = np.flatnonzero(histogram[1:])[::-1] + 1
    return keys, histogram[keys]


def order_descending(keys: Array, distinct: Array, counts: Array, rng: np.random.Generator | None = None) -> Array:
    """Order the entries from the largest key down, leaving out those of key 0.

    Args:
        keys: Integers from 0, any integer dtype, shape ``(keys,)``.
        distinct: The distinct keys above 0, in descending order.
        counts: How often each occurs.
        rng: Permutes entries of equal key; None keeps them in the order of their index.

    Returns:
        Indices into ``keys``, int32 (int64 past 2³¹ keys).
    """
    dtype = index_dtype(len(keys))
    shuffled = None
    if rng is not None:
        shuffled = np.arange(len(keys), dtype=dtype)
        rng.shuffle(shuffled)
    if len(keys) <= BLOCK:
        found = _argsort_descending(keys if shuffled is None else keys[shuffled])[: int(counts.sum())]
        return found.astype(dtype) if shuffled is None else shuffled[found]
    return _order_by_blocks(keys, distinct, counts, shuffled)


def _order_by_blocks(keys: Array, distinct: Array, counts: Array, shuffled: Array | None) -> Array:
    order = np.empty(int(counts.sum()), dtype=index_dtype(len(keys)))
    ascending = distinct[::-1]
    behind = (np.cumsum(counts) - counts)[::-1].copy()  # where the next entry of each ascending key goes
    for block in blocks(len(keys)):
        indices = None if shuffled is None else shuffled[block]
        values = keys[block] if indices is None else keys[indices]
        found = _argsort_descending(values)[: np.count_nonzero(values)]
        values = values[found]
        firsts = np.flatnonzero(np.diff(values, prepend=values[:1] + 1) != 0) if len(values) else found
        lengths = np.diff(firsts, append=len(values))
        kinds = np.searchsorted(ascending, values[firsts].astype(np.int64))
        places = np.repeat(behind[kinds] - firsts, lengths) + np.arange(len(values))
        order[places] = found + block.start if indices is None else indices[found]
        behind[kinds] += lengths
    return order


def _argsort_descending(keys: Array) -> Array:
    largest = int(keys.max(initial=0))
    if largest >= 2**32:
        return np.argsort(largest - keys.astype(np.int64), kind="stable")
    upward = np.empty(len(keys), dtype=unsigned_dtype(largest))
    np.subtract(largest, keys, out=upward, dtype=np.int64, casting="unsafe")
    order = np.argsort(upward.astype(np.uint16, copy=False), kind="stable")  # the low 16 bits
    if largest >= 2**16:
        high = (upward >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order

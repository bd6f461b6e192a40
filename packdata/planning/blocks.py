"""Work through long arrays in blocks, so that temporaries stay small beside the lengths themselves."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 21
"""Entries of a block: 16 MiB for each int64 temporary."""


def blocks(size: int, block: int | None = None) -> Iterator[slice]:
    """Cut ``range(size)`` into slices of at most ``block`` (by default ``BLOCK``)."""
    step = BLOCK if block is None else block
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def index_dtype(size: int) -> type[np.signedinteger[Any]]:
    """Return int32 where indices below ``size`` fit into it, else int64."""
    return np.int32 if size <= 2**31 else np.int64


def unsigned_dtype(largest: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest of uint16, uint32 and uint64 that holds ``largest``."""
    if largest < 2**16:
        return np.uint16
    return np.uint32 if largest < 2**32 else np.uint64


def nonzero_indices(array: Array) -> Array:
    """Return the indices of entries that are not 0, in the smallest index dtype."""
    indices = np.empty(np.count_nonzero(array), dtype=index_dtype(len(array)))
    filled = 0
    for block in blocks(len(array)):
        found = np.flatnonzero(array[block])
        indices[filled : filled + len(found)] = found + block.start
        filled += len(found)
    return indices

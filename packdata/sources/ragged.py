"""One list column, read where it lies: numpy views of the offsets and values of each Arrow chunk.

An Arrow list column is, per chunk, an array of offsets and one flat array of values: row *i* is
``values[offsets[i]:offsets[i + 1]]``. So lengths are differences of offsets (no value is touched), and a row is a
slice. Rows of different chunks, rows taken twice and pieces of rows are all *views*; gathering them is one
``np.concatenate``, which copies each view with one ``memcpy``.

    chunk 0: offsets 0 3 5, values a b c d e        rows  0: a b c   1: d e
    chunk 1: offsets 2 4,   values x y z w          row   2: z w     (a slice: its offsets do not start at 0)

    gather(rows=[2, 0], starts=[0, 1], lengths=[2, 2])  ->  z w b c

Offsets are 32-bit within a chunk; a column of several chunks may hold more than 2³¹ values.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from packdata.planning.plan import Array


class Chunk:
    """Offsets and values of one Arrow list array, which may be a slice of a longer one."""

    def __init__(self, array: pa.Array):
        # `.offsets` honours the slice and counts from the start of `.values`, which does not.
        if pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            self.offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * size
        else:
            self.offsets = array.offsets.to_numpy(zero_copy_only=True)
        self._array = array.values

    @cached_property
    def values(self) -> Array:
        """All values of the chunk, read-only; a view, except of booleans, which Arrow stores as bits."""
        values = self._view()
        values.flags.writeable = False  # Arrow's memory may be written to, but it is the user's
        return values

    def _view(self) -> Array:
        array = self._array
        if pa.types.is_null(array.type):
            return np.empty(0, np.int64)
        if pa.types.is_boolean(array.type):
            return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
        buffer = array.buffers()[1]
        dtype = np.dtype(array.type.to_pandas_dtype())
        flat = np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)
        return flat[array.offset : array.offset + len(array)]


class RaggedColumn:
    """A list column as numpy views.

    Args:
        column: An Arrow column of lists (32- or 64-bit offsets, views, or of fixed size) of numbers.
        name: What to call it in an error.

    Raises:
        ValueError: If it is no list column of numbers, or has a null (the row is named).
    """

    def __init__(self, column: pa.ChunkedArray, *, name: str):
        self.name = name
        self.type = column.type
        lists = _as_lists(column, name)
        _refuse_nulls(lists, name)
        self.value_type = lists.type.value_type
        self.chunks = [Chunk(chunk) for chunk in lists.chunks]
        self.first_rows = np.cumsum([0, *map(len, lists.chunks)])

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of one value; int64 where an empty column has no type."""
        return np.dtype(np.int64 if pa.types.is_null(self.value_type) else self.value_type.to_pandas_dtype())

    @property
    def lengths(self) -> Array:
        """Values per row, from the offsets alone, int32 or int64 ``(rows,)``; a new array."""
        parts = [np.diff(chunk.offsets) for chunk in self.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])

    def bounds(self, rows: Array) -> tuple[Array, Array, Array]:
        """Say in which chunk each row lies, and where in the chunk's values it starts and stops."""
        if len(self.chunks) == 1:
            offsets = self.chunks[0].offsets
            return np.zeros(len(rows), np.int64), offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)
        chunk_of = np.searchsorted(self.first_rows, rows, side="right") - 1
        within = rows - self.first_rows[chunk_of]
        start, stop = np.empty((2, len(rows)), np.int64)
        for number, here in _runs(chunk_of):
            offsets = self.chunks[number].offsets
            start[here], stop[here] = offsets[within[here]], offsets[within[here] + 1]
        return chunk_of, start, stop

    def views(self, rows: Array) -> list[Array]:
        """Return the values of some rows, a read-only view each."""
        if len(self.chunks) != 1:
            return self._slices(*self.bounds(rows))
        values, offsets = self.chunks[0].values, self.chunks[0].offsets
        start, stop = offsets[rows], offsets[rows + 1]
        if len(values):
            values.take(start, mode="clip")  # all first values at once: memory lets one wait once, not row by row
        return [values[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True)]

    def gather(self, rows: Array, starts: Array, lengths: Array) -> Array:
        """Join pieces of rows: ``lengths[k]`` values of row ``rows[k]`` from its ``starts[k]``-th on.

        Returns:
            A new array ``(sum(lengths),)`` in memory of Arrow's pool, which keeps pages for the next window.
        """
        chunk_of, first, _ = self.bounds(rows)
        first += starts
        joined = allocate(int(lengths.sum(dtype=np.int64)), self.dtype)
        if len(joined):
            np.concatenate(self._slices(chunk_of, first, first + lengths), out=joined)
        return joined

    def edges(self, rows: Array) -> tuple[Array, Array]:
        """Return the first and the last value of some rows; 0 where a row is empty."""
        chunk_of, start, stop = self.bounds(rows)
        first, last = np.zeros((2, len(rows)), self.dtype)
        for number, here in _runs(np.where(start < stop, chunk_of, -1)):
            if number >= 0:
                values = self.chunks[number].values
                first[here], last[here] = values[start[here]], values[stop[here] - 1]
        return first, last

    def rows_with_others(self, number: int) -> Array:
        """Return the rows that have another value than this one, ascending."""
        found = [np.empty(0, np.int64)]
        for first, chunk in zip(self.first_rows.tolist(), self.chunks, strict=False):
            start, stop = (int(chunk.offsets[0]), int(chunk.offsets[-1])) if len(chunk.offsets) else (0, 0)
            if len(at := np.flatnonzero(chunk.values[start:stop] != number) + start):
                found.append(first + np.unique(np.searchsorted(chunk.offsets, at, side="right") - 1))
        return np.concatenate(found)

    def _slices(self, chunk_of: Array, start: Array, stop: Array) -> list[Array]:
        bounds = zip(start.tolist(), stop.tolist(), strict=True)
        if len(self.chunks) == 1:
            values = self.chunks[0].values
            return [values[a:b] for a, b in bounds]
        chunks = self.chunks
        return [chunks[c].values[a:b] for c, (a, b) in zip(chunk_of.tolist(), bounds, strict=True)]


def allocate(size: int, dtype: np.dtype[Any]) -> Array:
    """Make an uninitialised writable array in memory of Arrow's pool."""
    return np.frombuffer(pa.allocate_buffer(size * dtype.itemsize), dtype) if size else np.empty(0, dtype)


def is_list(column: pa.ChunkedArray) -> bool:
    """Tell whether a column holds lists, however they are laid out; one of no rows and no type may."""
    layouts = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return _is_untyped(column) or any(getattr(pa.types, layout)(column.type) for layout in layouts)


def is_per_token(column: pa.ChunkedArray) -> bool:
    """Tell whether a column may hold one number per token."""
    if _is_untyped(column) or not is_list(column):
        return _is_untyped(column)
    kinds = ("is_integer", "is_floating", "is_boolean", "is_null")
    return any(getattr(pa.types, kind)(column.type.value_type) for kind in kinds)


def _is_untyped(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_null(column.type)) and len(column) == 0


def _runs(numbers: Array) -> list[tuple[int, Array]]:
    """Group positions by their number: ``(number, positions)`` for each distinct one."""
    order = np.argsort(numbers, kind="stable")
    distinct, firsts = np.unique(numbers[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(order, firsts[1:]), strict=True)) if len(distinct) else []


def _as_lists(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if _is_untyped(column):
        return pa.chunked_array([], type=pa.list_(pa.null()))
    if not is_per_token(column):
        raise ValueError(f"column {name!r} must hold a list of numbers per row, got {column.type}")
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        # Views may lie in any order; this copies. (Casting them, in pyarrow 26, gives invalid arrays.)
        kind = pa.large_list(column.type.value_type)
        return pa.chunked_array([_from_views(chunk, name) for chunk in column.chunks], type=kind)
    return column


def _from_views(chunk: pa.Array, name: str) -> pa.Array:
    if chunk.null_count:
        raise ValueError(f"column {name!r} is null in a row: fill or filter it before packing")
    offsets = np.cumsum(np.concatenate([[0], chunk.sizes.to_numpy()]), dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), chunk.flatten())


def _refuse_nulls(column: pa.ChunkedArray, name: str) -> None:
    first = 0
    for chunk in column.chunks:
        if chunk.null_count:
            row = first + int(np.argmax(chunk.is_null().to_numpy(zero_copy_only=False)))
            raise ValueError(f"column {name!r} is null in row {row}: fill or filter it before packing")
        flat = chunk.flatten()
        if len(flat) and flat.null_count:
            at = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            offsets = Chunk(chunk).offsets
            row = first + int(np.searchsorted(offsets - offsets[0], at, side="right")) - 1
            raise ValueError(f"column {name!r} has a null in row {row}: fill or filter it before packing")
        first += len(chunk)

"""One list column, read where it lies: numpy views of the offsets and values of each Arrow chunk.

An Arrow list column is, per chunk, an array of offsets and one flat array of values: row *i* is
``values[offsets[i]:offsets[i + 1]]``. So lengths are differences of offsets (no token is touched), and a document is a
slice. Rows of different chunks, rows taken twice and pieces of rows are all *views*; gathering them is one
``np.concatenate``, which copies each view with one ``memcpy``.

Offsets are 32-bit within a chunk; a column of several chunks may hold more than 2³¹ tokens.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa


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
    def values(self) -> np.ndarray[Any, Any]:
        """All values of the chunk; a view, except of booleans, which Arrow stores as bits."""
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
        column: An Arrow column of lists (32- or 64-bit offsets, or of fixed size) of numbers.
        name: What to call it in an error.

    Raises:
        ValueError: If it is no list column of numbers, or has a null (the row is named).
    """

    def __init__(self, column: pa.ChunkedArray, *, name: str):
        self.name = name
        self.type = column.type
        column = _as_lists(column, name)
        _refuse_nulls(column, name)
        self.chunks = [Chunk(chunk) for chunk in column.chunks]
        self.first_rows = np.cumsum([0, *map(len, column.chunks)])

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value."""
        return self.type if pa.types.is_null(self.type) else self.type.value_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of one value; int64 where an empty column has no type."""
        return np.dtype(np.int64 if pa.types.is_null(self.value_type) else self.value_type.to_pandas_dtype())

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """Values per row, from the offsets alone, int32 or int64 ``(rows,)``; a new array."""
        if not self.chunks:
            return np.empty(0, np.int32)
        return np.concatenate([np.diff(chunk.offsets) for chunk in self.chunks])

    def row(self, row: int) -> np.ndarray[Any, Any]:
        """Return the values of one row, a read-only view."""
        return self.rows(np.asarray([row], np.int64))[0]

    def rows(self, rows: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return the values of some rows, read-only views."""
        chunk_of, start, stop = self.locate(rows)
        return self._views(chunk_of, start, stop)

    def pieces(
        self, rows: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
    ) -> list[np.ndarray[Any, Any]]:
        """Return ``lengths[k]`` values of row ``rows[k]`` from its ``starts[k]``-th on, as read-only views."""
        chunk_of, start, _ = self.locate(rows)
        start = start + starts
        return self._views(chunk_of, start, start + lengths)

    def locate(self, rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Say in which chunk each row lies, and where in the chunk's values it starts and stops."""
        chunk_of = np.searchsorted(self.first_rows, rows, side="right") - 1
        start, stop = np.empty((2, len(rows)), np.int64)
        if len(self.chunks) == 1:
            start[:], stop[:] = self.chunks[0].offsets[rows], self.chunks[0].offsets[rows + 1]
            return chunk_of, start, stop
        within = rows - self.first_rows[chunk_of]
        for number in np.unique(chunk_of).tolist():
            here = chunk_of == number
            offsets = self.chunks[number].offsets
            start[here], stop[here] = offsets[within[here]], offsets[within[here] + 1]
        return chunk_of, start, stop

    def _views(
        self, chunk_of: np.ndarray[Any, Any], start: np.ndarray[Any, Any], stop: np.ndarray[Any, Any]
    ) -> list[np.ndarray[Any, Any]]:
        bounds = zip(start.tolist(), stop.tolist(), strict=True)
        if len(self.chunks) == 1:
            values = self.chunks[0].values
            return [values[a:b] for a, b in bounds]
        chunks = self.chunks
        return [chunks[c].values[a:b] for c, (a, b) in zip(chunk_of.tolist(), bounds, strict=True)]


def ragged_from_sequences(sequences: Sequence[Any], *, name: str) -> pa.ChunkedArray:
    """Make an Arrow list column of Python sequences of numbers (lists, tuples, arrays, tensors).

    The dtype of arrays travels: uint16 stays uint16. Rows of a 2-D array are documents of equal length.

    Raises:
        ValueError: If a row is no flat sequence of numbers (the row is named).
    """
    if all(isinstance(sequence, list) for sequence in sequences):
        try:
            return pa.chunked_array([pa.array(sequences)])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ValueError(f"column {name!r} is no list of lists of numbers: {error}") from None
    arrays = [_flat_array(sequence, row, name) for row, sequence in enumerate(sequences)]
    filled = [array for array in arrays if array.size] or arrays[:1]
    values = np.concatenate(filled)
    offsets = np.cumsum([0, *map(len, arrays)])
    return pa.chunked_array([pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))])


def _flat_array(sequence: Any, row: int, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(sequence)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {name!r}, row {row} is no flat sequence of numbers: {error}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iufb"):
        raise ValueError(
            f"column {name!r}, row {row} must be a flat sequence of numbers, "
            f"got shape {array.shape} and dtype {array.dtype}"
        )
    return array


def is_list(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type is one of lists, whatever its offsets."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_list_of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a column of this Arrow type may hold one number per token."""
    if not is_list(kind):
        return False
    value, types = kind.value_type, pa.types
    return bool(types.is_integer(value) or types.is_floating(value) or types.is_boolean(value) or types.is_null(value))


def _as_lists(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if pa.types.is_null(column.type) and len(column) == column.null_count == 0:
        return pa.chunked_array([], type=pa.list_(pa.null()))  # a dataset of no rows has no types
    if not is_list_of_numbers(column.type):
        raise ValueError(f"column {name!r} must hold a list of numbers per row, got {column.type}")
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return column.cast(pa.large_list(column.type.value_type))
    return column


def _refuse_nulls(column: pa.ChunkedArray, name: str) -> None:
    first = 0
    for chunk in column.chunks:
        if chunk.null_count:
            row = first + int(np.argmax(chunk.is_null().to_numpy(zero_copy_only=False)))
            raise ValueError(f"column {name!r} is null in row {row}: fill or filter it before packing")
        flat = chunk.flatten()
        if flat.null_count and len(flat):
            at = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            offsets = Chunk(chunk).offsets
            row = first + int(np.searchsorted(offsets - offsets[0], at, side="right")) - 1
            raise ValueError(f"column {name!r} has a null in row {row}: fill or filter it before packing")
        first += len(chunk)

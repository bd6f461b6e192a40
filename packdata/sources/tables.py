"""What users hand over as documents, seen as one Arrow table and the order of its rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from packdata.planning.plan import Array


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Source:
    """An Arrow table and which of its rows are documents, in order.

    Attributes:
        table: The columns as they lie in memory or in a memory-mapped file.
        rows: Row of the table for each document, int64 ``(documents,)``, or None where document *i* is row *i*.
    """

    table: pa.Table
    rows: Array | None


def open_source(source: Any) -> Source:
    """See a source of documents as an Arrow table, copying no token of what is Arrow already.

    Args:
        source: A ``datasets.Dataset`` (also after ``select``, ``shuffle``, ``shard``), a ``pyarrow.Table`` or
            ``RecordBatch``, a dict of columns, or a list of documents, each a dict or a flat sequence of token ids.

    Raises:
        TypeError: If it is something else; the message names what serves for it.
        ValueError: If it has no column ``input_ids``, or a column is ragged in more than one way.
    """
    if isinstance(source, datasets.Dataset):
        opened = _from_dataset(source)
    elif isinstance(source, pa.Table):
        opened = Source(table=source, rows=None)
    elif isinstance(source, pa.RecordBatch):
        opened = Source(table=pa.Table.from_batches([source]), rows=None)
    elif isinstance(source, Mapping) and not isinstance(source, datasets.DatasetDict | datasets.IterableDatasetDict):
        opened = Source(table=_table_from_columns(source), rows=None)
    elif isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        opened = Source(table=_table_from_columns(_columns_from_documents(source)), rows=None)
    else:
        raise TypeError(_unreadable(source))
    names = opened.table.column_names
    if len(set(names)) < len(names):
        raise ValueError(f"columns must have a name each, got {names}")
    if "input_ids" not in names:
        raise ValueError(f"no column 'input_ids' among {names}: tokenise the documents first")
    return opened


def _unreadable(source: Any) -> str:
    if isinstance(source, datasets.DatasetDict | datasets.IterableDatasetDict):
        return f"a {type(source).__name__} has several splits {sorted(source)}: choose one"
    if isinstance(source, datasets.IterableDataset):
        return "an IterableDataset has no random access: StreamPacker packs streams"
    return (
        "documents must be a datasets.Dataset, a pyarrow Table, a dict of columns or a list of documents, "
        f"got {type(source).__name__}"
    )


def _from_dataset(dataset: datasets.Dataset) -> Source:
    if dataset.format["type"] == "custom":
        raise ValueError("the dataset has a transform, which would be skipped: apply it with Dataset.map first")
    indices = dataset._indices  # no public way leads to the order that select and shuffle leave behind
    rows = None if indices is None else indices.column(0).to_numpy().astype(np.int64, copy=False)
    return Source(table=dataset.data.table, rows=rows)


def _table_from_columns(columns: Mapping[str, Any]) -> pa.Table:
    arrays = {name: _column(name, values) for name, values in columns.items()}
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"columns must have one entry per document each, got {sizes}")
    return pa.table(arrays)


def _column(name: str, values: Any) -> pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise ValueError(f"column {name!r} must have one entry per document, got {type(values).__name__}")
    values = list(values)
    if values and (np.isscalar(values[0]) or np.ndim(values[0]) == 0):
        return pa.chunked_array([pa.array(values)])
    if all(isinstance(value, list) or value is None for value in values):
        try:
            return pa.chunked_array([pa.array(values)])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ValueError(f"column {name!r} must hold a flat list of numbers per document: {error}") from None
    return _ragged(name, [_flat(name, row, value) for row, value in enumerate(values)])


def _ragged(name: str, arrays: list[Array]) -> pa.ChunkedArray:
    """Join arrays to a list column; their dtype travels (an empty list has none of its own)."""
    values = np.concatenate([array for array in arrays if array.size] or arrays[:1])
    try:
        flat = pa.array(values)
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"column {name!r} must hold numbers: {error}") from None
    offsets = np.cumsum([0, *map(len, arrays)])
    kind = pa.ListArray if offsets[-1] < 2**31 else pa.LargeListArray
    return pa.chunked_array([kind.from_arrays(pa.array(offsets.astype(_offset_dtype(kind))), flat)])


def _offset_dtype(kind: type) -> Any:
    return np.int32 if kind is pa.ListArray else np.int64


def _flat(name: str, row: int, value: Any) -> Array:
    if np.ma.is_masked(value):
        raise ValueError(f"column {name!r}, row {row} must be a flat sequence of numbers, got a masked array: fill it")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {name!r}, row {row} must be a flat sequence of numbers: {error}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iufb"):
        got = f"shape {array.shape}, dtype {array.dtype}"
        raise ValueError(f"column {name!r}, row {row} must be a flat sequence of numbers, got {got}")
    return array


def _columns_from_documents(documents: Sequence[Any] | Array) -> dict[str, Any]:
    documents = list(documents)
    if not documents or not isinstance(documents[0], Mapping):
        return {"input_ids": documents}
    names = list(documents[0])
    for number, document in enumerate(documents):
        if not isinstance(document, Mapping) or document.keys() != documents[0].keys():
            got = list(document) if isinstance(document, Mapping) else type(document).__name__
            raise ValueError(f"document {number} has the columns {got}, but document 0 has {names}")
    return {name: [document[name] for document in documents] for name in names}

"""What users hand over as documents, seen as one Arrow table and the order of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from .ragged import is_list_of_numbers, ragged_from_sequences


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Source:
    """An Arrow table and which of its rows are documents, in order.

    Attributes:
        table: The columns as they lie in memory or in a memory-mapped file.
        rows: Row of the table for each document, int64 ``(documents,)``, or None where document *i* is row *i*.
    """

    table: pa.Table
    rows: np.ndarray[Any, Any] | None

    def __len__(self) -> int:
        return self.table.num_rows if self.rows is None else len(self.rows)


def open_source(source: Any) -> Source:
    """See a source of documents as an Arrow table, copying no token of what is Arrow already.

    Args:
        source: A ``datasets.Dataset`` (also after ``select``, ``shuffle``, ``shard``), a ``pyarrow.Table`` or
            ``RecordBatch``, a dict of columns, or a list of documents, each a dict or a flat sequence of token ids.

    Raises:
        TypeError: If it is something else; the message names what serves for it.
        ValueError: If it has no column ``input_ids``.
    """
    if isinstance(source, datasets.Dataset):
        opened = _from_dataset(source)
    elif isinstance(source, pa.Table):
        opened = Source(table=source, rows=None)
    elif isinstance(source, pa.RecordBatch):
        opened = Source(table=pa.Table.from_batches([source]), rows=None)
    elif isinstance(source, Mapping) and not isinstance(source, datasets.DatasetDict):
        opened = Source(table=_table_from_columns(source), rows=None)
    elif isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        opened = Source(table=_table_from_columns(_columns_from_documents(source)), rows=None)
    else:
        raise TypeError(_unreadable(source))
    if "input_ids" not in opened.table.column_names:
        raise ValueError(f"no column 'input_ids' among {opened.table.column_names}: tokenise the documents first")
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
    return pa.table({name: _column(name, values) for name, values in columns.items()})


def _column(name: str, values: Any) -> pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    values = list(values)
    if values and (np.isscalar(values[0]) or values[0] is None or isinstance(values[0], dict | str | bytes)):
        return pa.chunked_array([pa.array(values)])
    return ragged_from_sequences(values, name=name)


def _columns_from_documents(documents: Sequence[Any] | np.ndarray[Any, Any]) -> dict[str, Any]:
    documents = list(documents)
    if not documents or not isinstance(documents[0], Mapping):
        return {"input_ids": documents}
    names = list(documents[0])
    for number, document in enumerate(documents):
        if not isinstance(document, Mapping) or list(document) != names:
            got = list(document) if isinstance(document, Mapping) else type(document).__name__
            raise ValueError(f"document {number} has the columns {got}, but document 0 has {names}")
    return {name: [document[name] for document in documents] for name in names}


def token_columns(table: pa.Table) -> list[str]:
    """Name the columns that may hold one number per token, ``input_ids`` first."""
    names = [field.name for field in table.schema if is_list_of_numbers(field.type)]
    return ["input_ids", *(name for name in names if name != "input_ids")]

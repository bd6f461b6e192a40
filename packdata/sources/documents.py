"""Documents: tokenised texts where they lie, as a map-style dataset."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from packdata.planning import Pack

from .ragged import RaggedColumn
from .tables import open_source, token_columns

Feature = dict[str, Any]


class Documents:
    """A map-style dataset over ragged token columns, reading Arrow in place.

    Args:
        source: A ``datasets.Dataset`` (also after ``select`` or ``shuffle``), a ``pyarrow.Table``, a dict of lists, or
            a list of dicts or arrays. What is Arrow already is not copied.
        columns: The columns to serve, each a list of numbers per document; None for all that are.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing.

    Example:
        >>> documents = Documents({"input_ids": [[5, 6, 7], [8, 9]]})
        >>> documents.lengths
        array([3, 2], dtype=int32)
        >>> documents[1]
        {'input_ids': array([8, 9])}
    """

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None = None,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
    ):
        opened = open_source(source)
        names = token_columns(opened.table) if columns is None else list(columns)
        self._source = source
        self._rows = opened.rows
        self._columns = {name: RaggedColumn(opened.table.column(name), name=name) for name in names}

    def __len__(self) -> int:
        return len(self._columns["input_ids"]) if self._rows is None else len(self._rows)

    @cached_property
    def lengths(self) -> np.ndarray[Any, Any]:
        """Tokens per document, an integer array ``(documents,)``, from Arrow's offsets alone."""
        lengths = self._columns["input_ids"].lengths
        return lengths if self._rows is None else lengths[self._rows]

    def __getitem__(self, item: int | Pack) -> Feature:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int | Pack]) -> list[Feature]:
        """Return the features of some documents, or of some packs, in one go.

        Args:
            items: Document numbers, or ``Pack``s.

        Returns:
            For a document, its columns as numpy arrays (read-only views). For a pack, its spans joined, and
            ``seq_lengths``, tokens per span.
        """
        if any(isinstance(item, Pack) for item in items):
            return [self._pack(item) for item in items]
        documents = np.fromiter((self._index(item) for item in items), np.int64, len(items))
        rows = documents if self._rows is None else self._rows[documents]
        columns = [column.rows(rows) for column in self._columns.values()]
        return [dict(zip(self._columns, values, strict=True)) for values in zip(*columns, strict=True)]

    def _index(self, item: Any) -> int:
        index = item + len(self) if item < 0 else item
        if not 0 <= index < len(self):
            raise IndexError(f"document {item} of {len(self)}")
        return int(index)

    def _pack(self, pack: Any) -> Feature:
        rows = pack.documents if self._rows is None else self._rows[pack.documents]
        feature: Feature = {
            name: np.concatenate([np.empty(0, column.dtype), *column.pieces(rows, pack.starts, pack.lengths)])
            for name, column in self._columns.items()
        }
        return feature | {"seq_lengths": pack.lengths}

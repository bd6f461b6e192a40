"""Documents: tokenised texts where they lie, as a map-style dataset."""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from packdata.planning import Pack
from packdata.planning.edge import no_type_check
from packdata.planning.plan import Array
from packdata.planning.wording import counted

from .addresses import check_spans, document_numbers, selected_numbers
from .markers import Markers, gather_marked
from .padding import refuse_padding
from .ragged import RaggedColumn, is_list, is_per_token
from .tables import Source, open_source

Feature = dict[str, Any]


@no_type_check
class Documents:
    """A map-style dataset over ragged token columns, reading Arrow in place.

    Args:
        source: A ``datasets.Dataset`` (also after ``select`` or ``shuffle``, and whatever its format shows or hides), a
            ``pyarrow.Table``, a dict of lists, or a list of dicts or arrays. What is Arrow already is not copied; a
            dataset on disk stays there, also in the workers that this object is sent to.
        columns: The columns to serve beside ``input_ids``: one number per token, or one value per document. None for
            all that have a list of numbers per document.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing; a target where the last token is one.

    Raises:
        ValueError: If there is no ``input_ids``, a column is missing, has a null or is out of step with ``input_ids``
            (column and row are named), the rows are packs (they have ``seq_lengths``), or a marker does not fit the
            column or would stand behind padding.
        TypeError: If the source is of none of these kinds.

    Example:
        >>> documents = Documents({"input_ids": [[5, 6, 7], [8, 9]]}, eos_token_id=2)
        >>> documents.lengths
        array([4, 3], dtype=int32)
        >>> documents[1]
        {'input_ids': array([8, 9, 2])}
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
        # A dataset pickles as the path of its memory map; anything else as the Arrow table that it is by now.
        self._source = source if isinstance(source, datasets.Dataset) else opened.table
        if isinstance(columns, str) or not (columns is None or isinstance(columns, Sequence)):
            raise ValueError(f"columns must be several names, such as ['labels'], got {columns!r}")
        self._names = None if columns is None else list(columns)
        self._markers = Markers(bos=bos_token_id, eos=eos_token_id)
        self._selected: Array | None = None
        self._open(opened)

    def _open(self, opened: Source) -> None:
        names = _served(opened.table, self._names)
        tokens = [name for name in names if name == "input_ids" or is_list(opened.table.column(name))]
        self._rows = opened.rows
        if self._selected is not None:
            self._rows = self._table_rows(self._selected)
        self._values = {name: opened.table.column(name).to_numpy() for name in names if name not in tokens}
        self.columns = {name: RaggedColumn(opened.table.column(name), name=name) for name in tokens}
        _check_tokens(self.columns["input_ids"])
        _check_step(self.columns)
        self._markers.check(self.columns["input_ids"])
        if self._markers:
            refuse_padding(opened)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_source", "_names", "_markers", "_selected")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(open_source(self._source))

    def __len__(self) -> int:
        return len(self.columns["input_ids"]) if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"Documents({counted(len(self), 'document')}, columns {[*self.columns, *self._values]})"

    @cached_property
    def lengths(self) -> Array:
        """Tokens per document, markers included, int32 or int64 ``(documents,)``, from Arrow's offsets."""
        lengths = self.columns["input_ids"].lengths
        if self._rows is not None:
            lengths = lengths[self._rows]
        if self._markers:
            for missing in self._missing(np.arange(len(self))):
                lengths += missing
        lengths.flags.writeable = False
        return lengths

    def __getitem__(self, item: int | Pack) -> Feature:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int | Pack]) -> list[Feature]:
        """Return the features of some documents, or of some packs, in one go.

        Args:
            items: Document numbers (negative ones count from the end), or ``Pack``s.

        Returns:
            For a document, its columns as numpy arrays (read-only views, unless markers are added). For a pack, its
            spans joined, and ``seq_lengths``, tokens per span; values per document become one array.
        """
        if not len(items):
            return []
        try:
            documents = document_numbers(items, len(self))
        except TypeError:
            if not any(isinstance(item, Pack) for item in items):
                raise
            return [self._pack(item) if isinstance(item, Pack) else self[item] for item in items]
        rows = self._table_rows(documents)
        if self._markers:
            lengths = self._lengths_of(documents)
            spans = Pack(documents=documents, starts=np.zeros_like(lengths), lengths=lengths)
            cuts = np.cumsum(lengths)[:-1]
            columns = [np.split(self.gather(name, spans), cuts) for name in self.columns]
        else:
            columns = [column.views(rows) for column in self.columns.values()]
        columns += [list(values[rows]) for values in self._values.values()]
        features: list[Feature] = [{"input_ids": ids} for ids in columns[0]]
        for name, column in zip([*self.columns, *self._values][1:], columns[1:], strict=True):
            for feature, values in zip(features, column, strict=True):
                feature[name] = values
        return features

    def select(self, documents: Array) -> "Documents":
        """Return some of the documents, in that order, sharing the columns.

        Args:
            documents: Document numbers from 0, integers ``(selected,)``.

        Raises:
            ValueError: If they are no 1-D integers.
            IndexError: If there is no such document.
        """
        documents = selected_numbers(documents, len(self))
        selection = copy.copy(self)
        selection.__dict__.pop("lengths", None)
        selection._selected = documents if self._selected is None else self._selected[documents]
        selection._rows = self._table_rows(documents)
        return selection

    def gather(self, name: str, spans: Pack) -> Array:
        """Join spans of one per-token column.

        Args:
            name: The column.
            spans: Any spans, markers counted; they may be those of several packs.

        Returns:
            A new array ``(sum(spans.lengths),)`` of the column's dtype.
        """
        rows, column = self._table_rows(spans.documents), self.columns[name]
        if self._markers:
            missing = self._missing(spans.documents)
            return gather_marked(column, self._markers, missing, (rows, spans.starts, spans.lengths))
        return column.gather(rows, spans.starts, spans.lengths)

    def check_spans(self, spans: Pack) -> None:
        """Raise if a span is not within its document: its plan was made from other lengths than these."""
        check_spans(spans, len(self), self._lengths_of)

    def _pack(self, pack: Any) -> Feature:
        self.check_spans(pack)
        feature: Feature = {name: self.gather(name, pack) for name in self.columns}
        rows = self._table_rows(pack.documents)
        return (
            feature
            | {name: values[rows] for name, values in self._values.items()}
            | {"seq_lengths": pack.lengths.copy()}
        )

    def _table_rows(self, documents: Array) -> Array:
        return documents if self._rows is None else self._rows[documents]

    def _missing(self, documents: Array) -> tuple[Array, Array]:
        return self._markers.missing(self.columns["input_ids"], self._table_rows(documents))

    def _lengths_of(self, documents: Array) -> Array:
        _, start, stop = self.columns["input_ids"].bounds(self._table_rows(documents))
        return sum(self._missing(documents), stop - start) if self._markers else stop - start


def _served(table: pa.Table, names: list[str] | None) -> list[str]:
    """Name the columns to serve, ``input_ids`` first."""
    if "seq_lengths" in table.column_names:
        raise ValueError(
            "column 'seq_lengths' says that these rows are packs, not documents: PackingCollator takes the dataset "
            "itself; take the column out if each row is one document all the same"
        )
    if names is None:
        names = [name for name in table.column_names if is_per_token(table.column(name))]
    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise ValueError(f"no column {absent[0]!r} among {table.column_names}")
    return list(dict.fromkeys(["input_ids", *names]))


def _check_tokens(tokens: RaggedColumn) -> None:
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"column 'input_ids' must hold integers, got {tokens.type}")


def _check_step(columns: dict[str, RaggedColumn]) -> None:
    """Raise if some column has not one value for each token."""
    if len(columns) == 1:
        return
    lengths = columns["input_ids"].lengths
    for name, column in columns.items():
        if name != "input_ids" and not np.array_equal(theirs := column.lengths, lengths):
            row = int(np.argmax(theirs != lengths))
            raise ValueError(
                f"column {name!r} is out of step with 'input_ids': row {row} has {theirs[row]} values for "
                f"{lengths[row]} tokens; leave it out (columns=, or drop_columns= when packing) or mend it"
            )

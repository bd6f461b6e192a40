"""Begin and end markers, added where a document lacks them.

A marker is a token like any other: it counts in the lengths, and a span may begin or end with it. What it does to the
other columns: a begin marker is never learnt; an end marker is learnt where the document's last token is; any other
column repeats its neighbour.

    input_ids        [7, 8, 9]      ->  [bos, 7, 8, 9, eos]
    completion_mask  [0, 1, 1]      ->  [0,   0, 1, 1, 1]
    labels           [-100, 8, 9]   ->  [-100, -100, 8, 9, eos]

Empty documents stay empty. Where both markers are one token, a lone one is the begin marker.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from packdata.layout import IGNORE_INDEX
from packdata.planning.plan import Array

from .ragged import RaggedColumn
from .supervision import MASKS, label_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """The tokens that each document must begin and end with, or None.

    Attributes:
        bos: Token id to begin with.
        eos: Token id to end with.
    """

    bos: int | None = None
    eos: int | None = None

    def __bool__(self) -> bool:
        return self.bos is not None or self.eos is not None

    def check(self, column: RaggedColumn) -> None:
        """Raise if a marker is no token id that the column can hold."""
        limits = np.iinfo(column.dtype)
        for name, token in (("bos_token_id", self.bos), ("eos_token_id", self.eos)):
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise ValueError(f"{name} must be an integer, got {token!r}")
            if not 0 <= token <= limits.max:
                raise ValueError(
                    f"{name} {token} does not fit the {column.dtype} column {column.name!r} (0 to {limits.max}): "
                    "cast the column to a wider type"
                )

    def missing(self, tokens: RaggedColumn, rows: Array) -> tuple[Array, Array]:
        """Tell which of some rows lack the begin marker and which the end marker, bool ``(rows,)`` each."""
        first, last = tokens.edges(rows)
        _, start, stop = tokens.bounds(rows)
        filled = stop > start
        no_bos = filled & (first != self.bos) if self.bos is not None else np.zeros(len(rows), np.bool_)
        if self.eos is None:
            return no_bos, np.zeros(len(rows), np.bool_)
        is_bos = (stop - start == 1) & ~no_bos if self.bos == self.eos else False
        return no_bos, filled & ((last != self.eos) | is_bos)

    def dtype(self, column: RaggedColumn) -> np.dtype[Any]:
        """Return the dtype that holds a column's values and its markers': labels may need a sign, or more bits."""
        if column.name != "labels":
            return column.dtype
        return np.promote_types(label_dtype(column.dtype), np.min_scalar_type(self.eos or 0))

    def values(self, column: RaggedColumn, rows: Array) -> tuple[Array, Array]:
        """Return what a column holds at an added begin marker and at an added end marker, one per row."""
        first, last = column.edges(rows)
        if column.name == "input_ids":
            return np.full_like(first, self.bos or 0), np.full_like(last, self.eos or 0)
        if column.name == "labels":
            first, last = first.astype(np.int64), last.astype(np.int64)
            return np.full_like(first, IGNORE_INDEX), np.where(last == IGNORE_INDEX, last, self.eos or 0)
        return (np.zeros_like(first) if column.name in MASKS else first), last


def gather_marked(
    column: RaggedColumn, markers: Markers, missing: tuple[Array, Array], spans: tuple[Array, Array, Array]
) -> Array:
    """Join spans of marked documents, counted with their markers.

    Args:
        column: Any per-token column.
        markers: The markers.
        missing: Per span, whether its document lacks the begin and the end marker.
        spans: Row, first token and number of tokens of each span, markers counted.

    Returns:
        A new array ``(sum(lengths),)``, of the dtype that `Markers.dtype` says.
    """
    rows, starts, lengths = spans
    no_bos, no_eos = missing
    _, first, stop = column.bounds(rows)
    raw = stop - first
    from_raw = np.maximum(starts - no_bos, 0)
    to_raw = np.clip(starts + lengths - no_bos, from_raw, raw)
    tokens = column.gather(rows, from_raw, to_raw - from_raw)
    ends = np.cumsum(lengths, dtype=np.int64)
    with_bos = no_bos & (starts == 0) & (lengths > 0)
    with_eos = no_eos & (starts + lengths == raw + no_bos + no_eos) & (lengths > 0)
    slots = np.concatenate([(ends - lengths)[with_bos], ends[with_eos] - 1])
    bos, eos = markers.values(column, rows)
    joined = np.empty(int(lengths.sum(dtype=np.int64)), markers.dtype(column))
    theirs = np.ones(len(joined), np.bool_)
    theirs[slots] = False
    joined[theirs] = tokens
    joined[slots] = np.concatenate([bos[with_bos], eos[with_eos]])
    return joined

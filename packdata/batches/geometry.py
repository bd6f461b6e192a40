"""Where everything stands: the slot that each document begins at, and the boundaries of the segments.

Two documents of 3 and 5 tokens, aligned to 4, in a row of 16 slots whose padding is cut every 3:

    slots      0  1  2  3 | 4  5  6  7  8  9 10 11 |12 13 14 |15
    document   0  0  0 -1 | 1  1  1  1  1 -1 -1 -1 |-1 -1 -1 |-1
    position   0  1  2  3 | 0  1  2  3  4  5  6  7 | 0  1  2 | 0
    cu_seqlens 0            4                       12        15  16

All of it is worked out on numbers per document and per row; what is done per slot is left to numpy's `repeat`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from packdata.layout import INT32_MAX, Array
from packdata.planning.edge import no_type_check
from packdata.planning.rounding import round_up

_SHORT = 128  # slots of a segment below which a slice of its own costs more than it saves


@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The rules for rows and segments, as `PackingCollator` documents them.

    Raises:
        ValueError: If a number is no positive integer, or they contradict each other.
    """

    layout: Literal["stream", "rows"] = "stream"
    pad_to: int | None = None
    pad_to_multiple_of: int | None = None
    max_documents: int | None = None
    max_seqlen: int | None = None
    padding_segment: int = 512
    align: int = 1

    def __post_init__(self) -> None:
        if self.layout not in ("stream", "rows"):
            raise ValueError(f'layout must be "stream" or "rows", got {self.layout!r}')
        for name in ("pad_to", "pad_to_multiple_of", "max_documents", "max_seqlen", "padding_segment", "align"):
            value = getattr(self, name)
            optional = name not in ("padding_segment", "align")
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not (optional and value is None) and (not whole or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1{' or None' * optional}, got {value!r}")
            object.__setattr__(self, name, value if value is None else int(value))  # numpy's would wrap around
        if self.pad_to and self.pad_to_multiple_of and self.pad_to % self.pad_to_multiple_of:
            raise ValueError(f"pad_to={self.pad_to} is no multiple of pad_to_multiple_of={self.pad_to_multiple_of}")

    @property
    def piece(self) -> int:
        """Most slots of a piece of padding."""
        return min(self.padding_segment, self.max_seqlen or self.padding_segment)

    @property
    def unit(self) -> int:
        """Rows are a multiple of this many slots, and at least one of it."""
        return self.pad_to or self.pad_to_multiple_of or self.align

    @property
    def constant_max_seqlen(self) -> int | None:
        """The longest segment that batches may have, where all of them name the same."""
        return self.max_seqlen or (self.pad_to if self.max_documents else None)

    def offsets(self, rows: int) -> int | None:
        """Count the offsets of every batch of so many rows, if their number is fixed.

        A row has at most ``d = min(max_documents, pad_to)`` documents, and a slot more for a document is one less for
        padding: no row has more segments than ``d`` documents of one slot and the rest in pieces of padding.
        """
        if self.pad_to is None or self.max_documents is None:
            return None
        most = min(self.max_documents, self.pad_to)
        return rows * (most + round_up(self.pad_to - most, self.piece) // self.piece) + 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Geometry:
    """What stands where in the flattened slots of one batch, all int64.

    Attributes:
        rows: Rows of the batch.
        width: Slots of a row.
        starts: First slot of each document, shape ``(documents,)``.
        lengths: Tokens of each document, none 0, shape ``(documents,)``.
        bounds: Where segments begin, ending with the number of slots, shape ``(segments+1,)``.
        segment_sizes: Slots of each segment, shape ``(segments,)``.
        max_seqlen: The largest of them.
        token_slots: The slot of each token; a slice from 0 on if they stand side by side.
    """

    rows: int
    width: int
    starts: Array
    lengths: Array
    bounds: Array
    segment_sizes: Array
    max_seqlen: int
    token_slots: slice | Array

    def place(
        self, write: Callable[[Array], object], *, pad: int | float, like: Array | None = None
    ) -> tuple[Array, Array]:
        """Make an array over the slots of which ``write`` fills in the tokens.

        Args:
            write: Fills the array that it is given: one value per token, end to end.
            pad: What stands on all other slots.
            like: Gives dtype and the shape of one value; int64 numbers if None.

        Returns:
            The array over the slots, shape ``(rows, width, *tail)``, and what was written, shape ``(tokens, *tail)``: a
            view of it where tokens stand side by side from the first slot on, for nothing is then written twice.
        """
        dtype, tail = (np.dtype(np.int64), ()) if like is None else (like.dtype, like.shape[1:])
        slots = np.empty((self.rows * self.width, *tail), dtype)
        if isinstance(self.token_slots, slice):
            tokens = slots[self.token_slots]
            slots[len(tokens) :] = pad
            write(tokens)
        else:
            tokens = np.empty((len(self.token_slots), *tail), dtype)
            write(tokens)
            slots[:] = pad
            slots[self.token_slots] = tokens
        return slots.reshape(self.rows, self.width, *tail), tokens

    def position_ids(self, offset: int) -> Array:
        """Count the slots of each segment from ``offset``, shape ``(rows, width)``."""
        sizes, slots = self.segment_sizes, self.rows * self.width
        if len(sizes) * _SHORT > slots:  # many short segments: no step of Python for each
            positions = np.arange(offset, slots + offset)
            positions -= np.repeat(self.bounds[:-1], sizes)
        else:  # one pass over the slots in place of three
            ramp = np.arange(offset, self.max_seqlen + offset)
            positions = np.concatenate([ramp[:size] for size in sizes.tolist()])
        return positions.reshape(self.rows, self.width)

    def document_ids(self) -> Array:
        """Number each slot's document, -1 on padding, shape ``(rows, width)``."""
        documents, slots = len(self.lengths), self.rows * self.width
        if isinstance(self.token_slots, slice) and self.token_slots.stop == slots:
            return np.arange(documents).repeat(self.lengths).reshape(self.rows, self.width)
        numbers = np.arange(2 * documents + 1) >> 1  # padding, a document, padding, a document, …, padding
        numbers[::2] = -1
        edges = np.zeros(len(numbers) + 1, np.int64)
        edges[1:-1:2], edges[2:-1:2], edges[-1] = self.starts, self.starts + self.lengths, slots
        return np.repeat(numbers, edges[1:] - edges[:-1]).reshape(self.rows, self.width)


def lay_out(
    lengths: Array, ends: Array, feature_of: Array, *, features: int, reach_of: Array | None, shape: Shape
) -> Geometry:
    """Place documents side by side in their rows, and cut the padding at each row's end into pieces.

    Args:
        lengths: Tokens of each document, none 0, shape ``(documents,)``.
        ends: Their running sum, shape ``(documents,)``.
        feature_of: The feature of each document, never falling, shape ``(documents,)``.
        features: Number of features.
        reach_of: Documents of one number make one segment (never across rows), shape ``(documents,)``; None: each
            document is its own.
        shape: The rules.

    Raises:
        ValueError: If a row or a segment does not fit, naming the first feature that is too much, or if there are
            more slots than int32 counts.
    """
    by_rows = shape.layout == "rows"
    rows = max(features, 1) if by_rows else 1
    row_of = feature_of if by_rows else np.zeros(len(lengths), np.int64)
    sizes, up_to = lengths, ends
    if shape.align > 1:
        sizes = round_up(lengths, shape.align)
        up_to = sizes.cumsum()
    used, in_row = _fill_rows(up_to, row_of, rows)
    _check_rows(in_row, row_of, feature_of, shape)
    row_slots = used.tolist()
    width = max(round_up(max(row_slots), shape.unit), shape.unit)
    if rows * width > INT32_MAX:
        raise ValueError(
            f"{rows} rows of {width} slots are over {INT32_MAX}, the most that cu_seqlens (int32) can count"
        )
    starts = in_row - sizes
    if rows > 1:
        starts += row_of * width
    heads = starts if reach_of is None else starts[np.diff(reach_of, prepend=-1) != 0]
    padding = _padding_starts(used, width, shape.piece) if min(row_slots) < width else used[:0]
    bounds = np.concatenate([heads, padding, [rows * width]])
    if len(padding):
        bounds.sort()
    segment_sizes = bounds[1:] - bounds[:-1]
    max_seqlen = max(segment_sizes.tolist())
    _check_segments(bounds, starts, feature_of, shape)
    return Geometry(
        rows=rows,
        width=width,
        starts=starts,
        lengths=lengths,
        bounds=bounds,
        segment_sizes=segment_sizes,
        max_seqlen=max_seqlen,
        token_slots=_token_slots(starts, lengths, ends),
    )


def _token_slots(starts: Array, lengths: Array, ends: Array) -> slice | Array:
    tokens = int(ends[-1]) if len(ends) else 0
    if tokens == 0 or starts[-1] + lengths[-1] == tokens:  # the last tells: documents keep their order, never overlap
        return slice(0, tokens)
    return cast(Array, np.arange(tokens) + np.repeat(starts - (ends - lengths), lengths))


def _fill_rows(ends: Array, row_of: Array, rows: int) -> tuple[Array, Array]:
    """Count each row's used slots, and those up to the end of each document; ``ends``: the same in one long row."""
    if rows == 1:
        return (ends[-1:] if len(ends) else np.zeros(1, np.int64)), ends
    before = np.concatenate([[0], ends])[np.searchsorted(row_of, np.arange(rows + 1))]
    return before[1:] - before[:-1], ends - before[row_of]


def _padding_starts(used: Array, width: int, piece: int) -> Array:
    pieces = -((used - width) // piece)
    row = np.repeat(np.arange(len(used)), pieces)
    place = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return cast(Array, row * width + used[row] + place * piece)


def _check_rows(in_row: Array, row_of: Array, feature_of: Array, shape: Shape) -> None:
    """Hold each row against ``pad_to`` and ``max_documents``; ``in_row``: the row's slots up to a document's end."""
    if shape.pad_to is not None and in_row.max(initial=0) > shape.pad_to:
        index = int(np.argmax(in_row > shape.pad_to))
        raise ValueError(
            f"feature {feature_of[index]}: input_ids bring row {row_of[index]} to {in_row[index]} slots "
            f"(align={shape.align}), over pad_to={shape.pad_to}: plan packs of at most pad_to slots, or raise pad_to"
        )
    if shape.max_documents is not None:
        place = np.arange(len(row_of)) - np.searchsorted(row_of, row_of)
        if place.max(initial=-1) >= shape.max_documents:
            index = int(np.argmax(place >= shape.max_documents))
            raise ValueError(
                f"feature {feature_of[index]} brings row {row_of[index]} to {place[index] + 1} documents, over "
                f"max_documents={shape.max_documents}: plan with the same max_documents, or raise it"
            )


def _check_segments(bounds: Array, starts: Array, feature_of: Array, shape: Shape) -> None:
    if shape.max_seqlen is None:
        return
    sizes = np.diff(bounds)
    if sizes.max() > shape.max_seqlen:
        index = int(np.argmax(sizes))
        feature = feature_of[np.searchsorted(starts, bounds[index])]
        raise ValueError(
            f"feature {feature}: input_ids make a segment of {sizes[index]} slots (align={shape.align}), over "
            f"max_seqlen={shape.max_seqlen}: attention would leave out the rest; raise max_seqlen or split documents"
        )

"""Where everything stands: which slot each document begins at, and where the segments' boundaries are.

Two documents of 3 and 5 tokens, aligned to 4, in a row of 16 slots whose padding is cut every 3:

    slots      0  1  2  3 | 4  5  6  7  8  9 10 11 |12 13 14 |15
    document   0  0  0 -1 | 1  1  1  1  1 -1 -1 -1 |-1 -1 -1 |-1
    position   0  1  2  3 | 0  1  2  3  4  5  6  7 | 0  1  2 | 0
    cu_seqlens 0            4                       12        15  16

Everything is worked out on numbers per document and per row; only `position_ids` and `document_ids` touch the slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Geometry:
    """The shape of a batch and what stands where in its flattened slots, all int64.

    Attributes:
        rows: Rows of the batch.
        width: Slots of a row.
        starts: First slot of each document, shape ``(documents,)``.
        lengths: Tokens of each document, shape ``(documents,)``.
        bounds: Where segments begin, ending with the number of slots, shape ``(segments+1,)``.
    """

    rows: int
    width: int
    starts: Array
    lengths: Array
    bounds: Array

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.rows * self.width


def round_up(value: Any, multiple: int) -> Any:
    """Round up to a multiple: an int, or an array of them."""
    return -(-value // multiple) * multiple


def lay_out(
    lengths: Array, row_of: Array, segment_of: Array | None, *, rows: int, width: int | None, unit: int, align: int, piece: int
) -> Geometry:
    """Place documents side by side in their rows, and cut the padding at each row's end into pieces.

    Args:
        lengths: Tokens of each document, none 0, shape ``(documents,)``.
        row_of: The row of each document, never falling, shape ``(documents,)``.
        segment_of: Documents of one number are one segment (never across rows), shape ``(documents,)``; None: each
            document is its own.
        rows: Rows of the batch.
        width: Slots of a row, or None for as few as the fullest needs.
        unit: Without ``width``: rows are a multiple of this, and at least one of it.
        align: Each document's slots are rounded up to a multiple of this.
        piece: Most slots of a piece of padding.

    Raises:
        ValueError: If a row does not fit ``width``.
    """
    sizes = round_up(lengths, align)
    used = np.bincount(row_of, weights=sizes, minlength=rows).astype(np.int64)
    fullest = int(used.max(initial=0))
    if width is None:
        width = max(round_up(fullest, unit), unit)
    elif fullest > width:
        row = int(np.argmax(used > width))
        raise ValueError(
            f"row {row} needs {used[row]} slots ({np.count_nonzero(row_of == row)} documents, align={align}), "
            f"over pad_to={width}; plan packs of at most {width} slots or raise pad_to"
        )
    in_row = np.cumsum(sizes) - sizes - (np.cumsum(used) - used)[row_of]
    starts = row_of * width + in_row
    heads = starts if segment_of is None else starts[np.diff(segment_of, prepend=-1) != 0]
    bounds = np.append(np.sort(np.concatenate([heads, _padding_starts(used, width, piece)])), rows * width)
    return Geometry(rows=rows, width=width, starts=starts, lengths=lengths, bounds=bounds)


def _padding_starts(used: Array, width: int, piece: int) -> Array:
    pieces = -(-(width - used) // piece)
    row = np.repeat(np.arange(len(used)), pieces)
    place = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return row * width + used[row] + place * piece


def offsets_capacity(rows: int, width: int, max_documents: int, piece: int) -> int:
    """Count the offsets that hold every batch of a fixed shape: no more documents and pieces of padding can stand.

    Each row has at most ``d = min(max_documents, width)`` documents, and one slot more for a document is one less for
    padding, so a row never has more segments than ``d`` and ``width - d`` slots of padding make.
    """
    most = min(max_documents, width)
    return rows * (most + round_up(width - most, piece) // piece) + 1

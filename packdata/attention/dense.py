"""The dense mask: slots by slots, for eager attention and SDPA."""

from typing import Any

import torch
from torch import Tensor

from .intervals import KeyIntervals, key_intervals


def document_mask(
    cu_seqlens: Any,
    *,
    rows: int = 1,
    slots: int | None = None,
    causal: bool = True,
    window: int | None = None,
    prefix_lengths: Any = None,
) -> Tensor:
    """Build the dense mask of a packed batch.

    Args:
        cu_seqlens: Segment boundaries over the flattened slots of all rows, shape ``(segments + 1,)``.
        rows: Rows of the batch.
        slots: Slots of a row, or None to read the last offset (which waits for a device tensor).
        causal: Whether a query sees only itself and what stands before it.
        window: Most keys in each direction, the query's own included (see :mod:`packdata.attention.intervals`).
        prefix_lengths: Slots at the start of each segment that see each other, shape ``(segments,)``.

    Returns:
        bool, shape ``(rows, 1, slots, slots)``, True = attend, on the device of ``cu_seqlens``. Every query sees at
        least itself.

    Raises:
        ValueError: If the boundaries are no boundaries of such rows, or the options do not go together.

    Example:
        >>> document_mask([0, 2, 3])[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    intervals = key_intervals(
        cu_seqlens, rows=rows, slots=slots, causal=causal, window=window, prefix_lengths=prefix_lengths
    )
    return dense_mask(intervals)


def dense_mask(intervals: KeyIntervals) -> Tensor:
    """Write intervals out as a bool mask ``(rows, 1, slots, slots)``."""
    keys = torch.arange(intervals.first.shape[-1], device=intervals.first.device, dtype=torch.int32)
    seen = (intervals.first.unsqueeze(-1) <= keys) & (keys < intervals.end.unsqueeze(-1))
    return seen.unsqueeze(1)

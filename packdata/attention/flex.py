"""The document mask for flex attention: a ``mask_mod``, and a ``BlockMask`` that never builds slots times slots."""

from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .blocks import MaskMod, block_mask_from_intervals
from .intervals import KeyIntervals, key_intervals


def document_mask_mod(
    cu_seqlens: Any,
    *,
    rows: int = 1,
    slots: int | None = None,
    causal: bool = True,
    window: int | None = None,
    prefix_lengths: Any = None,
) -> MaskMod:
    """Make flex attention's predicate ``(batch, head, query, key) -> bool`` of a packed batch.

    Args:
        cu_seqlens: Segment boundaries over the flattened slots of all rows, shape ``(segments + 1,)``.
        rows: Rows of the batch.
        slots: Slots of a row, or None to read the last offset (which waits for a device tensor).
        causal: Whether a query sees only itself and what stands before it.
        window: Most keys in each direction, the query's own included (see :mod:`packdata.attention.intervals`).
        prefix_lengths: Slots at the start of each segment that see each other, shape ``(segments,)``.

    Returns:
        The predicate. It captures two int32 tensors of one entry per slot, on the device of ``cu_seqlens``.

    Raises:
        ValueError: If the boundaries are no boundaries of such rows, or the options do not go together.

    Example:
        >>> import torch
        >>> zero, query, key = torch.tensor(0), torch.tensor(2), torch.tensor(1)
        >>> document_mask_mod([0, 2, 3])(zero, zero, query, key)
        tensor(False)
    """
    return _mask_mod(
        key_intervals(cu_seqlens, rows=rows, slots=slots, causal=causal, window=window, prefix_lengths=prefix_lengths)
    )


def document_block_mask(
    cu_seqlens: Any,
    *,
    rows: int = 1,
    slots: int | None = None,
    causal: bool = True,
    window: int | None = None,
    prefix_lengths: Any = None,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """Build flex attention's ``BlockMask`` of a packed batch from its boundaries.

    The tables equal those of ``create_block_mask`` on :func:`document_mask_mod`, in O(slots + blocks²) time and space.

    Args:
        cu_seqlens: Segment boundaries over the flattened slots of all rows, shape ``(segments + 1,)``.
        rows: Rows of the batch.
        slots: Slots of a row, or None to read the last offset (which waits for a device tensor).
        causal: Whether a query sees only itself and what stands before it.
        window: Most keys in each direction, the query's own included (see :mod:`packdata.attention.intervals`).
        prefix_lengths: Slots at the start of each segment that see each other, shape ``(segments,)``.
        block_size: Slots of a query block and of a key block.

    Returns:
        The mask, shape ``(rows, 1, slots, slots)``, on the device of ``cu_seqlens``.

    Raises:
        ValueError: If the boundaries are no boundaries of such rows, or the options do not go together.

    Example:
        >>> document_block_mask([0, 100, 130]).shape
        (1, 1, 130, 130)
    """
    intervals = key_intervals(
        cu_seqlens, rows=rows, slots=slots, causal=causal, window=window, prefix_lengths=prefix_lengths
    )
    keys = intervals.first.shape[-1]
    return block_mask_from_intervals([intervals], _mask_mod(intervals), keys=keys, block_size=block_size)


def _mask_mod(intervals: KeyIntervals) -> MaskMod:
    rows, slots = intervals.first.shape
    first, end = intervals.first.flatten(), intervals.end.flatten()
    stride = slots if rows > 1 else 0  # one row serves any number of equal ones

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slot = batch * stride + query
        return (first[slot] <= key) & (key < end[slot])

    return mask_mod

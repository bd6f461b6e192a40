"""Which keys each query may see: one interval per query, for every kind of document mask.

A document is a run of slots, so what a query sees inside its own document is a run as well:

    kind                       first key                    end (one past the last key)
    causal                     start                        q + 1
    bidirectional              start                        end of the document
    causal, window w           max(start, q - w + 1)        q + 1
    bidirectional, window w    max(start, q - w + 1)        min(end of the document, q + w)
    prefix p, then causal      start                        max(q + 1, start + p)

Both columns never decrease from one query to the next, and every interval holds its own query. The dense mask, the
``mask_mod`` and the block tables are all read off these two columns, so they cannot disagree.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packdata.layout import INT32_MAX


@dataclass(frozen=True, kw_only=True)
class KeyIntervals:
    """The keys of every query, as a half-open interval of the query's own row.

    Attributes:
        first: First visible key, int32, shape ``(rows, slots)``.
        end: One past the last visible key, int32, shape ``(rows, slots)``.
    """

    first: Tensor
    end: Tensor


def key_intervals(
    cu_seqlens: Any,
    *,
    rows: int = 1,
    slots: int | None = None,
    causal: bool = True,
    window: int | None = None,
    prefix_lengths: Any = None,
) -> KeyIntervals:
    """Say for every query of a packed batch which keys it may see.

    Nothing here waits for a device when ``slots`` is given, and no shape depends on the boundaries.

    Args:
        cu_seqlens: Segment boundaries over the flattened ``rows * slots`` slots, any integer dtype, shape
            ``(segments + 1,)``; repeated offsets are empty segments. Values on the host are checked, save within
            ``torch.compile``.
        rows: Rows of the batch; no segment may cross from one row into the next.
        slots: Slots of a row, or None to read the last offset (which waits for a device tensor).
        causal: Whether a query sees only itself and what stands before it.
        window: With ``causal``, the last ``window`` keys, the query's own included; without, ``|q - k| < window``.
        prefix_lengths: Slots at the start of each segment that see each other in both directions, shape
            ``(segments,)``; causal only, and not together with ``window``.

    Returns:
        The intervals, on the device of ``cu_seqlens``.

    Raises:
        ValueError: If the boundaries are no boundaries of such rows, or the options do not go together.

    Example:
        >>> intervals = key_intervals([0, 2, 5])
        >>> intervals.first.tolist(), intervals.end.tolist()
        ([[0, 0, 2, 2, 2]], [[1, 2, 3, 4, 5]])
    """
    offsets = _as_offsets(cu_seqlens)
    _check_options(rows, causal, window, prefix_lengths)
    slots = _slots_per_row(offsets, rows) if slots is None else slots
    if _can_look_at(offsets):
        _check_offsets(offsets, rows, slots)
    flat = torch.arange(rows * slots, device=offsets.device, dtype=torch.int32)
    segment = torch.searchsorted(offsets, flat, right=True) - 1
    first, end = offsets[segment], offsets[segment + 1]
    prefix_end = None
    if prefix_lengths is not None:
        prefix_end = first + _as_prefixes(prefix_lengths, offsets)[segment]
    if window is not None:
        window = min(window, slots)  # a wider one hides nothing, but int32 would wrap around
        first, end = torch.maximum(first, flat - (window - 1)), torch.minimum(end, flat + window)
    if causal:
        end = flat + 1
    if prefix_end is not None:
        end = torch.maximum(end, prefix_end)
    row_start = (torch.arange(rows, device=offsets.device, dtype=torch.int32) * slots).unsqueeze(1)
    return KeyIntervals(first=first.view(rows, slots) - row_start, end=end.view(rows, slots) - row_start)


def _as_offsets(cu_seqlens: Any) -> Tensor:
    if isinstance(cu_seqlens, dict):
        raise ValueError(f"cu_seqlens must be boundaries, got a {type(cu_seqlens).__name__}: give batch.cu_seqlens")
    offsets = torch.as_tensor(cu_seqlens)
    if offsets.ndim != 1 or len(offsets) == 0:
        raise ValueError(f"cu_seqlens must be 1-D with at least the offset 0, got shape {tuple(offsets.shape)}")
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        raise ValueError(f"cu_seqlens must be integers, got dtype {offsets.dtype}")
    if offsets.itemsize > 4 and _can_look_at(offsets):
        most = int(offsets.to(torch.int64).max())
        if most > INT32_MAX:
            raise ValueError(f"cu_seqlens must fit int32, up to {INT32_MAX} slots, got {most}")
    return offsets.to(torch.int32).contiguous()


def _can_look_at(tensor: Tensor) -> bool:
    """Whether values can be checked: not where that waits for a device or breaks a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _slots_per_row(offsets: Tensor, rows: int) -> int:
    total = int(offsets[-1])
    if total % rows:
        raise ValueError(f"cu_seqlens must end at a multiple of rows={rows}, got {total}")
    return total // rows


def _check_options(rows: int, causal: bool, window: int | None, prefix_lengths: Any) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows must be an integer of at least 1, got {rows!r}")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be None or an integer of at least 1, got {window!r}")
    if prefix_lengths is not None and not causal:
        raise ValueError("prefix_lengths make a part of a causal mask bidirectional: leave them out with causal=False")
    if prefix_lengths is not None and window is not None:
        raise ValueError("prefix_lengths and window exclude each other: give one of them")


def _check_offsets(offsets: Tensor, rows: int, slots: int) -> None:
    if int(offsets[0]) != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {int(offsets[0])}")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(falls.int().argmax())
        raise ValueError(
            f"cu_seqlens must not decrease, got {int(offsets[at])} then {int(offsets[at + 1])} at segment {at}; "
            "to pad them, repeat the last offset"
        )
    if int(offsets[-1]) != rows * slots:
        raise ValueError(f"cu_seqlens must end at rows * slots = {rows} * {slots}, got {int(offsets[-1])}")
    ends = torch.arange(1, rows + 1, dtype=torch.int32) * slots
    missing = ~torch.isin(ends, offsets)
    if missing.any():
        row = int(missing.int().argmax())
        raise ValueError(
            f"cu_seqlens must have a boundary at the end of each row, got none at {int(ends[row])} (row {row})"
        )


def _as_prefixes(prefix_lengths: Any, offsets: Tensor) -> Tensor:
    prefixes = torch.as_tensor(prefix_lengths)
    if prefixes.shape != (len(offsets) - 1,):
        raise ValueError(
            f"prefix_lengths must have one entry for each of the {len(offsets) - 1} segments of cu_seqlens "
            f"(0 for padding), got shape {tuple(prefixes.shape)}"
        )
    if prefixes.is_floating_point() or prefixes.is_complex() or prefixes.dtype == torch.bool:
        raise ValueError(f"prefix_lengths must be integers, got dtype {prefixes.dtype}")
    if _can_look_at(prefixes) and _can_look_at(offsets):
        lengths = offsets[1:] - offsets[:-1]
        wrong = (prefixes < 0) | (prefixes > lengths)
        if wrong.any():
            at = int(wrong.int().argmax())
            raise ValueError(
                f"prefix_lengths must be from 0 to the length of their segment, got {int(prefixes[at])} for segment "
                f"{at} of {int(lengths[at])} slots"
            )
    return prefixes.to(offsets.device, torch.int32)

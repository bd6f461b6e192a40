"""From what others have packed to lengths."""

from typing import Any

import numpy as np

from .arrays import as_integers, as_rows, run_bounds, same_kind


def lengths_from_position_ids(position_ids: Any) -> Any:
    """Read document lengths off position ids: a document goes on as long as the position grows by one.

    The first position need not be 0 (a shard, or a document's continuation), and documents of one token are seen
    (``0 0 0`` is three of them, so padding must not be filled with zeros).

    Args:
        position_ids: Integers, shape ``(tokens,)`` or ``(rows, tokens)``.

    Returns:
        int64, shape ``(documents,)``; they add up to the number of slots.

    Raises:
        ValueError: If they are not integers of one or two dimensions.

    Example:
        >>> lengths_from_position_ids([4, 5, 6, 0, 1, 0, 0])
        array([3, 2, 1, 1])
    """
    rows = as_rows(position_ids, "position_ids")
    return same_kind(position_ids, np.diff(run_bounds(rows, np.diff(rows.astype(np.int64), axis=1) != 1)))


def lengths_from_segment_ids(segment_ids: Any, *, padding: Any = 0) -> Any:
    """Read document lengths off segment ids (``1 1 2 2 0``): a run of one id is a document, padding is left out.

    Args:
        segment_ids: Integers, shape ``(tokens,)`` or ``(rows, tokens)``; never booleans, which cannot tell two
            documents apart.
        padding: The id of padding: 0 in JAX's libraries, axolotl and LLaMA-Factory, -1 in levanter and llm-foundry.

    Returns:
        int64, shape ``(documents,)``.

    Raises:
        ValueError: If they or ``padding`` are not integers, or some are negative although ``padding`` is not.

    Example:
        >>> lengths_from_segment_ids([[1, 1, 2, 0], [1, 2, 2, 2]])
        array([2, 1, 1, 3])
    """
    rows = as_rows(segment_ids, "segment_ids")
    if isinstance(padding, bool) or not isinstance(padding, int | np.integer):
        raise ValueError(f"padding must be an integer, the id of padding, got {padding!r}")
    if padding >= 0 and rows.size and rows.min() < 0:
        raise ValueError(
            f"segment_ids hold {rows.min()}, but padding={padding} says that ids are not negative; where -1 is the "
            "padding and documents count from 0, pass padding=-1"
        )
    bounds = run_bounds(rows, rows[:, 1:] != rows[:, :-1])
    kept = rows.reshape(-1)[bounds[:-1]] != padding
    return same_kind(segment_ids, np.diff(bounds)[kept])


def lengths_from_cu_seqlens(cu_seqlens: Any) -> Any:
    """Read document lengths off offsets; segments without a slot and a tail of -1 are left out.

    Args:
        cu_seqlens: Integers that start at 0 and never fall, shape ``(segments+1,)``. To give them a fixed size, some
            repeat the last offset and some append -1.

    Returns:
        int64, shape ``(segments with a slot,)``.

    Raises:
        ValueError: If the leading 0 is missing, or an offset is below the one before.

    Example:
        >>> lengths_from_cu_seqlens([0, 4, 6, 6, 6])
        array([4, 2])
        >>> lengths_from_cu_seqlens([0, 4, 6, -1, -1])
        array([4, 2])
    """
    offsets = as_integers(cu_seqlens, "cu_seqlens").astype(np.int64)
    if offsets.ndim != 1:
        raise ValueError(f"cu_seqlens must be 1-D, got shape {offsets.shape}; read stacked rows one at a time")
    used = offsets[: len(offsets) - int(np.argmax(offsets[::-1] != -1))] if np.any(offsets != -1) else offsets[:0]
    if len(used) == 0 or used[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {used[:1].tolist() or 'no offset'}")
    lengths = np.diff(used)
    if np.any(lengths < 0):
        index = int(np.argmax(lengths < 0)) + 1
        raise ValueError(f"cu_seqlens must not fall, got {used[index]} after {used[index - 1]} at index {index}")
    return same_kind(cu_seqlens, lengths[lengths > 0])

"""From lengths to what attention and models read."""

from typing import Any

import numpy as np

from .arrays import same_kind
from .lengths import INT32_MAX, as_lengths


def cu_seqlens_from_lengths(lengths: Any) -> Any:
    """Say where each document begins, and where the last one ends.

    Args:
        lengths: Tokens per document, shape ``(documents,)``.

    Returns:
        int32, shape ``(documents+1,)``, starts at 0.

    Raises:
        ValueError: If ``lengths`` are no lengths, or add up past int32, which attention kernels demand.

    Example:
        >>> cu_seqlens_from_lengths([3, 1, 2])
        array([0, 3, 4, 6], dtype=int32)
    """
    array = as_lengths(lengths)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(array, out=offsets[1:], dtype=np.int64)
    if offsets[-1] > INT32_MAX:
        raise ValueError(f"lengths add up to {offsets[-1]} tokens, cu_seqlens is int32 and holds up to {INT32_MAX}")
    return same_kind(lengths, offsets.astype(np.int32))


def document_ids_from_lengths(lengths: Any) -> Any:
    """Number each token's document.

    Args:
        lengths: Tokens per document, shape ``(documents,)``.

    Returns:
        int64, shape ``(tokens,)``: 0 for the tokens of the first document, 1 for those of the second, …

    Example:
        >>> document_ids_from_lengths([3, 1, 2])
        array([0, 0, 0, 1, 2, 2])
    """
    array = as_lengths(lengths)
    return same_kind(lengths, np.repeat(np.arange(len(array)), array.astype(np.int64, copy=False)))


def position_ids_from_lengths(lengths: Any) -> Any:
    """Count each document's tokens from 0.

    Args:
        lengths: Tokens per document, shape ``(documents,)``.

    Returns:
        int64, shape ``(tokens,)``.

    Example:
        >>> position_ids_from_lengths([3, 1, 2])
        array([0, 1, 2, 0, 0, 1])
    """
    array = as_lengths(lengths).astype(np.int64, copy=False)
    starts = np.cumsum(array) - array
    return same_kind(lengths, np.arange(array.sum()) - np.repeat(starts, array))

"""Lengths, and what every file here knows of them."""

from typing import Any, TypeAlias

import numpy as np

IGNORE_INDEX = -100
"""The target of a slot that predicts nothing (the default ``ignore_index`` of torch's cross-entropy)."""

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""Any numpy array."""

INT32_MAX = int(np.iinfo(np.int32).max)
"""The most that ``cu_seqlens`` can count: attention kernels demand int32."""

MOST_TOKENS = 2**62
"""Lengths add up to less than this, so that no sum of them overflows int64."""


def as_lengths(lengths: Any, *, name: str = "lengths") -> Array:
    """View or convert ``lengths`` as a 1-D numpy array of non-negative integers, in its own dtype.

    Args:
        lengths: Tokens per document: any 1-D integer array-like, shape ``(documents,)``.
        name: What to call the argument in an error.

    Returns:
        The same numbers; no copy where none is needed. An empty list gives an empty int64 array.

    Raises:
        ValueError: If it is ragged, not 1-D, not of integers, has a negative entry, or adds up to 2⁶² and more.
    """
    if hasattr(lengths, "lengths"):  # documents
        raise ValueError(f"{name} must be a 1-D array of integers, got {type(lengths).__name__}: give its lengths")
    try:
        array = np.asarray(lengths)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{name} must be a 1-D array of integers, one number per document (not its tokens), got "
            f"{type(lengths).__name__}: {error}"
        ) from None
    if array.ndim != 1:
        raise ValueError(f"{name} must be 1-D, one number per document, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64) if array.dtype.kind not in "iu" else array
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    if array.dtype.kind == "i" and array.min() < 0:
        index = int(np.argmax(array < 0))
        raise ValueError(f"{name} must not be negative, got {array[index]} for document {index}")
    if int(array.max()) * len(array) >= MOST_TOKENS and array.sum(dtype=np.float64) >= MOST_TOKENS:
        index = int(np.argmax(array))
        raise ValueError(
            f"{name} must add up to less than 2**62, or sums would not fit 64 bits; the largest is {array[index]} "
            f"for document {index}: were these bytes read with the dtype that they were written with?"
        )
    return array

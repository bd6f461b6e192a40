"""Lengths, and the ways to write them down: ``cu_seqlens``, document ids, position ids."""

from typing import Any

import numpy as np

IGNORE_INDEX = -100
"""The target of a slot that predicts nothing (the default ``ignore_index`` of torch's cross-entropy)."""


def as_lengths(lengths: Any, *, name: str = "lengths") -> np.ndarray[Any, np.dtype[Any]]:
    """View or convert ``lengths`` as a 1-D numpy array of non-negative integers, in its own dtype.

    Args:
        lengths: Tokens per document: any 1-D integer array-like, shape ``(documents,)``.
        name: What to call the argument in an error.

    Returns:
        The same numbers; no copy where none is needed. An empty list gives an empty int64 array.

    Raises:
        ValueError: If it is ragged, not 1-D, not of integers, or has a negative entry.
    """
    try:
        array = np.asarray(lengths)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be a 1-D array of integers, got {type(lengths).__name__}: {error}") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must be 1-D, one number per document, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64) if array.dtype.kind not in "iu" else array
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    if array.dtype.kind == "i" and array.min() < 0:
        index = int(np.argmax(array < 0))
        raise ValueError(f"{name} must not be negative, got {array[index]} for document {index}")
    return array

"""Masks and labels of documents, folded into the one column that trainers keep: ``labels``."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from packdata.layout import IGNORE_INDEX
from packdata.planning.plan import Array

MASKS = ("completion_mask", "assistant_masks")
"""Columns that say which tokens are to be learnt (un-shifted, non-zero = learnt)."""


def is_supervised(names: Collection[str]) -> bool:
    """Tell whether some column says what is to be learnt; if none does, every token is."""
    return "labels" in names or any(mask in names for mask in MASKS)


def fold_labels(read: Callable[[str], Array], names: Collection[str], lengths: Array) -> Array:
    """Make labels of whatever columns there are: a token is learnt where labels and masks all say so.

    Args:
        read: Gives a per-token column of the joined spans by its name.
        names: The columns there are.
        lengths: Tokens of each span; its first token is never a target.

    Returns:
        Un-shifted labels, a new array of a signed dtype: the token where it is learnt, else ``IGNORE_INDEX``.

    Example:
        >>> columns = {"input_ids": np.array([1, 2, 3, 4, 5]), "completion_mask": np.array([0, 1, 1, 1, 1])}
        >>> fold_labels(columns.__getitem__, columns, np.array([3, 2])).tolist()
        [-100, 2, 3, -100, 5]
    """
    base = read("labels" if "labels" in names else "input_ids")
    labels = base.astype(label_dtype(base.dtype))
    for mask in MASKS:
        if mask in names:
            labels[read(mask) == 0] = IGNORE_INDEX
    filled = lengths > 0
    labels[(np.cumsum(lengths, dtype=np.int64) - lengths)[filled]] = IGNORE_INDEX
    return labels


def label_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the narrowest signed dtype that holds the token ids and ``IGNORE_INDEX``."""
    return np.dtype(np.int64) if dtype == np.uint64 else np.promote_types(dtype, np.int8)

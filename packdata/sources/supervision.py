"""Masks and labels of documents, folded into the one column that trainers keep: ``labels``."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from packdata.layout import IGNORE_INDEX
from packdata.planning import Pack
from packdata.planning.plan import Array

from .ragged import RaggedColumn

MASKS = ("completion_mask", "assistant_masks")
"""Columns that say which tokens are to be learnt (un-shifted, non-zero = learnt)."""

Read = Callable[[str], Array]


def is_supervised(names: Collection[str]) -> bool:
    """Tell whether some column says what is to be learnt; if none does, every token is."""
    return not {"labels", *MASKS}.isdisjoint(names)


def learnt(read: Read, names: Collection[str], lengths: Array) -> Array:
    """Tell which tokens of joined spans are targets: where labels and masks all say so.

    Args:
        read: Gives a per-token column of the joined spans by its name.
        names: The columns there are.
        lengths: Tokens of each span, ``(spans,)``; the first token of a span is never a target.

    Returns:
        bool, ``(sum(lengths),)``.

    Example:
        >>> mask = {"completion_mask": np.array([0, 1, 1, 1, 1])}
        >>> learnt(mask.__getitem__, mask, np.array([3, 2])).astype(int).tolist()
        [0, 1, 1, 0, 1]
    """
    targets = np.ones(int(lengths.sum(dtype=np.int64)), np.bool_)
    if "labels" in names:
        targets &= read("labels") != IGNORE_INDEX
    for mask in MASKS:
        if mask in names:
            targets &= read(mask) != 0
    targets[(np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]] = False
    return targets


def fold_labels(read: Read, names: Collection[str], lengths: Array) -> Array:
    """Make un-shifted labels of whatever columns there are; arguments as in ``learnt``.

    Returns:
        A new array of a signed dtype: the label (the token, where there are no labels) of a target, else
        ``IGNORE_INDEX``.
    """
    base = read("labels" if "labels" in names else "input_ids")
    labels = base.astype(label_dtype(base.dtype))
    labels[~learnt(read, names, lengths)] = IGNORE_INDEX
    return labels


def label_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the narrowest signed dtype that holds the token ids and ``IGNORE_INDEX``."""
    return np.dtype(np.int64) if dtype == np.uint64 else np.promote_types(dtype, np.int8)


def check_supervision(columns: Mapping[str, RaggedColumn]) -> None:
    """Raise if labels are no integers, or a mask is of floats."""
    for name, kinds in {"labels": "iu", **dict.fromkeys(MASKS, "biu")}.items():
        if name in columns and columns[name].dtype.kind not in kinds:
            wanted = "integers" if name == "labels" else "booleans or integers"
            raise ValueError(f"column {name!r} must hold {wanted}, got {columns[name].type}")


def check_labels(labels: Array, spans: Pack) -> None:
    """Raise if a label of joined spans is neither a token id nor ``IGNORE_INDEX``."""
    wrong = (labels < 0) & (labels != IGNORE_INDEX)
    if wrong.any():
        token = int(np.argmax(wrong))
        span = int(np.searchsorted(np.cumsum(spans.lengths, dtype=np.int64), token, side="right"))
        raise ValueError(
            f"document {spans.documents[span]}: labels must be token ids or {IGNORE_INDEX} (not learnt), got "
            f"{labels[token]}; write {IGNORE_INDEX} where another library's ignore index stands"
        )

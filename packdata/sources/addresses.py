"""What documents may be asked for: by number, as a selection, or as the spans of a pack; checked before it is read."""

import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from packdata.planning import Pack
from packdata.planning.plan import Array


def document_numbers(items: Collection[Any], count: int) -> Array:
    """Return numbers of documents as indices from 0, int64.

    Args:
        items: One integer or more; negative ones count from the end.
        count: How many documents there are.

    Raises:
        IndexError: If there is no such document.
        TypeError: If one is no integer; a boolean is of a mask.
    """
    if set(map(type, items)) - {int}:
        items = list(map(_number, items))
    if min(items) < 0 or max(items) >= count:
        outside = [number for number in items if not -count <= number < count]
        if outside:
            raise IndexError(f"document {outside[0]} of {count}")
        items = [number % count for number in items]
    return np.fromiter(items, np.int64, len(items))


def _number(item: Any) -> int:
    if isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool"):
        raise TypeError(f"documents are named by their numbers, got {item!r}: np.flatnonzero makes numbers of a mask")
    return operator.index(item)


def selected_numbers(documents: Any, count: int) -> Array:
    """Return a selection of documents, many at a time, int64.

    Args:
        documents: Integers from 0, shape ``(selected,)``.
        count: How many documents there are.

    Raises:
        ValueError: If they are no 1-D integers.
        IndexError: If there is no such document.
    """
    numbers = np.asarray(documents)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"documents must be a 1-D array of integers, got {numbers.dtype} of {numbers.shape}")
    outside = (numbers < 0) | (numbers >= count)
    if outside.any():
        raise IndexError(f"document {numbers[np.argmax(outside)]} of {count}")
    return numbers.astype(np.int64)


def check_spans(spans: Pack, count: int, lengths_of: Callable[[Array], Array]) -> None:
    """Raise if a span is not within its document: its plan was made from other lengths than these.

    Args:
        spans: Any spans.
        count: How many documents there are.
        lengths_of: Gives the lengths of documents by their numbers.
    """
    parts = (spans.documents, spans.starts, spans.lengths)
    if any(not isinstance(part, np.ndarray) or part.shape != (len(spans),) for part in parts):
        raise ValueError(f"a pack must hold three arrays with an entry per span, got {parts}")
    documents, stops = spans.documents, spans.starts.astype(np.int64) + spans.lengths
    outside = (documents < 0) | (documents >= count)
    if outside.any():
        raise IndexError(f"a pack has document {documents[np.argmax(outside)]}, but there are {count}")
    backward = (spans.starts < 0) | (spans.lengths < 0)
    if backward.any():
        at = int(np.argmax(backward))
        raise ValueError(
            f"a pack wants {spans.lengths[at]} tokens from {spans.starts[at]} on of document {documents[at]}: "
            "neither may be negative"
        )
    lengths = lengths_of(documents)
    if (stops > lengths).any():
        at = int(np.argmax(stops > lengths))
        raise ValueError(
            f"a pack wants tokens up to {stops[at]} of document {documents[at]}, which has {lengths[at]}: plan from "
            "the .lengths of these Documents"
        )

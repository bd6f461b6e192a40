"""From a stream with begin and end markers to lengths."""

from typing import Any, cast

import numpy as np

from .arrays import as_rows, run_bounds, same_kind
from .lengths import Array


def lengths_from_eos(input_ids: Any, eos_token_id: Any, *, bos_token_id: Any = None) -> Any:
    """Split a stream of tokens at its end markers; a marker belongs to the document that it ends.

    Args:
        input_ids: Integers, shape ``(tokens,)`` or ``(rows, tokens)``. What follows the last marker is a document too.
        eos_token_id: The end marker, or several.
        bos_token_id: The start marker, if documents have one: each begins a document, whether or not an end came
            before. Where it is the end marker too, a marker at a document's beginning starts it and the next ends it.

    Returns:
        int64, shape ``(documents,)``; they add up to the number of tokens.

    Raises:
        ValueError: If ``input_ids`` are not integers of one or two dimensions, or a marker is no token id.

    Example:
        >>> lengths_from_eos([5, 2, 2, 6], eos_token_id=2)
        array([2, 1, 1])
        >>> lengths_from_eos([0, 5, 6, 0, 0, 7, 0], eos_token_id=0, bos_token_id=0)
        array([4, 3])
    """
    rows = as_rows(input_ids, "input_ids")
    ends = np.isin(rows, _token_ids(eos_token_id, "eos_token_id"))
    if bos_token_id is not None:
        starts = np.isin(rows, _token_ids(bos_token_id, "bos_token_id"))
        either = starts & ends
        starts, ends = starts & ~either, ends & ~either
        ends |= either & ~_opens(either, ends)
        ends[:, :-1] |= starts[:, 1:]
    return same_kind(input_ids, np.diff(run_bounds(rows, ends[:, :-1])))


def _token_ids(markers: Any, name: str) -> Array:
    """Read one marker or several; whatever else numpy compares with ids equals none of them, silently."""
    ids = np.asarray(list(markers) if isinstance(markers, set | frozenset) else markers)
    if ids.size == 0 or ids.dtype.kind not in "iu" or ids.min() < 0:
        raise ValueError(f"{name} must be a token id or several of them, got {markers!r}")
    return ids


def _opens(either: Array, ends: Array) -> Array:
    """Say which markers open a document, where one id both opens and ends them.

    Such a marker ends the document that it stands in, and opens one where it stands in none: after an end, or at a
    row's beginning. So they alternate within each unbroken run of them; the token before the run says how it starts.

    Args:
        either: The markers of that id, shape ``(rows, tokens)``.
        ends: The markers that always end a document.
    """
    columns = np.arange(either.shape[1])
    before_run = np.maximum.accumulate(np.where(either, -1, columns), axis=1)  # the last other token, or -1
    within = (before_run >= 0) & ~np.take_along_axis(ends, np.maximum(before_run, 0), axis=1)
    return cast(Array, (columns - before_run - 1 + within) % 2 == 0)

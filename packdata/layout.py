"""Lengths, and the ways to write them down: ``cu_seqlens``, document ids, position ids.

Three documents of 3, 1 and 2 tokens, one after the other:

    lengths        3      1  2
    cu_seqlens     0      3  4    6      where each begins, and where the last ends
    document_ids   0 0 0  1  2 2
    position_ids   0 1 2  0  0 1

The ``…_from_lengths`` functions write, the ``lengths_from_…`` functions read what others have packed. All take numpy
arrays, CPU tensors or plain lists, and return the kind they were given (numpy for lists). A row never continues in the
next one, so the readers take ``(tokens,)`` or ``(rows, tokens)`` and list the documents row by row.
"""

import sys
from typing import Any, TypeAlias, cast

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
    return _same_kind(lengths, offsets.astype(np.int32))


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
    return _same_kind(lengths, np.repeat(np.arange(len(array)), array.astype(np.int64, copy=False)))


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
    return _same_kind(lengths, np.arange(array.sum()) - np.repeat(starts, array))


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
    rows = _rows(position_ids, "position_ids")
    return _same_kind(position_ids, np.diff(_run_bounds(rows, np.diff(rows.astype(np.int64), axis=1) != 1)))


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
    rows = _rows(segment_ids, "segment_ids")
    if isinstance(padding, bool) or not isinstance(padding, int | np.integer):
        raise ValueError(f"padding must be an integer, the id of padding, got {padding!r}")
    if padding >= 0 and rows.size and rows.min() < 0:
        raise ValueError(
            f"segment_ids hold {rows.min()}, but padding={padding} says that ids are not negative; where -1 is the "
            "padding and documents count from 0, pass padding=-1"
        )
    bounds = _run_bounds(rows, rows[:, 1:] != rows[:, :-1])
    kept = rows.reshape(-1)[bounds[:-1]] != padding
    return _same_kind(segment_ids, np.diff(bounds)[kept])


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
    offsets = _integers(cu_seqlens, "cu_seqlens").astype(np.int64)
    if offsets.ndim != 1:
        raise ValueError(f"cu_seqlens must be 1-D, got shape {offsets.shape}; read stacked rows one at a time")
    used = offsets[: len(offsets) - int(np.argmax(offsets[::-1] != -1))] if np.any(offsets != -1) else offsets[:0]
    if len(used) == 0 or used[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {used[:1].tolist() or 'no offset'}")
    lengths = np.diff(used)
    if np.any(lengths < 0):
        index = int(np.argmax(lengths < 0)) + 1
        raise ValueError(f"cu_seqlens must not fall, got {used[index]} after {used[index - 1]} at index {index}")
    return _same_kind(cu_seqlens, lengths[lengths > 0])


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
    rows = _rows(input_ids, "input_ids")
    ends = np.isin(rows, _token_ids(eos_token_id, "eos_token_id"))
    if bos_token_id is not None:
        starts = np.isin(rows, _token_ids(bos_token_id, "bos_token_id"))
        either = starts & ends
        starts, ends = starts & ~either, ends & ~either
        ends |= either & ~_opens(either, ends)
        ends[:, :-1] |= starts[:, 1:]
    return _same_kind(input_ids, np.diff(_run_bounds(rows, ends[:, :-1])))


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


def _run_bounds(rows: Array, changes: Array) -> Array:
    """List where runs begin in the row-major stream, and its end; ``changes[r, i]``: slot i+1 begins a new run."""
    begins = np.ones(rows.shape, bool)
    begins[:, 1:] = changes
    return cast(Array, np.append(np.flatnonzero(begins), rows.size))


def _rows(values: Any, name: str) -> Array:
    array = _integers(values, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (tokens,) or (rows, tokens), got {array.shape}")
    return cast(Array, np.atleast_2d(array))


def _integers(values: Any, name: str) -> Array:
    if _is_tensor(values) and values.device.type != "cpu":
        raise ValueError(f"{name} must be on the CPU, got a tensor on {values.device}: reading it would wait for it")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be an array of integers, got {type(values).__name__}: {error}") from None
    if array.dtype.kind not in "iu":
        if array.size == 0:
            return array.astype(np.int64)
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    return array


def _is_tensor(values: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor can only come from where torch has been imported
    return torch is not None and isinstance(values, torch.Tensor)


def _same_kind(given: Any, result: Array) -> Any:
    """Return ``result`` as a tensor if ``given`` was one."""
    if not _is_tensor(given):
        return result
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(result))

"""Which items, or pieces of items, each pack holds: what the strategies return, and what becomes the plan's arrays."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .blocks import BLOCK, Array, blocks, index_dtype
from .items import Items
from .overlong import Spans

PlanArrays = tuple[Array, Array, Array, Array | None]
"""``bounds``, ``documents``, ``lengths`` and ``starts`` of a plan."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packing:
    """The items of each pack: pack ``i`` holds those from ``bounds[i]`` up to ``bounds[i + 1]``.

    Attributes:
        bounds: int64, shape ``(packs + 1,)``.
        items: Index of each item, any integer dtype, shape ``(pieces,)``.
        starts: Where the piece of the item begins, in tokens; None where items are whole.
        lengths: Tokens in each piece; None where items are whole.
        split: How many items are in several pieces.
    """

    bounds: Array
    items: Array
    starts: Array | None = None
    lengths: Array | None = None
    split: int = 0


def ragged(starts: Array, lengths: Array) -> Array:
    """Return the indices of runs, one run after the other.

    Example:
        >>> ragged(np.array([7, 0]), np.array([2, 3]))
        array([7, 8, 0, 1, 2])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def join(windows: list[Packing]) -> Packing:
    """Put the packs of windows behind each other."""
    if len(windows) == 1:
        return windows[0]
    shifts = np.cumsum([0, *(len(window.items) for window in windows)])
    bounds = [window.bounds[:-1] + shift for window, shift in zip(windows, shifts[:-1], strict=True)]
    return Packing(
        bounds=np.concatenate([*bounds, shifts[-1:]]),
        items=np.concatenate([window.items for window in windows]),
        starts=_concatenate([window.starts for window in windows]),
        lengths=_concatenate([window.lengths for window in windows]),
        split=sum(window.split for window in windows),
    )


def ungroup(packing: Packing, items: Items) -> Packing:
    """Replace groups by their spans, in order."""
    if items.members is None:
        return packing
    first, spans = items.members
    sizes = np.diff(first)[packing.items]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Packing(bounds=ends[packing.bounds], items=spans[ragged(first[packing.items], sizes)])


def assemble(packing: Packing, spans: Spans, order: Array | None) -> PlanArrays:
    """Write down the plan's arrays, block by block.

    Args:
        packing: The packs, over spans.
        spans: The spans' documents, starts and lengths.
        order: The pack that is to stand at each place, or None to leave them where they are.

    Returns:
        The arrays.
    """
    bounds = packing.bounds
    if order is not None:
        bounds = np.zeros_like(packing.bounds)
        np.cumsum(np.diff(packing.bounds)[order], out=bounds[1:])
    documents = np.empty(len(packing.items), dtype=np.int64)
    lengths = np.empty(len(packing.items), dtype=np.int32)
    starts: Array | None = None
    if spans.starts is not None or packing.starts is not None:
        known = [part.itemsize for part in (spans.starts, packing.starts) if part is not None]
        starts = np.zeros(len(packing.items), dtype=np.int64 if max(known) == 8 else np.int32)
    for to, entries in _entries(packing, bounds, order):
        item = packing.items[entries].astype(np.int64, copy=False)  # what numpy would convert each index to, twice
        documents[to] = item if spans.documents is None else spans.documents[item]
        lengths[to] = spans.lengths[item] if packing.lengths is None else packing.lengths[entries]
        if starts is not None and spans.starts is not None:
            starts[to] = spans.starts[item]
        if starts is not None and packing.starts is not None:
            starts[to] += packing.starts[entries]
    return bounds, documents, lengths, starts if starts is not None and starts.any() else None


def _entries(packing: Packing, bounds: Array, order: Array | None) -> Iterator[tuple[slice, Array | slice]]:
    """Yield blocks of places in the plan, and where their entries stand in the packing."""
    if order is None:
        yield from ((block, block) for block in blocks(len(packing.items)))
        return
    last = 0
    while last < len(order):
        first = last
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + BLOCK, side="right")) - 1)
        packs = order[first:last]
        sizes = packing.bounds[packs + 1] - packing.bounds[packs]
        yield slice(int(bounds[first]), int(bounds[last])), ragged(packing.bounds[packs], sizes)


def shuffled_packs(packing: Packing, ends: list[int], rng: np.random.Generator) -> Array:
    """Permute the packs of each window among themselves; window ``w`` has the entries before ``ends[w]``."""
    order = np.arange(len(packing.bounds) - 1, dtype=index_dtype(len(packing.bounds)))
    cuts = np.searchsorted(packing.bounds[:-1], ends[:-1], side="left").tolist()
    for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True):
        rng.shuffle(order[first:last])
    return order


def _concatenate(parts: list[Array | None]) -> Array | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None

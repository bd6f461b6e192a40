"""The page's drawings as boxes with hover text; the template turns them into SVG, and escapes every word.

Coordinates run from 0 to ``SIZE``. What is narrower than a hair is merged, so that a pack of ten thousand documents
draws as few hundred boxes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .rows import Row, Run

SIZE = 1000
"""Units of a drawing's side."""

HAIR = 2.5
"""Narrowest box, in units."""

HUES = 6
"""Colours that documents take in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One rectangle (or, in the grid, one triangle).

    Attributes:
        x: Left edge, in units.
        y: Top edge.
        width: Width.
        height: Height.
        style: CSS class.
        title: Hover text.
    """

    x: float
    width: float
    style: str
    title: str
    y: float = 0
    height: float = SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bars and the words under them.

    Attributes:
        key: Name for machines.
        title: Heading.
        counts: Things in each bar.
        edges: Edges of the bars, one more than bars.
        boxes: The bars.
        ticks: Texts under the axis, evenly spaced.
    """

    key: str
    title: str
    counts: list[int]
    edges: list[float]
    boxes: list[Box]
    ticks: list[str]


def length_histogram(lengths: np.ndarray[Any, Any]) -> Histogram:
    """Count lengths in bars of equal ratio: lengths of documents spread over orders of magnitude."""
    longest = max(int(lengths.max(initial=1)), 2)
    edges = np.unique(np.geomspace(1, longest + 1, 33).round().astype(np.int64))
    counts = np.histogram(lengths, edges)[0]
    names = [f"{a:,} token(s)" if b - a == 1 else f"{a:,}–{b - 1:,} tokens" for a, b in _pairs(edges.tolist())]
    middle = edges[len(edges) // 2]
    ticks = ["1", f"{middle:,}", f"{longest:,} tokens"]
    return _histogram("lengths", "Documents by length, as packed", counts, edges, names, ticks, what="documents")


def fill_histogram(fills: np.ndarray[Any, Any]) -> Histogram:
    """Count packs by fill, in bars of 5 %."""
    edges = np.arange(21) / 20
    counts = np.histogram(fills, edges)[0]
    names = [f"{a:.0%}–{b:.0%} full" for a, b in _pairs(edges.tolist())]
    return _histogram("fills", "Packs by fill", counts, edges, names, ["0 %", "50 %", "100 % full"], what="packs")


def _pairs(edges: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(edges[:-1], edges[1:], strict=True)


def _histogram(
    key: str, title: str, counts: np.ndarray[Any, Any], edges: np.ndarray[Any, Any], names: list[str], ticks: list[str], *, what: str
) -> Histogram:
    step, top = SIZE / len(counts), max(int(counts.max(initial=0)), 1)
    boxes = [
        Box(
            x=i * step + 1,
            width=step - 2,
            y=SIZE * (1 - count / top),
            height=SIZE * count / top,
            style="bar",
            title=f"{name}: {count:,} {what}",
        )
        for i, (count, name) in enumerate(zip(counts.tolist(), names, strict=True))
    ]
    return Histogram(key=key, title=title, counts=counts.tolist(), edges=edges.tolist(), boxes=boxes, ticks=ticks)


def hue(document: int) -> str:
    """Name the CSS class of a document's colour; -1 is padding."""
    return "padding" if document < 0 else f"d{document % HUES}"


def pack_boxes(row: Row) -> list[Box]:
    """Draw a row as one bar, coloured by document."""

    def title(runs: list[Run]) -> str:
        first, last = runs[0], runs[-1]
        if len(runs) > 1:
            return f"{len(runs)} short documents, slots {first.start:,}–{last.stop - 1:,}"
        if first.document < 0:
            return f"padding, {first.slots:,} slots"
        return f"{row.names[first.document]}, {first.slots:,} tokens, slots {first.start:,}–{first.stop - 1:,}"

    return list(_boxes(row.documents(), row.slots, title))


def strip_boxes(row: Row) -> list[Box]:
    """Draw which slots predict something."""
    if row.targets is None:
        return []

    def title(runs: list[Run]) -> str:
        first, last = runs[0], runs[-1]
        with_target = sum(run.slots for run in runs if run.target)
        return f"slots {first.start:,}–{last.stop - 1:,}: {with_target:,} of {last.stop - first.start:,} predict a token"

    runs = [Run(document=0 if run.target else -1, start=run.start, stop=run.stop, target=run.target) for run in row.target_runs()]
    return list(_boxes(runs, row.slots, title))


def grid_boxes(row: Row) -> list[Box]:
    """Draw the attention A_ij: a triangle for each segment, whose slots attend to themselves and to those before."""

    def title(runs: list[Run]) -> str:
        first, last = runs[0], runs[-1]
        if len(runs) > 1:
            return f"{len(runs)} short segments, slots {first.start:,}–{last.stop - 1:,}"
        owner = _owner(row, first)
        pairs = first.slots * (first.slots + 1) // 2
        return f"{owner}: slots {first.start:,}–{first.stop - 1:,} attend to one another, {pairs:,} pairs"

    bounds = row.segments.tolist()
    runs = [Run(document=int(row.document_ids[a]), start=a, stop=b) for a, b in _pairs(bounds) if b > a]
    return [
        Box(x=box.x, width=box.width, y=box.x, height=box.width, style=box.style, title=box.title)
        for box in _boxes(runs, row.slots, title)
    ]


def _owner(row: Row, run: Run) -> str:
    documents = np.unique(row.document_ids[run.start : run.stop])
    documents = documents[documents >= 0]
    if not len(documents):
        return "padding"
    return row.names[documents[0]] + (f" to {row.names[documents[-1]]}" if len(documents) > 1 else "")


def _boxes(runs: list[Run], slots: int, title: Callable[[list[Run]], str]) -> Iterator[Box]:
    for group in _merged(runs, hair=HAIR * slots / SIZE):
        first, last = group[0], group[-1]
        start, stop = SIZE * first.start / slots, SIZE * last.stop / slots
        style = hue(first.document) if len(group) == 1 else "many"
        yield Box(x=start, width=stop - start, style=style, title=title(group))


def _merged(runs: list[Run], *, hair: float) -> Iterator[list[Run]]:
    """Group neighbours until a group is a hair wide; a run that is wide enough stays alone."""
    group: list[Run] = []
    for run in runs:
        if run.slots >= hair:
            if group:
                yield group
            yield [run]
            group = []
            continue
        group.append(run)
        if run.stop - group[0].start >= hair:
            yield group
            group = []
    if group:
        yield group

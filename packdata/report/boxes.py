"""The page's drawings as boxes with hover text; the template turns them into SVG, and escapes every word.

Coordinates run from 0 to ``SIZE``. What is narrower than a hair is merged, so that a pack of ten thousand documents
draws as a few hundred boxes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .rows import Run

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

    x: int | float
    width: int | float
    style: str
    title: str
    y: int | float = 0
    height: int | float = SIZE


def hue(document: int) -> str:
    """Name the CSS class of a document's colour; -1 is padding."""
    return "padding" if document < 0 else f"d{document % HUES}"


def boxes_of(runs: list[Run], *, slots: int, title: Callable[[list[Run]], str]) -> Iterator[Box]:
    """Draw neighbouring runs as boxes from left to right.

    Args:
        runs: Runs that cover a row.
        slots: Slots of the row.
        title: Hover text of a group of runs: of one, or of several too narrow to be seen alone.

    Yields:
        One box per group; runs without target are drawn like padding.
    """
    for group in _merged(runs, hair=HAIR * slots / SIZE):
        first, last = group[0], group[-1]
        start, stop = SIZE * first.start / slots, SIZE * last.stop / slots
        style = "many" if len(group) > 1 else "padding" if first.target is False else hue(first.document)
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

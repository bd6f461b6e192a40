"""One self-contained page about a packing: no scripts, no requests, every word escaped by the template."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from packdata.planning.wording import counted

from .boxes import Box
from .denominators import denominators
from .excerpts import DocumentText, document_texts
from .facts import Fact, counting_facts, division_facts, facts_of, ledger_facts
from .histograms import Histogram, fill_histogram, length_histogram
from .overview import Overview
from .overviews import overview_of
from .row_boxes import grid_boxes, pack_boxes, strip_boxes
from .rows import SHORT
from .visible import Decode, decoder

EXTREMES = 6
"""How many of the fullest and of the emptiest packs are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBar:
    """One pack as a bar."""

    label: str
    boxes: list[Box]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackDetail:
    """One pack, looked at closely.

    Attributes:
        title: Its name.
        slots: Slots of the row.
        grid: Attention, a square for each pair or a triangle for each segment.
        shape: Which of the two.
        strip: Which slots predict; empty where the row does not know.
        texts: Decoded documents.
        more: Documents that are not shown.
    """

    title: str
    slots: int
    grid: list[Box]
    shape: str
    strip: list[Box]
    texts: list[DocumentText]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template writes."""

    title: str
    unit: str
    facts: list[Fact]
    warnings: list[str]
    ledger: list[Fact]
    counting: list[Fact]
    counted: str
    divisions: list[Fact]
    histograms: list[Histogram]
    fullest: list[PackBar]
    emptiest: list[PackBar]
    pack: PackDetail | None


def to_html(
    obj: Any, path: str | os.PathLike[str], *, tokenizer: Any = None, losses: Any = None, pack: int | None = None
) -> Path:
    """Write a page that shows what a model would be trained on.

    Args:
        obj: A ``Plan``, a packed ``datasets.Dataset``, a ``PackedDataset`` or a ``PackedBatch``.
        path: The file to write; one that exists is replaced, and missing folders are made.
        tokenizer: Decodes tokens: see :func:`packdata.report.show`.
        losses: Token losses of a batch, to divide: see :func:`packdata.report.show`.
        pack: Which pack is shown closely; None for an ordinary one.

    Returns:
        The path of the page: one file, a few hundred kilobytes at most.

    Raises:
        TypeError: If ``obj`` is something else.
        ValueError: If there is no such pack, or ``losses`` do not fit.
    """
    page = _page(obj, tokenizer, losses, pack)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_template().render(page=page), encoding="utf-8")
    return file


@functools.cache
def _template() -> Any:
    import jinja2  # an extra, loaded where it is used

    loader = jinja2.PackageLoader("packdata", "report")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["units"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return environment.get_template("page.html.j2")


def _page(obj: Any, tokenizer: Any, losses: Any, pack: int | None) -> Page:
    overview = overview_of(obj, tokenizer)
    order = np.lexsort((-np.diff(overview.bounds), -overview.loads))  # of equally full packs, those of most documents
    emptiest = order[::-1][: min(EXTREMES, max(len(order) - EXTREMES, 0))]
    return Page(
        title=overview.title,
        unit=overview.unit,
        facts=facts_of(overview),
        warnings=overview.warnings,
        ledger=[] if overview.ledger is None else ledger_facts(overview.ledger),
        counting=[] if overview.counts is None else counting_facts(overview.counts),
        counted=overview.counted,
        divisions=[] if losses is None else division_facts(denominators(obj, losses)),
        histograms=[length_histogram(overview.lengths), fill_histogram(overview.fills)],
        fullest=_pack_bars(overview, order[:EXTREMES]),
        emptiest=_pack_bars(overview, emptiest),
        pack=_detail(overview, overview.choose(pack), decoder(tokenizer)) if overview.packs else None,
    )


def _pack_bars(overview: Overview, indices: Int64[np.ndarray, " shown"]) -> list[PackBar]:
    return [_pack_bar(overview, index) for index in indices.tolist()]


def _pack_bar(overview: Overview, index: int) -> PackBar:
    row, spans = overview.row(index), int(overview.bounds[index + 1] - overview.bounds[index])
    held = f"{counted(row.tokens, 'token')} of {counted(spans, 'document')}"
    label = f"{overview.unit} {index:,}: {held}, {row.tokens / row.slots:.1%} full"
    return PackBar(label=label, boxes=pack_boxes(row))


def _detail(overview: Overview, index: int, decode: Decode) -> PackDetail:
    row = overview.row(index)
    texts = document_texts(row, decode)
    return PackDetail(
        title=f"{overview.unit.capitalize()} {index:,}",
        slots=row.slots,
        grid=grid_boxes(row, decode),
        shape="square" if row.slots <= SHORT else "triangle",
        strip=strip_boxes(row, decode),
        texts=texts,
        more=row.documents - len(texts),
    )

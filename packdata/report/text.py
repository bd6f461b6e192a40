"""A packing as text, for the terminal, the notebook and the README."""

from collections.abc import Iterable, Iterator
from typing import Any

from packdata.planning import Ledger
from packdata.planning.wording import counted

from .denominators import denominators
from .drawing import draw_row
from .facts import Fact, counting_facts, division_facts, facts_of, ledger_facts
from .histograms import Histogram, fill_histogram, length_histogram
from .overview import Overview
from .overviews import overview_of
from .visible import decoder


def show(obj: Any, tokenizer: Any = None, *, losses: Any = None, pack: int | None = None, width: int = 100) -> str:
    """Draw a packing as text: what it holds, where documents begin, what each slot predicts.

    Args:
        obj: A ``Plan``, a packed ``datasets.Dataset`` (with ``seq_lengths``), a ``PackedDataset`` or a ``PackedBatch``.
        tokenizer: What decodes tokens: an object with ``decode``, a callable from a list of ids to text, ``"bytes"``
            (ids are UTF-8 bytes), or None (ids are written as numbers).
        losses: For a batch, its token losses in nats: aligned with ``targets``, shape ``(rows, slots)``, or one number
            per target in row-major order. They are divided by targets, sequences and slots, side by side.
        pack: Which pack or row is drawn; None for an ordinary one.
        width: Columns of the terminal.

    Returns:
        Lines of text, for ``print``. No character in it acts on a terminal.

    Raises:
        TypeError: If ``obj`` is something else, or ``losses`` come without a batch.
        ValueError: If there is no such pack, or ``losses`` do not fit.

    Example:
        >>> from packdata.planning import plan_packs
        >>> print(show(plan_packs([5, 3, 4, 2], budget=8), width=60).splitlines()[0])
        Plan of 2 packs
    """
    overview = overview_of(obj, tokenizer)
    blocks = [_head(overview)]
    if overview.packs:
        index = overview.choose(pack)
        title = f"{overview.unit} {index:,}"
        blocks.append([title, *draw_row(overview.row(index), decoder(tokenizer), width=width)])
    if overview.counts is not None:
        blocks.append([f"From slots to targets{overview.counted}", *_lines(counting_facts(overview.counts))])
    if losses is not None:
        blocks.append(["The same losses, divided in three ways", *_lines(division_facts(denominators(obj, losses)))])
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(overview: Overview) -> list[str]:
    warnings = [f"⚠ {warning}" for warning in overview.warnings]
    if overview.ledger is None:
        return [f"{overview.title}: {_in_words(overview)}", *warnings]
    lines = [overview.title, *_lines(facts_of(overview)), *warnings]
    lines += ["", *_sparkline(length_histogram(overview.lengths)), "", *_sparkline(fill_histogram(overview.fills))]
    return [*lines, "", *draw_ledger(overview.ledger)]


def draw_ledger(ledger: Ledger) -> list[str]:
    """List what became of every document, without what did not happen."""
    return ["Ledger", *_lines(fact for fact in ledger_facts(ledger) if fact.value)]


def _in_words(overview: Overview) -> str:
    return (
        f"{counted(overview.spans, 'document')}, {counted(overview.tokens, 'token')}, "
        f"{counted(overview.padding, 'padding slot')} "
        f"({overview.fill:.1%} full)"
    )


def _lines(facts: Iterable[Fact]) -> list[str]:
    facts = list(facts)
    label, text = (max(len(part) for part in parts) for parts in zip(*((f.label, f.text) for f in facts), strict=True))
    return [f"  {fact.label:{label}}  {fact.text:>{text}}" for fact in facts]


def _sparkline(histogram: Histogram) -> Iterator[str]:
    """Draw a histogram as one line; whatever is not empty shows at least as the lowest bar."""
    top = max(*histogram.counts, 1)
    yield histogram.title
    yield "  " + "".join(" ▁▂▃▄▅▆▇█"[-(-count * 8 // top)] for count in histogram.counts)
    room = len(histogram.counts) - sum(map(len, histogram.ticks))
    gaps = len(histogram.ticks) - 1
    yield "  " + (" " * max(room // gaps, 1)).join(histogram.ticks)

"""The beginnings of a row's documents as text, cut where learning begins or ends."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .rows import Row, Run
from .shapes import hue
from .visible import Decode, visible

DOCUMENTS = 40
"""Most documents of which the text is shown."""

TOKENS = 4_000
"""Most tokens of which the text is shown, shared evenly by the documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRun:
    """Neighbouring tokens that are all learnt, or all not.

    Attributes:
        text: Visible text; line breaks are kept, each with a sign before it.
        learnt: Whether some slot predicts these tokens.
    """

    text: str
    learnt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentText:
    """The beginning of one document.

    Attributes:
        title: Its name and counts.
        style: CSS class of its colour.
        runs: Its first tokens.
        more: Tokens that are not shown.
    """

    title: str
    style: str
    runs: list[TextRun]
    more: int


def document_texts(row: Row, decode: Decode) -> list[DocumentText]:
    """Decode the beginnings of a row's documents, where the row knows its tokens.

    Args:
        row: The row.
        decode: From :func:`~packdata.report.visible.decoder`.

    Returns:
        At most ``DOCUMENTS`` documents with at most ``TOKENS`` tokens.
    """
    runs = [run for run in row.documents() if run.document >= 0][:DOCUMENTS]
    if row.input_ids is None or not runs:
        return []
    # Targets stand at the slot that predicts; the token that is learnt is the next one.
    learnt = np.pad(row.has_target, (1, 0))[:-1]
    return [_document_text(row, run, learnt, decode, most=TOKENS // len(runs)) for run in runs]


def _document_text(
    row: Row, run: Run, learnt: np.ndarray, decode: Decode, *, most: int
) -> DocumentText:
    stop = min(run.stop, run.start + most)
    count = int(learnt[run.start : run.stop].sum())
    return DocumentText(
        title=f"{row.names[run.document]} · {run.slots:,} tokens · {count:,} learnt",
        style=hue(run.document),
        runs=list(_text_runs(row.input_ids[run.start : stop], learnt[run.start : stop], decode)),
        more=run.stop - stop,
    )


def _text_runs(ids: np.ndarray, learnt: np.ndarray, decode: Decode) -> Iterator[TextRun]:
    bounds = [0, *(np.flatnonzero(learnt[1:] != learnt[:-1]) + 1).tolist(), len(ids)]
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        lines = decode(ids[start:stop].tolist()).split("\n")
        yield TextRun(text="↵\n".join(map(visible, lines)), learnt=bool(learnt[start]))

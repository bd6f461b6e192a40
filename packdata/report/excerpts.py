"""The beginnings of a row's documents as text, cut where learning begins or ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64

from packdata.planning.wording import counted

from .boxes import hue
from .rows import Row
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
    ids, learnt = row.input_ids, row.learnt
    if ids is None:
        return []
    texts: list[DocumentText] = []
    runs = [run for run in row.runs() if run.document >= 0][:DOCUMENTS]
    for run in runs:
        shown = slice(run.start, min(run.stop, run.start + TOKENS // len(runs)))
        count = f"{counted(run.slots, 'token')} · {learnt[run.start : run.stop].sum():,} learnt"
        texts.append(
            DocumentText(
                title=f"{row.name(run.document)} · {count}",
                style=hue(run.document),
                runs=list(_text_runs(ids[shown], learnt[shown], decode)),
                more=run.stop - shown.stop,
            )
        )
    return texts


def _text_runs(
    ids: Int64[np.ndarray, " tokens"], learnt: Bool[np.ndarray, " tokens"], decode: Decode
) -> Iterator[TextRun]:
    bounds = [0, *(np.flatnonzero(learnt[1:] != learnt[:-1]) + 1).tolist(), len(ids)]
    for start, stop in pairwise(bounds):
        lines = decode(ids[start:stop].tolist()).split("\n")
        yield TextRun(text="↵\n".join(map(visible, lines)), learnt=bool(learnt[start]))

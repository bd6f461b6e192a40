"""One row drawn in characters: slot by slot where it is short, as a bar where it is long."""

from collections.abc import Iterator

import numpy as np

from .rows import Row, Run
from .visible import Decode, cell, clip, columns, pad, visible

SHORT = 32
"""Most slots of a row that is drawn slot by slot."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def draw_row(row: Row, decode: Decode, *, width: int) -> Iterator[str]:
    """Draw a row: every slot with its token and target, or a bar and the documents' first words.

    Args:
        row: The row.
        decode: From :func:`~packdata.report.visible.decoder`.
        width: Columns of the terminal.

    Yields:
        Lines.
    """
    if row.slots <= SHORT:
        yield from _slot_table(row, decode, width)
        yield ""
        yield from _attention_grid(row)
    else:
        yield from _bar(row, width)
        yield from _document_list(row, decode, width)


def _slot_table(row: Row, decode: Decode, width: int) -> Iterator[str]:
    cells = list(zip(*_columns_of(row, decode), strict=True))
    size = max(columns(text) for line in cells for text in line)
    labels = [label for label, known in zip(_LABELS, _known(row), strict=True) if known]
    starts = set(row.segments.tolist())
    per_line = max((width - 11) // (size + 1), 1)
    for first in range(0, row.slots, per_line):
        if first:
            yield ""
        for label, line in zip(labels, cells, strict=True):
            drawn = "".join(
                ("│" if slot in starts else " ") + pad(line[slot], size)
                for slot in range(first, min(first + per_line, row.slots))
            )
            yield f"{label:9} {drawn}{'│' if first + per_line >= row.slots else ''}".rstrip()


_LABELS = ("slot", "document", "position", "token", "predicts")


def _known(row: Row) -> tuple[bool, ...]:
    return (True, True, row.position_ids is not None, row.input_ids is not None, row.targets is not None)


def _columns_of(row: Row, decode: Decode) -> Iterator[list[str]]:
    """Give the texts of each slot, top to bottom."""
    for slot in range(row.slots):
        texts = [str(slot), str(row.document_ids[slot]) if row.document_ids[slot] >= 0 else "–"]
        if row.position_ids is not None:
            texts.append(str(row.position_ids[slot]))
        if row.input_ids is not None:
            texts.append(cell(int(row.input_ids[slot]), decode, width=8))
        if row.targets is not None:
            target = int(row.targets[slot])
            texts.append("·" if target < 0 else cell(target, decode, width=8))
        yield texts


def _attention_grid(row: Row) -> Iterator[str]:
    """Draw A_ij = [j ≤ i][segment_i = segment_j], one line per query."""
    yield "slot      attends to"
    segment = np.searchsorted(row.segments, np.arange(row.slots), side="right")
    for query in range(row.slots):
        marks = " ".join("■" if segment[key] == segment[query] else "·" for key in range(query + 1))
        yield f"{query:<9} {marks}"


def _bar(row: Row, width: int) -> Iterator[str]:
    """Draw the row as one line of letters, a letter a document, and below it the share of targets."""
    edges = np.linspace(0, row.slots, min(width - 10, row.slots) + 1).astype(int)
    middles = row.document_ids[(edges[:-1] + edges[1:]) // 2]
    yield "documents " + "".join("." if i < 0 else LETTERS[i % len(LETTERS)] for i in middles.tolist())
    if row.targets is not None:
        has_target = np.concatenate([[0], np.cumsum(row.has_target)])
        shares = np.diff(has_target[edges]) / np.diff(edges)
        yield "targets   " + "".join(" ░▒▓█"[round(share * 4)] for share in shares.tolist())


def _document_list(row: Row, decode: Decode, width: int, *, most: int = 12) -> Iterator[str]:
    runs = row.documents()
    for run in runs[:most]:
        yield clip(f"  {_describe(run, row)}{_head(run, row, decode)}", width)
    if len(runs) > most:
        yield f"  … and {len(runs) - most} more"


def _describe(run: Run, row: Row) -> str:
    where = f"slots {run.start:,}–{run.stop - 1:,}"
    if run.document < 0:
        return f". {'padding':14} {where:20} {run.slots:>7,} slots"
    letter, name = LETTERS[run.document % len(LETTERS)], row.names[run.document]
    return f"{letter} {name:14} {where:20} {run.slots:>7,} tokens"


def _head(run: Run, row: Row, decode: Decode) -> str:
    if row.input_ids is None or row.targets is None or run.document < 0:
        return ""
    targets = int(row.has_target[run.start : run.stop].sum())
    ids = row.input_ids[run.start : min(run.stop, run.start + 80)].tolist()
    return f" {targets:>7,} targets  {visible(decode(ids))}"

"""One row drawn in characters: slot by slot where it is short, as a bar where it is long."""

from collections.abc import Iterator

import numpy as np

from packdata.planning.wording import counted

from .rows import SHORT, Row, Run
from .visible import Decode, cell, clip, columns, pad, visible

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

NOTHING = "·"
"""What a slot without a target predicts, and what a query does not attend to."""


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
        yield from _attention_grid(row, decode, width)
    else:
        yield from _bar(row, width)
        yield from _document_list(row, decode, width)


def _slot_table(row: Row, decode: Decode, width: int) -> Iterator[str]:
    lines = _lines_of(row, decode)
    sizes = [max(map(columns, cells)) for cells in zip(*lines.values(), strict=True)]
    starts = set(row.segments.tolist())
    for number, (first, stop) in enumerate(_wrapped(sizes, width - 11)):
        if number:
            yield ""
        for label, cells in lines.items():
            marks = ["│" if slot in starts else " " for slot in range(first, stop + 1)]
            texts = [pad(cells[slot], sizes[slot]) for slot in range(first, stop)]
            drawn = "".join(mark + text for mark, text in zip(marks, [*texts, ""], strict=True))
            yield f"{label:9} {drawn}".rstrip()


def _lines_of(row: Row, decode: Decode) -> dict[str, list[str]]:
    """Give each line of the table: its label, and a text for each slot."""
    documents = [str(document) if document >= 0 else "–" for document in row.document_ids.tolist()]
    lines = {"slot": [str(slot) for slot in range(row.slots)], "document": documents}
    if row.position_ids is not None:
        lines["position"] = [str(position) for position in row.position_ids.tolist()]
    if row.input_ids is not None and row.targets is not None:
        lines["token"] = [cell(token, decode, width=8) for token in row.input_ids.tolist()]
        targets = zip(row.targets.tolist(), row.has_target.tolist(), strict=True)
        lines["predicts"] = [cell(target, decode, width=8) if there else NOTHING for target, there in targets]
    return lines


def _wrapped(sizes: list[int], width: int) -> Iterator[tuple[int, int]]:
    """Cut slots of these sizes, and a mark before each, into lines of at most ``width`` columns."""
    first, used = 0, 0
    for slot, size in enumerate(sizes):
        used += size + 1
        if used > width and slot > first:
            yield first, slot
            first, used = slot, size + 1
    yield first, len(sizes)


def _attention_grid(row: Row, decode: Decode, width: int) -> Iterator[str]:
    """Draw A_ij = [j ≤ i][segment_i = segment_j], one line per query."""
    tokens = _lines_of(row, decode).get("token", [""] * row.slots)
    size = max(map(columns, tokens))
    space = " " if size + 6 + 2 * row.slots <= width else ""
    segment = np.searchsorted(row.segments, np.arange(row.slots), side="right").tolist()
    yield f"{'slot':5}{pad('', size)} attends to the slots marked ■"
    for query in range(row.slots):
        marks = space.join("■" if segment[key] == segment[query] else NOTHING for key in range(query + 1))
        yield f"{query:<5}{pad(tokens[query], size)} {marks}"


def _bar(row: Row, width: int) -> Iterator[str]:
    """Draw the row as one line of letters, a letter a document, and below it the share of targets."""
    edges = np.linspace(0, row.slots, min(width - 10, row.slots) + 1).astype(np.int64)
    middles = row.document_ids[(edges[:-1] + edges[1:]) // 2]
    yield "documents " + "".join(map(_letter, middles.tolist()))
    if row.targets is not None:
        before = np.concatenate([[0], np.cumsum(row.has_target)])
        shares = np.diff(before[edges]) / np.diff(edges)
        yield "targets   " + "".join(" ░▒▓█"[round(share * 4)] for share in shares.tolist())
        yield "          darker: more targets"


def _letter(document: int) -> str:
    return "." if document < 0 else LETTERS[document % len(LETTERS)]


def _document_list(row: Row, decode: Decode, width: int, *, most: int = 12) -> Iterator[str]:
    """List the row's documents and padding, in columns."""
    runs = row.runs()
    lines = [_columns_of(run, row) for run in runs[:most]]
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for run, line in zip(runs, lines, strict=False):
        drawn = "  ".join(text.ljust(size) for text, size in zip(line, sizes, strict=True))
        yield clip(f"  {drawn}  {_beginning(run, row, decode)}", width).rstrip()
    if len(runs) > most:
        yield f"  … and {len(runs) - most:,} more"


def _columns_of(run: Run, row: Row) -> list[str]:
    padding = run.document < 0
    targets = (
        "" if row.targets is None or padding else counted(int(row.has_target[run.start : run.stop].sum()), "target")
    )
    return [
        f"{_letter(run.document)} {'padding' if padding else row.name(run.document)}",
        f"slots {run.start:,}–{run.stop - 1:,}",
        counted(run.slots, "slot" if padding else "token"),
        targets,
    ]


def _beginning(run: Run, row: Row, decode: Decode) -> str:
    if row.input_ids is None or run.document < 0:
        return ""
    return visible(decode(row.input_ids[run.start : min(run.stop, run.start + 80)].tolist()))

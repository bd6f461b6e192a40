"""One row as boxes: its documents, its attention, its targets."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from packdata.planning.wording import counted

from .boxes import SIZE, Box, boxes_of, hue
from .rows import SHORT, Row, Run
from .visible import Decode, visible


def pack_boxes(row: Row) -> list[Box]:
    """Draw a row as one bar, coloured by document."""

    def title(runs: list[Run]) -> str:
        first = runs[0]
        if len(runs) > 1:
            return f"{len(runs)} short documents, {_slots(runs)}"
        if first.document < 0:
            return f"padding, {counted(first.slots, 'slot')}"
        return f"{row.name(first.document)}, {counted(first.slots, 'token')}, {_slots(runs)}"

    return list(boxes_of(row.runs(), slots=row.slots, title=title))


def strip_boxes(row: Row, decode: Decode) -> list[Box]:
    """Draw which slots predict something; a short row names both tokens of each slot."""
    if row.input_ids is None or row.targets is None:
        return []
    if row.slots > SHORT:
        return list(boxes_of(row.target_runs(), slots=row.slots, title=_count_targets))
    slots = zip(row.input_ids.tolist(), row.targets.tolist(), row.has_target.tolist(), strict=True)
    titles = [
        f"slot {slot} {_token(token, decode)} predicts {_token(target, decode) if there else 'nothing'}"
        for slot, (token, target, there) in enumerate(slots)
    ]
    return list(boxes_of(list(_single_slots(row)), slots=row.slots, title=lambda runs: titles[runs[0].start]))


def _count_targets(runs: list[Run]) -> str:
    targets = sum(run.slots for run in runs if run.target)
    return f"{_slots(runs)}: {targets:,} of {runs[-1].stop - runs[0].start:,} predict a token"


def _slots(runs: list[Run]) -> str:
    return f"slots {runs[0].start:,}–{runs[-1].stop - 1:,}"


def _single_slots(row: Row) -> Iterator[Run]:
    for slot, (document, target) in enumerate(zip(row.document_ids.tolist(), row.has_target.tolist(), strict=True)):
        yield Run(document=document, start=slot, stop=slot + 1, target=target)


def _token(token: int, decode: Decode) -> str:
    return visible(decode([token]))


def grid_boxes(row: Row, decode: Decode) -> list[Box]:
    """Draw the attention A_ij: a square for each pair in a short row, else a triangle for each segment.

    The slots of a segment attend to themselves and to the slots of their segment before them.
    """
    bounds = pairwise(row.segments.tolist())
    segments = [Run(document=int(row.document_ids[a]), start=a, stop=b) for a, b in bounds if b > a]
    if row.slots <= SHORT:
        return list(_squares(row, segments, decode))

    def title(runs: list[Run]) -> str:
        if len(runs) > 1:
            return f"{len(runs)} short segments, {_slots(runs)}"
        pairs = runs[0].slots * (runs[0].slots + 1) // 2
        return f"{_owner(row, runs[0])}: {_slots(runs)} attend to one another, {pairs:,} pairs"

    return [replace(box, y=box.x, height=box.width) for box in boxes_of(segments, slots=row.slots, title=title)]


def _squares(row: Row, segments: list[Run], decode: Decode) -> Iterator[Box]:
    step = SIZE / row.slots
    tokens = [""] * row.slots if row.input_ids is None else [_token(token, decode) for token in row.input_ids.tolist()]
    for segment in segments:
        for query in range(segment.start, segment.stop):
            style = hue(int(row.document_ids[query]))
            for key in range(segment.start, query + 1):
                title = f"slot {query} {tokens[query]} attends to slot {key} {tokens[key]}"
                yield Box(x=key * step, y=query * step, width=step, height=step, style=style, title=title)


def _owner(row: Row, run: Run) -> str:
    documents: list[int] = row.document_ids[run.start : run.stop].tolist()
    first, last = documents[0], max(documents)
    if first < 0:
        return "padding"
    return row.name(first) + (f" to {row.name(last)}" if last > first else "")

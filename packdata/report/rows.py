"""One row as it is trained on: who owns each slot, what it must predict, what it may attend to.

Everything that is drawn of a single row (text, grid, strip) is drawn from this one form, whatever it came from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64

from packdata.layout import IGNORE_INDEX, cu_seqlens_from_lengths, document_ids_from_lengths
from packdata.planning import Pack
from packdata.planning.rounding import round_up

SHORT = 32
"""Most slots of a row that is drawn slot by slot."""


class Run(NamedTuple):
    """Neighbouring slots that belong together: a document, padding, or a part of one.

    Attributes:
        document: The row's own number of the document, from 0, or -1 for padding.
        start: First slot.
        stop: One past the last slot.
        target: Whether these slots predict something; None where that is not asked.
    """

    document: int
    start: int
    stop: int
    target: bool | None = None

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """One row of slots.

    Attributes:
        document_ids: The row's own number of the document in each slot, from 0; -1 on padding.
        segments: Boundaries of attention in the row, from 0 to the number of slots.
        documents: Number of documents in the row.
        name: Says what to call a document, by its number in the row: ``"document 17"``.
        input_ids: Token ids, or None where only the plan is known.
        targets: What each slot must predict, ``IGNORE_INDEX`` where nothing, or None where only the plan is known.
        position_ids: Positions, or None where only the plan is known.
    """

    document_ids: Int64[np.ndarray, " slots"]
    segments: Int[np.ndarray, " bounds"]
    documents: int
    name: Callable[[int], str]
    input_ids: Int64[np.ndarray, " slots"] | None = None
    targets: Int64[np.ndarray, " slots"] | None = None
    position_ids: Int64[np.ndarray, " slots"] | None = None

    @property
    def slots(self) -> int:
        """Slots in the row, padding included."""
        return len(self.document_ids)

    @property
    def tokens(self) -> int:
        """Slots that hold a document's token."""
        return int((self.document_ids >= 0).sum())

    @property
    def has_target(self) -> Bool[np.ndarray, " slots"]:
        """Which slots predict something; none where only the plan is known."""
        if self.targets is None:
            return np.zeros(self.slots, dtype=bool)
        return np.asarray(self.targets != IGNORE_INDEX)

    @property
    def learnt(self) -> Bool[np.ndarray, " slots"]:
        """Which tokens some slot predicts (un-shifted, what Hugging Face calls labels)."""
        return np.asarray(learnt_tokens(self.document_ids[None], self.has_target[None])[0])

    def runs(self) -> list[Run]:
        """Cut the row where the document changes; padding comes as runs of document -1."""
        return list(_runs(self.document_ids))

    def target_runs(self) -> list[Run]:
        """Cut the row where the document changes or targets begin or end."""
        has_target = self.has_target
        return [run._replace(target=bool(has_target[run.start])) for run in _runs(self.document_ids, has_target)]


def learnt_tokens(
    document_ids: Int64[np.ndarray, "rows slots"], has_target: Bool[np.ndarray, "rows slots"]
) -> Bool[np.ndarray, "rows slots"]:
    """Say which tokens are learnt, given which slots predict: the target of a token's slot is the row's next token.

    Alignment may lie between the two, where targets cross documents.

    Example:
        >>> learnt_tokens(np.array([[0, 0, -1, 1, 1]]), np.array([[True, True, False, False, False]])).tolist()
        [[False, True, False, True, False]]
    """
    learnt = np.zeros_like(has_target)
    slots = np.flatnonzero(document_ids >= 0)
    same_row = slots[1:] // document_ids.shape[1] == slots[:-1] // document_ids.shape[1]
    learnt.flat[slots[1:]] = has_target.flat[slots[:-1]] & same_row
    return learnt


def _runs(document_ids: Int64[np.ndarray, " slots"], *others: Bool[np.ndarray, " slots"]) -> Iterator[Run]:
    if not len(document_ids):
        return
    changes = np.zeros(len(document_ids) - 1, dtype=bool)
    for values in (document_ids, *others):
        changes |= values[1:] != values[:-1]
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    stops = [*starts[1:].tolist(), len(document_ids)]
    yield from map(Run, document_ids[starts].tolist(), starts.tolist(), stops)


def row_of_pack(pack: Pack, *, budget: int, align: int = 1) -> Row:
    """Lay one pack of a plan out on ``budget`` slots: its spans, each on its aligned slots, then padding."""
    taken = round_up(pack.lengths.astype(np.int64), align)
    padding = max(budget - int(taken.sum()), 0)
    document_ids = document_ids_from_lengths(taken)
    starts = np.cumsum(taken) - taken
    within = np.arange(len(document_ids)) - np.repeat(starts, taken)
    document_ids[within >= np.repeat(pack.lengths, taken)] = -1
    return Row(
        document_ids=np.pad(document_ids, (0, padding), constant_values=-1),
        segments=cu_seqlens_from_lengths(np.append(taken, padding) if padding else taken),
        documents=len(pack),
        name=names_of(pack),
    )


def names_of(pack: Pack) -> Callable[[int], str]:
    """Name the documents of a pack by their numbers in the source."""

    def name(index: int) -> str:
        document, start = pack.documents[index], pack.starts[index]
        return f"document {document}" + (f" from token {start:,}" if start else "")

    return name


def row_of_batch(batch: Mapping[str, Any], index: int) -> Row:
    """Take one row out of a batch."""
    slots = batch["input_ids"].shape[1]
    document_ids = batch["document_ids"][index].cpu().numpy()
    offsets = batch["cu_seqlens"].cpu().numpy().astype(np.int64) - index * slots
    real = document_ids[document_ids >= 0]
    first = int(real[0]) if len(real) else 0
    return Row(
        document_ids=np.where(document_ids >= 0, document_ids - first, -1),
        segments=np.unique(offsets[(offsets >= 0) & (offsets <= slots)]),
        documents=len(np.unique(real)),
        name=lambda i: f"document {first + i}",
        **{key: batch[key][index].cpu().numpy() for key in ("input_ids", "targets", "position_ids")},
    )

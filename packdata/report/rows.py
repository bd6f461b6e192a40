"""One row as it is trained on: who owns each slot, what it must predict, what it may attend to.

Everything that is drawn of a single row (text, grid, strip) is drawn from this one form, whatever it came from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64

from packdata.layout import IGNORE_INDEX, cu_seqlens_from_lengths, document_ids_from_lengths
from packdata.planning import Pack
from packdata.planning.rounding import round_up

SHORT = 32
"""Most slots of a row that is drawn slot by slot."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Run:
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
        names: What to call each document, ``"document 17"``.
        input_ids: Token ids, or None where only the plan is known.
        targets: What each slot must predict, ``IGNORE_INDEX`` where nothing, or None where only the plan is known.
        position_ids: Positions, or None where only the plan is known.
    """

    document_ids: Int64[np.ndarray, " slots"]
    segments: Int[np.ndarray, " bounds"]
    names: list[str]
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

    def documents(self) -> list[Run]:
        """Cut the row where the document changes; padding comes as runs of document -1."""
        return list(_runs(self.document_ids))

    def target_runs(self) -> list[Run]:
        """Cut the row where the document changes or targets begin or end."""
        has_target = self.has_target
        return [
            Run(document=run.document, start=run.start, stop=run.stop, target=bool(has_target[run.start]))
            for run in _runs(self.document_ids, has_target)
        ]


def _runs(document_ids: np.ndarray, *others: np.ndarray) -> Iterator[Run]:
    changes = np.zeros(max(len(document_ids) - 1, 0), dtype=bool)
    for values in (document_ids, *others):
        changes |= values[1:] != values[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(document_ids)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield Run(document=int(document_ids[start]), start=start, stop=stop)


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
        names=[
            f"document {document}" + (f" from token {start}" if start else "")
            for document, start in zip(pack.documents.tolist(), pack.starts.tolist(), strict=True)
        ],
    )


def row_of_batch(batch: Mapping[str, Any], index: int) -> Row:
    """Take one row out of a batch."""
    slots = batch["input_ids"].shape[1]
    document_ids = batch["document_ids"][index].cpu().numpy()
    offsets = batch["cu_seqlens"].cpu().numpy().astype(np.int64) - index * slots
    real = document_ids[document_ids >= 0]
    first = int(real[0]) if len(real) else 0
    names = [f"document {first + i}" for i in range(int(real[-1]) - first + 1 if len(real) else 0)]
    return Row(
        document_ids=np.where(document_ids >= 0, document_ids - first, -1),
        segments=np.unique(offsets[(offsets >= 0) & (offsets <= slots)]),
        names=names,
        **{key: batch[key][index].cpu().numpy() for key in ("input_ids", "targets", "position_ids")},
    )

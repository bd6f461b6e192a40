"""Reading a packed dataset: lengths from Arrow's offsets, tokens only of the packs that are looked at."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from jaxtyping import Int64

from packdata.batches import PackedBatch, PackingCollator
from packdata.planning import Ledger, Plan
from packdata.planning.wording import counted
from packdata.sources import PackedDataset, ledger_of
from packdata.sources.ragged import RaggedColumn
from packdata.sources.tables import open_source

from .cautions import batch_cautions, ledger_cautions, padding_caution
from .denominators import count_slots
from .overview import Overview
from .rows import names_of, row_of_batch

LOOKED_AT = 2_000_000
"""Most slots that are read to count targets and end markers; of larger datasets, evenly spaced packs are read."""

READ = ("input_ids", "labels", "completion_mask", "assistant_masks", "seq_lengths")
"""Columns that say what is learnt."""

Read = Callable[[list[int]], list[dict[str, Any]]]


def of_packed_dataset(packed: PackedDataset, tokenizer: Any = None) -> Overview:
    """Read the lazy twin of a packed dataset."""
    plan = packed.plan

    def read(indices: list[int]) -> list[dict[str, Any]]:
        return [{key: pack[key] for key in READ if key in pack} for pack in packed.__getitems__(indices)]

    overview = Overview(
        title=f"Packed dataset of {counted(len(plan), 'pack')}",
        unit="pack",
        budget=plan.budget,
        bounds=plan.bounds,
        lengths=plan.lengths,
        row=lambda index: replace(row_of_batch(_collate(read([index]), plan.budget), 0), name=names_of(plan[index])),
        ledger=plan.ledger,
    )
    return _with_targets(overview, read, tokenizer)


def of_dataset(packed: Any, tokenizer: Any = None) -> Overview:
    """Read a packed ``datasets.Dataset``.

    Raises:
        TypeError: If it is something else.
        ValueError: If it has no ``seq_lengths``.
    """
    if not isinstance(packed, datasets.Dataset):
        raise TypeError(
            "the report shows a Plan, a packed datasets.Dataset, a PackedDataset or a PackedBatch, got "
            f"{type(packed).__name__}"
        )
    if "seq_lengths" not in packed.column_names:
        raise ValueError(f"the dataset is not packed: it has no column 'seq_lengths' among {packed.column_names}")
    columns = packed.select_columns([key for key in READ if key in packed.column_names]).with_format("numpy")

    def read(indices: list[int]) -> list[dict[str, Any]]:
        read = columns[indices]
        return [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]

    per_pack, lengths = _sequence_lengths(packed)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(per_pack, dtype=np.int64)])
    ledger, cautions = _ledger(packed)
    budget = _budget(lengths, bounds, None if cautions else ledger)
    overview = Overview(
        title=f"Packed dataset of {counted(len(packed), 'pack')}",
        unit="pack",
        budget=budget,
        bounds=bounds,
        lengths=lengths,
        row=lambda index: row_of_batch(_collate(read([index]), budget), 0),
        ledger=ledger,
        warnings=cautions,
    )
    return _with_targets(overview, read, tokenizer)


def name_documents(overview: Overview, plan: Plan) -> Overview:
    """Name the documents of a packed dataset by their rows in its source, which only the plan knows.

    Raises:
        ValueError: If the plan is about other packs.
    """
    if not (np.array_equal(plan.bounds, overview.bounds) and np.array_equal(plan.lengths, overview.lengths)):
        raise ValueError("the plan beside the packs is about others")
    return replace(overview, row=lambda index: replace(overview.row(index), name=names_of(plan[index])))


def _collate(features: list[dict[str, Any]], budget: int) -> PackedBatch:
    batch: PackedBatch = PackingCollator(layout="rows", pad_to=budget, boundaries="seq_lengths")(features)
    return batch


def _sequence_lengths(packed: datasets.Dataset) -> tuple[Int64[np.ndarray, " packs"], Int64[np.ndarray, " spans"]]:
    source = open_source(packed)
    column = RaggedColumn(source.table.column("seq_lengths"), name="seq_lengths")
    rows = np.arange(len(packed)) if source.rows is None else source.rows
    per_pack = column.lengths[rows].astype(np.int64)
    return per_pack, column.gather(rows, np.zeros_like(rows), per_pack).astype(np.int64)


def _ledger(packed: datasets.Dataset) -> tuple[Ledger | None, list[str]]:
    """Read the ledger if there is one, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ledger = ledger_of(packed)
        except ValueError:
            return None, []
    return ledger, [f"{str(warning.message).capitalize()}." for warning in caught]


def _budget(lengths: Int64[np.ndarray, " spans"], bounds: Int64[np.ndarray, " bounds"], ledger: Ledger | None) -> int:
    """Take the budget from the ledger if it is about these packs, else the longest pack."""
    longest = int(np.diff(np.concatenate([[0], np.cumsum(lengths)])[bounds]).max(initial=1))
    packs = len(bounds) - 1
    if ledger is None or not packs or ledger.slots % packs:
        return longest
    return max(ledger.slots // packs, longest)


def _with_targets(overview: Overview, read: Read, tokenizer: Any) -> Overview:
    """Add what only the tokens tell, of as many packs as are worth reading."""
    shown = overview.spread(max(LOOKED_AT // overview.budget, 1))
    cautions = list(padding_caution(padding=overview.padding, slots=overview.slots))
    cautions += [] if overview.ledger is None else ledger_cautions(overview.ledger)
    if not shown:
        return replace(overview, warnings=[*overview.warnings, *cautions])
    batch = _collate(read(shown), overview.budget)
    counts, where = count_slots(batch), "" if len(shown) == overview.packs else f" of {len(shown):,} packs looked at"
    cautions += batch_cautions(batch, counts, tokenizer=tokenizer, where=where)
    return replace(overview, counts=counts, counted=where, warnings=[*overview.warnings, *cautions])

"""Reading a plan, a packed dataset or a batch into an :class:`~packdata.report.overview.Overview`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from packdata.planning import Plan
from packdata.planning.wording import counted

from .cautions import batch_cautions, ledger_cautions, padding_caution
from .denominators import count_slots
from .overview import Overview
from .rows import row_of_batch, row_of_pack


def overview_of(obj: Any, tokenizer: Any = None) -> Overview:
    """Read any of the reported objects.

    Args:
        obj: A ``Plan``, a packed ``datasets.Dataset`` (with ``seq_lengths``), a ``PackedDataset`` or a ``PackedBatch``;
            an ``Overview`` is given back.
        tokenizer: What names the EOS and padding tokens, for warnings; None for none.

    Raises:
        TypeError: If it is something else; the message names what serves for it.
    """
    if isinstance(obj, Overview):
        return obj
    if isinstance(obj, Plan):
        return of_plan(obj)
    from packdata.batches import PackedBatch

    if isinstance(obj, PackedBatch):
        return of_batch(obj, tokenizer)
    from packdata.sources import PackedDataset

    from .packed import of_dataset, of_packed_dataset

    return of_packed_dataset(obj, tokenizer) if isinstance(obj, PackedDataset) else of_dataset(obj, tokenizer)


def of_plan(plan: Plan) -> Overview:
    """Read a plan; it knows lengths, not tokens."""
    ledger = plan.ledger
    return Overview(
        title=f"Plan of {counted(len(plan), 'pack')}",
        unit="pack",
        budget=plan.budget,
        bounds=plan.bounds,
        lengths=plan.lengths,
        row=lambda index: row_of_pack(plan[index], budget=plan.budget, align=plan.policy.align),
        ledger=ledger,
        warnings=[*padding_caution(padding=ledger.padding, slots=ledger.slots), *ledger_cautions(ledger)],
    )


def of_batch(batch: Mapping[str, Any], tokenizer: Any = None) -> Overview:
    """Read a batch; its rows are the packs."""
    counts, document_ids = count_slots(batch), batch["document_ids"].cpu().numpy()
    rows, slots = document_ids.shape
    # A document lies in one row: each row's documents are those whose numbers first occur there.
    per_row = [len(np.unique(row[row >= 0])) for row in document_ids]
    lengths = np.bincount(document_ids[document_ids >= 0].ravel(), minlength=sum(per_row)).astype(np.int64)
    return Overview(
        title=f"Batch of {counted(rows, 'row')} of {counted(slots, 'slot')}",
        unit="row",
        budget=slots,
        bounds=np.cumsum([0, *per_row]),
        lengths=lengths,
        row=lambda index: row_of_batch(batch, index),
        counts=counts,
        warnings=[
            *padding_caution(padding=counts.padding, slots=counts.slots),
            *batch_cautions(batch, counts, tokenizer=tokenizer),
        ],
    )

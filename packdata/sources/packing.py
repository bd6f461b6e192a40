"""Pack documents into Arrow tables: plan, gather, re-offset.

    documents  --plan-->  spans of each pack  --gather, column by column-->  flat arrays  --offsets-->  list columns

Everything that packs Arrow data comes through here: ``pack_table`` at once, ``pack_dataset`` window by window,
``BatchPacker`` per map batch, ``StreamPacker`` per window of a stream, ``PackedDataset`` pack by pack.
"""

from collections.abc import Collection, Iterator
from typing import Any, Unpack

import datasets
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from packdata.planning import Ledger, Pack, Plan
from packdata.planning.edge import no_type_check
from packdata.planning.plan import Array

from .documents import Documents
from .padding import refuse_padding
from .planned import PlanOptions, Untargeted, plan_documents, refuse_unknown, spans_of, windows
from .ragged import is_per_token
from .supervision import MASKS, check_labels, check_supervision, fold_labels, is_supervised, label_dtype
from .tables import open_source


@no_type_check
def pack_table(
    table: pa.Table,
    budget: int,
    *,
    untargeted: Untargeted = "keep",
    drop_columns: Collection[str] = (),
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    **policy: Unpack[PlanOptions],
) -> tuple[pa.Table, Ledger]:
    """Pack the documents of an Arrow table.

    Every per-token column (a list with one number per token) travels in step with ``input_ids``. ``completion_mask``
    and ``assistant_masks`` are folded into ``labels``, which trainers keep.

    Args:
        table: One document per row, with a column ``input_ids``.
        budget: The most tokens in a pack.
        untargeted: What happens to documents left without a target, after any cut: ``"keep"``, ``"drop"``, ``"error"``.
        drop_columns: Columns to leave behind. Each that is not per token must be named.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing.
        **policy: Options of ``plan_packs``, which ``help(packdata.plan_packs)`` explains:
            ``strategy="best_fit"``: or ``"sequential"``, ``"concat"``.
            ``overlong="error"``: or ``"truncate"``, ``"truncate_left"``, ``"split"``, ``"drop"``.
            ``max_documents=None``: the most documents in a pack.
            ``align=1``: each span takes a multiple of this many slots.
            ``groups=None``: documents of one group share a pack.
            ``window=None``: plan every so many consecutive documents on their own.
            ``seed=None``: permutes documents of equal length, and shuffles the packs.
            ``packs_multiple_of=1``: the number of packs is a multiple of this.

    Returns:
        One pack per row, and what became of every document: ``input_ids``; ``labels`` (un-shifted, −100 on the first
        token of each span) if there were labels or masks; further per-token columns; ``seq_lengths``, int32, tokens of
        each span. Types are those of the input.

    Raises:
        ValueError: If a column is left over (it is named), out of step or has a null, and as ``plan_packs`` raises.
        TypeError: If an option is unknown.

    Example:
        >>> packed, ledger = pack_table(pa.table({"input_ids": [[1, 2, 3], [4, 5], [6]]}), budget=4)
        >>> packed.column("input_ids").to_pylist(), packed.column("seq_lengths").to_pylist()
        ([[1, 2, 3, 6], [4, 5]], [[3, 1], [2]])
        >>> ledger.fill
        0.75
    """
    refuse_unknown("pack_table", policy)
    documents = packable(table, drop_columns, bos_token_id=bos_token_id, eos_token_id=eos_token_id)
    plan = plan_documents(documents, budget, untargeted=untargeted, **policy)
    schema = packed_schema(documents)
    return pa.Table.from_batches(gather_batches(documents, plan, schema), schema), plan.ledger


def packable(source: Any, drop_columns: Any = (), **markers: int | None) -> Documents:
    """Open documents to be packed: each column is per token, or named in ``drop_columns``."""
    table = open_source(source).table
    source = source if isinstance(source, datasets.Dataset) else table  # lists are made Arrow once
    names = table.column_names
    unknown = [name for name in named_columns(drop_columns) if name not in names]
    if unknown or "input_ids" in drop_columns:
        raise ValueError(f"drop_columns must name columns beside 'input_ids', got {unknown or 'input_ids'} of {names}")
    kept = [name for name in names if name not in drop_columns]
    left = [name for name in kept if not is_per_token(table.column(name)) and name != "input_ids"]
    if left:
        raise ValueError(f"columns {left} have no value per token, so they cannot be packed: name them in drop_columns")
    if "seq_lengths" in kept:
        raise ValueError(
            "column 'seq_lengths' says that these rows are packs: give the documents that they were made of, or name "
            "it in drop_columns if each row is one document all the same"
        )
    kept_only = source.select_columns(kept) if isinstance(source, datasets.Dataset) else source.select(kept)
    documents = Documents(kept_only, kept, **markers)
    refuse_padding(open_source(kept_only))
    check_supervision(documents.columns)
    return documents


def named_columns(drop_columns: Any) -> list[str]:
    """Sort the names of columns to leave behind.

    Raises:
        ValueError: If it is a single name, whose letters would be taken for names.
    """
    if isinstance(drop_columns, str) or not isinstance(drop_columns, Collection):
        raise ValueError(f"drop_columns must be several names, such as ['text'], got {drop_columns!r}")
    return sorted(drop_columns)


def gather_batches(documents: Documents, plan: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Gather all packs of a plan, a window at a time, with a progress bar where it takes a while."""
    hidden = None if datasets.is_progress_bar_enabled() else True
    total = plan.ledger.tokens_kept
    with tqdm(total=total, desc="Packing", unit="tok", unit_scale=True, delay=1, disable=hidden) as progress:
        for packs in windows(plan):
            batch = gather_batch(documents, plan, packs, schema)
            yield batch
            progress.update(int(plan.lengths[plan.bounds[packs.start] : plan.bounds[packs.stop]].sum(dtype=np.int64)))


def gather_batch(documents: Documents, plan: Plan, packs: slice, schema: pa.Schema) -> pa.RecordBatch:
    """Gather a run of packs as list columns."""
    spans = spans_of(plan, packs)
    bounds = plan.bounds[packs.start : packs.stop + 1] - plan.bounds[packs.start]
    tokens = np.concatenate([np.zeros(1, np.int64), np.cumsum(spans.lengths, dtype=np.int64)])[bounds]
    flat = gather_spans(documents, spans)
    arrays = [
        _lists(values, bounds if name == "seq_lengths" else tokens, schema.field(name).type)
        for name, values in flat.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def gather_spans(documents: Documents, spans: Pack) -> dict[str, Array]:
    """Join spans, column by column, with masks folded into labels: the columns of a packed dataset, flat."""

    def read(name: str) -> Array:
        return documents.gather(name, spans)

    names = documents.columns
    flat = {"input_ids": read("input_ids")}
    if is_supervised(names):
        flat["labels"] = fold_labels(read, names, spans.lengths)
        check_labels(flat["labels"], spans)
    others = [name for name in names if name not in ("input_ids", "labels", *MASKS)]
    return flat | {name: read(name) for name in others} | {"seq_lengths": spans.lengths.copy()}


def packed_schema(documents: Documents) -> pa.Schema:
    """Name and type the columns of a packed dataset, in their order."""
    columns = documents.columns
    tokens = columns["input_ids"]
    fields = {name: _list_like(column.type, column.value_type) for name, column in columns.items()}
    if is_supervised(columns):
        base = columns.get("labels", tokens)
        value = pa.from_numpy_dtype(label_dtype(base.dtype))
        fields = {"input_ids": fields["input_ids"], "labels": _list_like(tokens.type, value)} | fields
        fields["labels"] = _list_like(tokens.type, value)
    kept = {name: kind for name, kind in fields.items() if name not in MASKS}
    return pa.schema(kept | {"seq_lengths": pa.list_(pa.int32())})


def _list_like(kind: pa.DataType, value: pa.DataType) -> pa.DataType:
    large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return pa.large_list(value) if large else pa.list_(value)


def _lists(values: Array, bounds: Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind.value_type):
        flat = pa.nulls(0)
    else:
        flat = pa.array(values, kind.value_type)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(bounds), flat)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), flat)

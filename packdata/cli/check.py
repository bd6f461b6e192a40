"""``packdata check``: prove again that a packed dataset holds its source, token by token."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import DoesNotHold
from .options import Bos, Eos, Json, Packed, SampleBy, Split, TextColumn, Tokenizer, say

if TYPE_CHECKING:
    import datasets

    from packdata.planning import Plan
    from packdata.sources import Documents

MASKS = ("completion_mask", "assistant_masks")
"""What packing folds into the labels."""


def check(
    packed: Packed,
    source: Annotated[Path, typer.Option(metavar="INPUT", help="What was packed, read with the same options.")],
    tokenizer: Tokenizer = None,
    text_column: TextColumn = "text",
    split: Split = None,
    sample_by: SampleBy = "line",
    bos: Bos = None,
    eos: Eos = None,
    json: Json = False,
) -> None:
    """Prove that every token of the source is in the packs exactly once, or in the ledger as lost.

    The plan beside the data is checked against the documents' lengths, and every pack against the documents.

    For instance:

    - packdata check packed --source texts.jsonl --tokenizer bytes --eos 256
    """
    from packdata.planning import Plan
    from packdata.sources import Documents

    from .reading import markers, open_dataset, open_packed

    rows = open_packed(packed)
    if not (packed / "plan").is_dir():
        raise ValueError(f"{packed} has no plan beside its data: 'packdata pack' and output_dir= leave one")
    plan = Plan.load(packed / "plan")
    dataset = open_dataset(source, tokenizer=tokenizer, text_column=text_column, split=split, sample_by=sample_by)
    wanted = {*rows.column_names, *(MASKS if "labels" in rows.column_names else ())} - {"seq_lengths"}
    names = [name for name in dataset.column_names if name in wanted]
    documents = Documents(dataset.select_columns(names), names, **markers(tokenizer, bos=bos, eos=eos))
    _check_plan(plan, documents)
    _check_packs(plan, documents, rows)
    kept, given = plan.ledger.tokens_kept, plan.ledger.tokens_in
    text = f"{packed} holds {kept:,} of {given:,} tokens of {source}, each exactly once; the rest is in its ledger"
    say(lambda: text, lambda: {"holds": True, "packs": len(plan), **plan.ledger.to_dict()}, as_json=json)


def _check_plan(plan: "Plan", documents: "Documents") -> None:
    try:
        plan.check(documents.lengths)
    except ValueError as error:
        raise DoesNotHold(f"the plan is not about this source, or not read as it was packed: {error}") from None


def _check_packs(plan: "Plan", documents: "Documents", packed: "datasets.Dataset") -> None:
    """Gather every pack again, a window at a time, and compare."""
    from packdata.sources.packing import gather_batches, packed_schema

    if len(packed) != len(plan):
        raise DoesNotHold(f"the dataset has {len(packed):,} packs, its plan {len(plan):,}")
    schema, first = packed_schema(documents), 0
    found = packed.data.table.select(schema.names)
    for expected in gather_batches(documents, plan, schema):
        rows = found.slice(first, len(expected))
        if not _equal(rows, expected):
            wrong = next(i for i in range(len(expected)) if not _equal(rows.slice(i, 1), expected.slice(i, 1)))
            raise DoesNotHold(f"pack {first + wrong} holds other tokens than its documents in the source")
        first += len(expected)


def _equal(found: Any, expected: Any) -> bool:
    """Compare values, whatever the chunks and the width of integers."""
    import pyarrow as pa

    return bool(found.cast(expected.schema).combine_chunks().equals(pa.Table.from_batches([expected]).combine_chunks()))

"""``packdata pack``: documents in, a packed dataset out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import DoesNotHold
from .options import Bos, Eos, Input, Json, SampleBy, Split, TextColumn, Tokenizer, say

if TYPE_CHECKING:
    from packdata.planning import Ledger


def pack(
    input: Input,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The folder to write; it must not exist.")],
    budget: Annotated[int, typer.Option(help="The most tokens in a pack.")],
    tokenizer: Tokenizer = None,
    text_column: TextColumn = "text",
    split: Split = None,
    sample_by: SampleBy = "line",
    bos: Bos = None,
    eos: Eos = None,
    strategy: Annotated[str, typer.Option(help="best_fit, sequential or concat.")] = "best_fit",
    overlong: Annotated[str, typer.Option(help="error, truncate, truncate_left, split or drop.")] = "error",
    max_documents: Annotated[int | None, typer.Option(help="Most documents in a pack.")] = None,
    align: Annotated[int, typer.Option(help="Each document takes a multiple of so many slots.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Shuffle packs, and documents of equal length.")] = None,
    window: Annotated[int | None, typer.Option(help="Pack so many consecutive documents on their own.")] = None,
    drop_columns: Annotated[str, typer.Option(help="Columns to leave behind, several with commas.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing if any token would be lost.")] = False,
    json: Json = False,
) -> None:
    """Pack documents into rows of at most BUDGET tokens, and print what became of every document.

    For instance:

    - packdata pack documents.parquet packed --budget 8192
    - packdata pack texts.jsonl packed --budget 2048 --tokenizer bytes --eos 256 --overlong split
    """
    if output.exists():
        raise FileExistsError(f"{output} exists: choose another OUTPUT, or delete it")
    policy: dict[str, Any] = {"strategy": strategy, "overlong": overlong, "max_documents": max_documents}
    policy |= {"align": align, "seed": seed, "window": window}

    from packdata.planning.policy import Policy

    Policy(budget=budget, **policy)  # a wrong option shows before the input is read

    from packdata.planning.wording import counted
    from packdata.report.text import draw_ledger
    from packdata.sources import ledger_of, pack_dataset

    from .reading import markers, open_dataset

    dataset = open_dataset(input, tokenizer=tokenizer, text_column=text_column, split=split, sample_by=sample_by)
    policy |= markers(tokenizer, bos=bos, eos=eos)
    policy["drop_columns"] = [name for name in drop_columns.split(",") if name]
    if strict:
        _refuse_losses(dataset, budget, **policy)
    packed = pack_dataset(dataset, budget, output_dir=output, **policy)
    ledger = ledger_of(packed)
    lines = [*draw_ledger(ledger), f"{counted(len(packed), 'pack')} in {output}"]
    if align > 1:
        lines.append(f"The rows leave no gaps between documents yet: PackingCollator(align={align}) makes them.")
    say(lambda: "\n".join(lines), lambda: _numbers(output, packed, ledger), as_json=json)


def _numbers(output: Path, packed: Any, ledger: "Ledger") -> dict[str, Any]:
    totals = {"padding": ledger.padding, "fill": ledger.fill}
    return {"output": str(output), "packs": len(packed), **ledger.to_dict(), **totals}


def _refuse_losses(dataset: Any, budget: int, *, drop_columns: list[str], **options: Any) -> None:
    from packdata.planning import plan_packs
    from packdata.sources.packing import packable

    names = ("bos_token_id", "eos_token_id")
    documents = packable(dataset, drop_columns, **{name: options.pop(name) for name in names})
    ledger = plan_packs(documents.lengths, budget, **options).ledger
    if ledger.tokens_truncated or ledger.tokens_dropped:
        raise DoesNotHold(
            f"--strict: {ledger.tokens_truncated:,} tokens of {ledger.documents_truncated:,} documents would be "
            f"truncated, {ledger.tokens_dropped:,} of {ledger.documents_dropped:,} dropped; nothing was written "
            "(--overlong split keeps them)"
        )

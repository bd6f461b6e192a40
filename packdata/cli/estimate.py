"""``packdata estimate``: what packing would give, before anything is packed."""

from typing import Annotated, Any, cast

import typer

from .options import Bos, Eos, Input, Json, SampleBy, Split, TextColumn, Tokenizer, say


def estimate(
    input: Input,
    budgets: Annotated[str, typer.Option(help="Tokens in a pack, several with commas.")] = "2048,4096,8192",
    strategies: Annotated[str, typer.Option(help="best_fit, sequential, concat, several with commas.")] = "best_fit",
    tokenizer: Tokenizer = None,
    text_column: TextColumn = "text",
    split: Split = None,
    sample_by: SampleBy = "line",
    bos: Bos = None,
    eos: Eos = None,
    json: Json = False,
) -> None:
    """Show how well documents would pack: packs, fill, padding, attention cost. Nothing is written.

    For instance:

    - packdata estimate documents.parquet --budgets 2048,8192
    - packdata estimate texts.jsonl --tokenizer bytes --strategies best_fit,sequential
    """
    from packdata.planning import estimate as estimate_packs
    from packdata.sources import Documents

    from .reading import markers, open_dataset

    numbers, names = _numbers(budgets), cast(Any, strategies.split(","))
    dataset = open_dataset(input, tokenizer=tokenizer, text_column=text_column, split=split, sample_by=sample_by)
    if "seq_lengths" in dataset.column_names:
        raise ValueError(
            f"{input} holds packs, as column 'seq_lengths' says: give the documents that they were made of "
            "('packdata inspect' shows packs)"
        )
    documents = Documents(dataset, ["input_ids"], **markers(tokenizer, bos=bos, eos=eos))
    table = estimate_packs(documents.lengths, budgets=numbers, strategies=names)
    say(lambda: repr(table), table.to_dict, as_json=json)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--budgets must be whole numbers such as 2048,8192, got {text!r}") from None

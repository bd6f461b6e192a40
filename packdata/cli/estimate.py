"""``packdata estimate``: what packing would give, before anything is packed."""

import warnings
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
    overlong: Annotated[str, typer.Option(help="error, truncate, truncate_left, split or drop.")] = "split",
    max_documents: Annotated[int | None, typer.Option(help="Most documents in a pack.")] = None,
    align: Annotated[int, typer.Option(help="Each document takes a multiple of so many slots.")] = 1,
    json: Json = False,
) -> None:
    """Show how well documents would pack: packs, fill, padding, attention cost. Nothing is written.

    over-long: documents over the budget. attention: what boundaries leave of the attention's cost, Σ length² against
    packs × budget². docs: documents in a pack, at most in 99 % of the packs, and in the fullest.

    For instance:

    - packdata estimate documents.parquet --budgets 2048,8192
    - packdata estimate texts.jsonl --tokenizer bytes --strategies best_fit,sequential
    """
    from packdata.planning import estimate as estimate_packs
    from packdata.planning.wording import counted
    from packdata.sources import Documents
    from packdata.sources.padding import refuse_padding
    from packdata.sources.tables import open_source

    from .reading import markers, open_dataset

    numbers, names = _numbers(budgets), cast(Any, strategies.split(","))
    dataset = open_dataset(input, tokenizer=tokenizer, text_column=text_column, split=split, sample_by=sample_by)
    if "seq_lengths" in dataset.column_names:
        raise ValueError(
            f"{input} holds packs, as column 'seq_lengths' says: give the documents that they were made of "
            "('packdata inspect' shows packs)"
        )
    refuse_padding(open_source(dataset))
    documents = Documents(dataset, ["input_ids"], **markers(tokenizer, bos=bos, eos=eos))
    policy: dict[str, Any] = {"overlong": overlong, "max_documents": max_documents, "align": align}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table says it
        table = estimate_packs(documents.lengths, budgets=numbers, strategies=names, **policy)
    tokens, longest = int(documents.lengths.sum(dtype="int64")), int(documents.lengths.max(initial=0))
    head = f"{counted(len(documents), 'document')} of {counted(tokens, 'token')}, the longest of {longest:,}; overlong="
    say(lambda: f"{head}{overlong}\n\n{table!r}", table.to_dict, as_json=json)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--budgets must be whole numbers such as 2048,8192, got {text!r}") from None

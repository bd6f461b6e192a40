"""Options that several commands share, and what is read with them."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="A .jsonl (.ndjson, .json), .parquet, .arrow or .txt (.text, .md) file, a folder of them, a dataset.",
    ),
]
Packed = Annotated[Path, typer.Argument(metavar="PACKED", help="A folder that 'packdata pack' wrote.")]
Budget = Annotated[int, typer.Option(help="The most tokens in a pack.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="PATH|bytes", help="A tokenizer.json, a tokenizer's folder, or 'bytes'; none for input_ids."),
]
TextColumn = Annotated[str, typer.Option(help="The column that holds the text, with a tokenizer; others stay behind.")]
Split = Annotated[str | None, typer.Option(help="Which split of a saved dataset that has several.")]
SampleBy = Annotated[str, typer.Option(help="What a document of a text file is: line, paragraph or document.")]
Bos = Annotated[str | None, typer.Option(metavar="TOKEN|ID", help="Begin each document with this token.")]
Eos = Annotated[str | None, typer.Option(metavar="TOKEN|ID", help="End each document with this token.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines instead of text.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as a page.")]


def say(text: Callable[[], str], data: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    """Print a result, for people or for machines; only what is printed is made."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # better a question mark than no report where UTF-8 is not spoken
    print(json.dumps(data()) if as_json else text())


def terminal_width() -> int:
    """Columns of the terminal, 100 where there is none."""
    return max(shutil.get_terminal_size((100, 24)).columns, 60)


def tell_of(written: Path) -> None:
    """Say where the page is, beside the result."""
    print(f"packdata: wrote {written}", file=sys.stderr)

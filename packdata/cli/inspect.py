"""``packdata inspect``: what a packed dataset holds."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Html, Json, Packed, Split, Tokenizer, say, tell_of, terminal_width

if TYPE_CHECKING:
    from packdata.report.overview import Overview


def inspect(
    packed: Packed,
    pack: Annotated[int | None, typer.Option(help="Which pack to draw; else an ordinary one.")] = None,
    html: Html = None,
    tokenizer: Tokenizer = None,
    split: Split = None,
    json: Json = False,
) -> None:
    """Show a packed dataset: ledger, lengths, fill, one pack with its boundaries and targets, warnings.

    For instance:

    - packdata inspect packed --tokenizer bytes --pack 3
    - packdata inspect packed --html report.html
    """
    from packdata.report import show, to_html
    from packdata.report.facts import numbers_of
    from packdata.report.overviews import overview_of

    from .reading import load_decoder, open_packed

    decoder = load_decoder(tokenizer)
    overview = _with_names(overview_of(open_packed(packed, split), decoder), packed / (split or "") / "plan")
    if html is not None:
        to_html(overview, html, tokenizer=decoder, pack=pack)
        tell_of(html)
    say(
        lambda: show(overview, decoder, pack=pack, width=terminal_width()),
        lambda: numbers_of(overview, decoder),
        as_json=json,
    )


def _with_names(overview: "Overview", plan: Path) -> "Overview":
    """Name documents by their rows in the source, so that a bad one can be found, if the plan lies beside the data."""
    if not plan.is_dir():
        return overview
    from packdata.planning import Plan
    from packdata.report.packed import name_documents

    try:
        return name_documents(overview, Plan.load(plan))
    except ValueError as error:
        caution = f"Documents are numbered within their pack: {error}."
        return replace(overview, warnings=[*overview.warnings, caution])

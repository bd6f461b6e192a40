"""``packdata inspect``: what a packed dataset holds."""

from typing import Annotated

import typer

from .options import Html, Json, Packed, Split, Tokenizer, say, terminal_width


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

    from .reading import load_decoder, open_packed

    dataset, decoder = open_packed(packed, split), load_decoder(tokenizer)
    if html is not None:
        to_html(dataset, html, tokenizer=decoder, pack=pack)
    say(
        lambda: show(dataset, decoder, pack=pack, width=terminal_width()),
        lambda: numbers_of(dataset, decoder),
        as_json=json,
    )

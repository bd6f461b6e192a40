"""The commands, put together; each loads what it needs when it runs, so that help is fast."""

from importlib.metadata import version
from typing import Annotated

import typer

from .check import check
from .check_model import check_model
from .demo import demo
from .estimate import estimate
from .inspect import inspect
from .pack import pack

app = typer.Typer(
    help="Pack tokenised documents into training batches, and see what a model would be trained on.",
    epilog="Start with: packdata demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"packdata {version('packdata')}")
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself; the parser has done what they say by now."""


for command in (demo, estimate, pack, inspect, check, check_model):
    app.command()(command)

"""The commands, put together; each loads what it needs when it runs, so that help is fast."""

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
for command in (demo, estimate, pack, inspect, check, check_model):
    app.command()(command)

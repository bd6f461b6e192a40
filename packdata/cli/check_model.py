"""``packdata check-model``: does this model, on this machine, keep packed documents apart?"""

from typing import Annotated

import typer

from . import DoesNotHold
from .options import Json, say

LENGTHS = (5, 9, 3, 7)
"""Tokens of the documents that the model is tried on."""


def check_model(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A saved model's folder, or a config class, made tiny.")
    ],
    attention: Annotated[
        str | None,
        typer.Option(
            help="Attention implementations, several with commas; else eager and sdpa, if the model has them."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Change one packed document and look for the change in the others: isolated, leaks, or refuses.

    For instance:

    - packdata check-model ./my-model --attention sdpa
    - packdata check-model LlamaConfig
    """
    import torch

    from packdata.batches import PackingCollator
    from packdata.checks import check_isolation
    from packdata.checks.tiny import model_maker

    make, reports, absent = model_maker(model), {}, {}
    for implementation in [name.strip() for name in (attention or "eager,sdpa").split(",")]:
        try:
            made = make(implementation)
        except (ImportError, ValueError) as error:  # not installed, or the model does not know it
            absent[implementation] = " ".join(str(error).split()).split(". ")[0]
            continue
        numbers = torch.Generator().manual_seed(0)
        # Ids 0 to 2 are often markers, on which some models act.
        words = [torch.randint(3, made.config.vocab_size, (length,), generator=numbers) for length in LENGTHS]
        reports[implementation] = check_isolation(made, PackingCollator()([{"input_ids": ids} for ids in words]))
    unmet = [
        f"attention {name!r} cannot be used with this model on this machine: {why}" for name, why in absent.items()
    ]
    if not reports:
        raise ValueError(unmet[0])
    lines = [f"{name}: {report}" for name, report in reports.items()]
    lines += [f"{name}: cannot be used: {why}" for name, why in absent.items()]
    verdicts = {name: {"verdict": report.verdict, "cause": report.cause} for name, report in reports.items()}
    verdicts |= {name: {"verdict": "cannot be used", "cause": why} for name, why in absent.items()}
    say(lambda: "\n".join(lines), lambda: verdicts, as_json=json)
    if unmet and attention is not None:
        raise ValueError(unmet[0])
    bad = [name for name, report in reports.items() if not report]
    if bad:
        raise DoesNotHold(f"documents are not kept apart with {', '.join(bad)}")

"""`Column`: how a further column travels through the collator."""

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One further column of a batch, shape ``[R, T, *tail]``.

    Attributes:
        per: What a feature gives. ``"token"``: one value per token, which travels with it. ``"prediction"``: aligned
            with ``targets``; one value per token (shifted with the labels), one fewer for a feature of one document
            (already shifted), or one for each target. ``"document"``: one value, written on the document's target
            slots (a feature with ``seq_lengths`` gives one for each of its documents).
        dtype: The batch's dtype.
        pad: The value where there is none: on padding, and for ``"prediction"`` and ``"document"`` on every slot that
            predicts no target.
        tail: Shape of one value: ``()`` for numbers, ``(width,)`` for vectors.
    """

    per: Literal["token", "prediction", "document"]
    dtype: torch.dtype = torch.float32
    pad: float = 0.0
    tail: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.per not in ("token", "prediction", "document"):
            raise ValueError(f'per must be "token", "prediction" or "document", got {self.per!r}')
        if not isinstance(self.dtype, torch.dtype):
            raise ValueError(f"dtype must be a torch.dtype, got {self.dtype!r}")

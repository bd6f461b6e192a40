"""What an isolation check found."""

from dataclasses import dataclass
from typing import Literal

PADDING = -1
"""The document number of padding, as in a batch's ``document_ids``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One document that shows in the logits of another.

    Attributes:
        source: The document that was changed; -1 for padding.
        target: The document whose logits changed.
        difference: Largest change of a logit.
        tokens: How many of the target's tokens have changed logits.
    """

    source: int
    target: int
    difference: float
    tokens: int

    def __str__(self) -> str:
        """Say it in a line."""
        source = "padding" if self.source == PADDING else f"document {self.source}"
        return f"{source} into document {self.target}: {self.difference:.3g} ({self.tokens} tokens)"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """The verdict on one model, called in one way; true if documents are isolated.

    Attributes:
        verdict: ``"isolated"``; ``"leaks"``: documents show in each other's logits; ``"refuses"``: the model raised.
        leaks: Who leaks into whom, in order.
        cause: Why it leaks, and what to do; None unless it leaks.
        message: The model's own words where it refuses, else None.
        tolerance: Largest change that counts as none.
        alone_difference: Largest difference between a logit of the packed batch and of the document alone; None where
            the model refuses one of the two.
    """

    verdict: Literal["isolated", "leaks", "refuses"]
    leaks: tuple[Leak, ...] = ()
    cause: str | None = None
    message: str | None = None
    tolerance: float = 0.0
    alone_difference: float | None = None

    def __bool__(self) -> bool:
        """Whether the documents are isolated."""
        return self.verdict == "isolated"

    def __str__(self) -> str:
        """Say the verdict, who leaks into whom, and why."""
        lines = [self.verdict if self.message is None else f"{self.verdict}: {self.message}"]
        lines += [f"  {leak}" for leak in self.leaks[:_SHOWN]]
        if len(self.leaks) > _SHOWN:
            lines.append(f"  and {len(self.leaks) - _SHOWN} more")
        if self.cause is not None:
            lines.append(f"  cause: {self.cause}")
        if self.alone_difference is not None:
            lines.append(f"  packed against alone: {self.alone_difference:.3g}")
        return "\n".join(lines)


_SHOWN = 8

"""How documents may be packed: the options of a plan, checked once."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from .edge import no_type_check
from .randomness import Seed, plain_seed

Strategy = Literal["best_fit", "sequential", "concat"]
Overlong = Literal["error", "truncate", "truncate_left", "split", "drop"]

LARGEST_BUDGET = 2**31 - 1
"""Boundaries within a pack are int32."""


@no_type_check
@dataclass(frozen=True, kw_only=True)
class Policy:
    """The options of ``plan_packs``; see there.

    Attributes:
        budget: The most tokens in a pack.
        strategy: How packs are filled.
        overlong: What happens to documents over the budget.
        max_documents: The most documents in a pack, or None.
        align: Each span takes a multiple of this many slots.
        packs_multiple_of: The number of packs is a multiple of this.
        window: So many consecutive documents are planned on their own, or None.
        seed: Permutes documents of equal length and the packs, or None.

    Raises:
        ValueError: If an option is out of range or unknown.
    """

    budget: int
    strategy: Strategy = "best_fit"
    overlong: Overlong = "error"
    max_documents: int | None = None
    align: int = 1
    packs_multiple_of: int = 1
    window: int | None = None
    seed: Seed | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "max_documents", "align", "packs_multiple_of", "window"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        _known("strategy", self.strategy, get_args(Strategy))
        _known("overlong", self.overlong, get_args(Overlong))
        if self.budget > LARGEST_BUDGET:
            raise ValueError(f"budget must be at most {LARGEST_BUDGET} (boundaries are int32), got {self.budget}")
        if self.align > self.budget:
            raise ValueError(f"align must not be over the budget of {self.budget}, got {self.align}")
        if self.seed is not None:
            object.__setattr__(self, "seed", plain_seed(self.seed))

    @property
    def units(self) -> int:
        """The budget in units of ``align`` slots, rounded down."""
        return self.budget // self.align

    @property
    def limit(self) -> int:
        """The longest span that fits a pack, in tokens."""
        return self.units * self.align


def _whole(name: str, value: object) -> int | None:
    if value is None and name in ("max_documents", "window"):
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def _known(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")

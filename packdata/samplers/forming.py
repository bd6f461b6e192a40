"""Forms the packs of an epoch: by ``plan_packs``, or from a plan that is there already."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..planning import Plan, plan_packs
from ..planning.randomness import generator
from .fingerprints import digest

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Formed:
    """The packs of an epoch and their order.

    Attributes:
        plan: Which documents share a pack.
        order: Numbers of the packs in the epoch's order, int64, shape ``(packs,)``.
    """

    plan: Plan
    order: Array


class Former(Protocol):
    """How the packs of an epoch are formed; their number is the same for every seed."""

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Form the packs for ``(seed, epoch)``, or in a fixed order for None."""

    def identity(self) -> dict[str, Any]:
        """Say what a saved state must share with this sampler, as JSON-able values."""


@dataclass(frozen=True, eq=False)
class PlannedPacks:
    """Plans the packs of each epoch anew."""

    lengths: Array
    budget: int
    policy: Mapping[str, Any]

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Plan with this seed."""
        plan = plan_packs(self.lengths, self.budget, **self.policy, seed=seed)
        return Formed(plan, np.arange(len(plan)))

    def identity(self) -> dict[str, Any]:
        """Name the lengths, the budget and the policy."""
        groups = self.policy["groups"]
        policy = {**self.policy, "groups": None if groups is None else digest(np.asarray(groups))}
        return {"lengths": digest(self.lengths), "budget": self.budget, **policy}


@dataclass(frozen=True, eq=False)
class ReadyPacks:
    """Shuffles the packs of a plan that is there already."""

    plan: Plan

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Permute the packs with this seed."""
        order = np.arange(len(self.plan))
        return Formed(self.plan, order if seed is None else generator(seed).permutation(order))

    def identity(self) -> dict[str, Any]:
        """Name the plan by its content."""
        parts = [self.plan.bounds, self.plan.documents, self.plan.lengths]
        parts += [] if self.plan.starts is None else [self.plan.starts]
        return {"plan": digest(*parts), "budget": self.plan.budget}

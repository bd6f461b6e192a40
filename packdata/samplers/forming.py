"""Forms the packs of an epoch: by ``plan_packs``, or from a plan that is there already."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from packdata.planning import Plan, plan_packs
from packdata.planning.blocks import Array, index_dtype
from packdata.planning.fingerprints import fingerprint
from packdata.planning.policy import Policy
from packdata.planning.randomness import generator


@dataclass(frozen=True, eq=False)
class Formed:
    """The packs of an epoch and their order.

    Attributes:
        plan: Which documents share a pack.
        order: Numbers of the packs in the epoch's order, signed integers, shape ``(packs,)``.
    """

    plan: Plan
    order: Array


@runtime_checkable
class Former(Protocol):
    """How the packs of an epoch are formed; their number is the same for every seed."""

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Form the packs for ``(seed, epoch)``, or in a fixed order for None."""

    def identity(self) -> dict[str, Any]:
        """Say what a state must share with this sampler, as JSON-able values."""

    def slots(self, plan: Plan, packs: Array) -> int:
        """Count the slots that some of the packs take."""


def in_order(plan: Plan) -> Array:
    """Number the packs of a plan, in the smallest signed dtype."""
    return np.arange(len(plan), dtype=index_dtype(len(plan)))


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedPacks:
    """Plans the packs of each epoch anew.

    Attributes:
        lengths: Tokens of each document.
        groups: Documents of one number share a pack, or None.
        policy: How to pack.
    """

    lengths: Array
    groups: Array | None
    policy: Policy

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Plan with this seed; the plan's own order stands."""
        plan = plan_packs(self.lengths, groups=self.groups, **asdict(replace(self.policy, seed=seed)))
        return Formed(plan, in_order(plan))

    def identity(self) -> dict[str, Any]:
        """Name the lengths, the groups and the policy."""
        groups = None if self.groups is None else fingerprint(self.groups)
        return {"lengths": fingerprint(self.lengths), "groups": groups, **asdict(self.policy)}

    def slots(self, plan: Plan, packs: Array) -> int:
        """Count a budget for each pack."""
        return len(packs) * plan.budget


@dataclass(frozen=True, eq=False)
class ReadyPacks:
    """Shuffles the packs of a plan that is there already.

    Attributes:
        plan: The plan.
    """

    plan: Plan

    def form(self, seed: tuple[int, int] | None) -> Formed:
        """Permute the packs with this seed."""
        order = in_order(self.plan)
        return Formed(self.plan, order if seed is None else generator(seed).permutation(order))

    def identity(self) -> dict[str, Any]:
        """Name the plan."""
        return {"plan": self.plan.fingerprint}

    def slots(self, plan: Plan, packs: Array) -> int:
        """Count a budget for each pack."""
        return len(packs) * plan.budget

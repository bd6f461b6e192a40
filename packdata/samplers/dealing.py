"""Deals the packs of an epoch to the ranks, step by step.

An epoch is a sequence of packs. A step takes ``world * packs_per_batch`` of them, so that every rank gets one batch:

    packs in order   a b c d e f g           world 2, one pack a batch
    steps            a b | c d | e f | g -   "pad": the last step is filled up with empty batches
                     a b | c d | e f         "drop": what does not fill a step is left out, and counted

With ``balance``, the packs are sorted by cost within windows of some steps before they are cut into steps, and the
steps of a window are shuffled again: the ranks of one step then hardly wait for each other, and beyond the window the
order is as random as before.

After a resume with another number of ranks, the packs that were used are taken out and the rest is dealt anew.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from packdata.planning.blocks import Array
from packdata.planning.edge import no_type_check, require_at_least
from packdata.planning.randomness import generator
from packdata.ranks import resolve_rank

EMPTY = -1
"""Stands for no pack where a step is filled up."""

Progress = tuple[tuple[int, int], ...]
"""What was used of an epoch: pairs of (ranks, batches over all of them), one for each number of ranks in turn."""


@dataclass(frozen=True)
class Share:
    """Which batches of the dealing order are one sampler's: ``offset``, ``offset + stride``, and so on.

    Attributes:
        rank: The rank, or None for the batches of all ranks.
        world: The number of ranks.
    """

    rank: int | None
    world: int

    @classmethod
    def of(cls, rank: Any, world_size: Any) -> "Share":
        """Resolve what the user gave, ``rank="all"`` included; raises a ValueError if it makes no sense."""
        if not isinstance(rank, str):
            return cls(*resolve_rank(rank, world_size))
        if rank != "all":
            raise ValueError(f'rank must be an integer, "all" or None, got {rank!r}')
        return cls(None, resolve_rank()[1] if world_size is None else resolve_rank(0, world_size)[1])

    @property
    def offset(self) -> int:
        """Its first batch."""
        return self.rank or 0

    @property
    def stride(self) -> int:
        """From one of its batches to the next."""
        return 1 if self.rank is None else self.world


@no_type_check
@dataclass(frozen=True, kw_only=True)
class Dealing:
    """How the packs of an epoch are ordered and dealt.

    Attributes:
        share: Which batches are this sampler's.
        shuffle: Whether every epoch has its own order.
        seed: Of the shuffle.
        uneven: "pad" or "drop" the last step if it is incomplete.
        balance: "attention" to put packs of similar cost into one step.
        balance_window: Steps within which ``balance`` sorts.
        packs_per_batch: Packs in a batch.
    """

    share: Share
    shuffle: bool
    seed: int
    uneven: Literal["pad", "drop"]
    balance: Literal["attention"] | None
    balance_window: int
    packs_per_batch: int = 1

    def __post_init__(self) -> None:
        """Check each value."""
        if not isinstance(self.shuffle, bool):
            raise ValueError(f"shuffle must be True or False, got {self.shuffle!r}")
        if self.uneven not in ("pad", "drop"):
            raise ValueError(f'uneven must be "pad" or "drop", got {self.uneven!r}')
        if self.balance not in (None, "attention"):
            raise ValueError(f'balance must be None or "attention", got {self.balance!r}')
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        for name, least in {"seed": 0, "balance_window": 1, "packs_per_batch": 1}.items():
            object.__setattr__(self, name, require_at_least(getattr(self, name), least, name))

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.share.world

    def step(self, world: int) -> int:
        """Packs that a step of ``world`` ranks takes."""
        return world * self.packs_per_batch

    def batches(self, packs: int, world: int) -> int:
        """Batches over all ranks that ``packs`` packs make, a multiple of ``world``."""
        whole, rest = divmod(packs, self.step(world))
        return (whole + (rest > 0 and self.uneven == "pad")) * world

    def rng(self, epoch: int, purpose: int) -> np.random.Generator:
        """Give the random generator of one purpose in one epoch."""
        return generator((self.seed, epoch, purpose + 1))  # a trailing 0 would repeat the plan's (seed, epoch)


def packs_left(packs: int, used: Progress, dealing: Dealing) -> int:
    """Count the packs that are left of an epoch.

    Args:
        packs: Packs of the whole epoch.
        used: What was used of it.
        dealing: How they are dealt.

    Raises:
        ValueError: If more were used than there were.
    """
    for world, batches in used:
        if batches > dealing.batches(packs, world):
            raise ValueError(f"{batches} batches used by {world} ranks are more than there were for {packs} packs")
        packs -= min(packs, batches * dealing.packs_per_batch)
    return packs


def split_progress(used: Progress, share: Share) -> tuple[Progress, int]:
    """Split what was used into the turns that are over and the batches of the turn that goes on.

    The last turn goes on if it dealt to as many ranks, and ends where this share can begin; else a new turn begins.
    """
    if used and used[-1][0] == share.world and used[-1][1] % share.stride == 0:
        return used[:-1], used[-1][1]
    return used, 0


def deal(
    order: Int[np.ndarray, " packs"], turns: Progress, dealing: Dealing, *, epoch: int, costs: Any = None
) -> Int[np.ndarray, " dealt"]:
    """Deal what some turns left of an epoch.

    Args:
        order: Numbers of the packs, in the epoch's order.
        turns: What was used, by how many ranks.
        dealing: How to deal.
        epoch: Which epoch.
        costs: Cost of each pack by its number, to balance by; None to keep the order.

    Returns:
        The packs as they are dealt, ``EMPTY`` where there is none; a multiple of a step.
    """
    for turn, (world, batches) in enumerate(turns):
        dealt = _arrange(order, dealing, world, costs, purpose=(epoch, turn))
        used = dealt[: batches * dealing.packs_per_batch]
        order = _without(order, used[used != EMPTY])
    return _arrange(order, dealing, dealing.world, costs, purpose=(epoch, len(turns)))


def _without(order: Int[np.ndarray, " packs"], used: Int[np.ndarray, " used"]) -> Int[np.ndarray, " rest"]:
    keep = np.ones(order.max(initial=-1) + 1, dtype=bool)
    keep[used] = False
    rest: Array = order[keep[order]]
    return rest


def _arrange(
    order: Int[np.ndarray, " packs"], dealing: Dealing, world: int, costs: Any, *, purpose: tuple[int, int]
) -> Int[np.ndarray, " dealt"]:
    """Put packs into the order in which ``world`` ranks take them, the last step padded or dropped."""
    step = dealing.step(world)
    whole = len(order) - len(order) % step
    head, tail = order[:whole], order[whole:]
    if costs is not None and world > 1:
        rng = dealing.rng(*purpose) if dealing.shuffle else None
        window = step * dealing.balance_window
        windows = (head[first : first + window] for first in range(0, whole, window))
        head = np.concatenate([head[:0], *(_balanced(packs, costs, world, step, rng) for packs in windows)])
    if dealing.uneven == "drop" or not len(tail):
        return head
    return np.concatenate([head, tail, np.full(step - len(tail), EMPTY, dtype=order.dtype)])


def _balanced(
    packs: Int[np.ndarray, " packs"], costs: Any, world: int, step: int, rng: np.random.Generator | None
) -> Int[np.ndarray, " packs"]:
    """Sort a window by cost into steps, deal each step to the ranks in zigzag, and shuffle ranks and steps."""
    ranked = packs[np.argsort(costs[packs], kind="stable")].reshape(-1, step // world, world)
    ranked[:, 1::2] = ranked[:, 1::2, ::-1]
    batches: Array = ranked.transpose(0, 2, 1)  # step, rank, pack
    if rng is not None:
        shares = rng.permuted(np.tile(np.arange(world), (len(batches), 1)), axis=1)
        batches = np.take_along_axis(batches, shares[:, :, None], axis=1)[rng.permutation(len(batches))]
    return batches.reshape(-1)

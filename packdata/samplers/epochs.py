"""What the samplers share: epochs, length, iteration, and a state that resumes anywhere.

A sampler stands at a point: an epoch, and what was used of it. Iterators begin there, also the second and the third,
until one hands out the epoch's last batch, which moves the sampler to the start of the next epoch. The sampler also
keeps where the newest iterator began and how many batches it handed out; ``state_dict`` and ``checkpoint`` count from
there.
"""

import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from packdata.planning import Ledger, Plan
from packdata.planning.blocks import Array
from packdata.planning.edge import no_type_check, require_at_least
from packdata.planning.wording import counted

from .costs import pack_costs, straggler_ratio
from .dealing import EMPTY, Dealing, Progress, deal, packs_left, split_progress
from .forming import Formed, Former
from .ledgers import without_packs
from .sharding import refuse_second_sharding
from .states import make_state, own_batches, read_state

Point = tuple[int, Progress]


class EpochSampler:
    """A batch sampler over the packs that a former forms, dealt to ranks."""

    def __init__(self, former: Former, dealing: Dealing, *, items: Literal["documents", "packs"]) -> None:
        self._former = former
        self._dealing = dealing
        self._items = items
        self._identity: dict[str, Any] | None = None
        self._formed: tuple[int, Formed] | None = None
        self._point: Point
        self._stand((0, ()))
        plan = self._form(0).plan
        self._packs, self._documents, self._budget = len(plan), plan.ledger.documents_in, plan.budget
        if plan.ledger.documents_in and plan.ledger.documents_in == plan.ledger.documents_empty:
            raise ValueError(
                f"lengths are 0 for all {plan.ledger.documents_in} documents: were they read before tokenising?"
            )
        if self._packs and not len(self):
            raise ValueError(
                f'uneven="drop" would drop all {self._packs} packs, since a step takes {dealing.step(dealing.world)} '
                f"(world_size={dealing.world}, packs_per_batch={dealing.packs_per_batch}): "
                'give more documents, fewer ranks, or uneven="pad"'
            )

    @property
    def sampler(self) -> "EpochSampler":
        """This sampler itself, so that a framework's ``set_epoch`` arrives."""
        return self

    @property
    def batch_sampler(self) -> "EpochSampler":
        """This sampler itself, so that a framework's ``set_epoch`` arrives."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator will go through."""
        return self._point[0]

    @property
    def consumed(self) -> int:
        """How many of this sampler's batches of its epoch are used already, where the next iterator begins."""
        return own_batches(self._point[1], self._dealing.share)

    def __len__(self) -> int:
        """Count the batches of a whole epoch: the same for every epoch and rank."""
        return self._dealing.batches(self._packs, self._dealing.world) // self._dealing.share.stride

    def __repr__(self) -> str:
        share = self._dealing.share
        facts = [
            counted(self._documents, "document"),
            counted(self._packs, "pack"),
            f"budget {self._budget:,}",
            f"{counted(len(self), 'list')} of {self._items}",
            f"rank {'all' if share.rank is None else share.rank} of {share.world}",
            f"epoch {self.epoch}",
            f"seed {self._dealing.seed}" if self._dealing.shuffle else "not shuffled",
        ]
        return f"{type(self).__name__}({', '.join(facts)})"

    def __iter__(self) -> Iterator[list[Any]]:
        refuse_second_sharding(sys._getframe(1), self._dealing.share)
        self._began, self._handed = point, _ = self._point, 0
        self._newest = token = object()
        turns, first = split_progress(point[1], self._dealing.share)
        plan, dealt, last = self._form(point[0]).plan, self._deal(point[0], turns), self._remaining(point)
        size, share = self._dealing.packs_per_batch, self._dealing.share
        for handed, batch in enumerate(range(first + share.offset, len(dealt) // size, share.stride), start=1):
            if self._newest is token:
                self._handed = handed
                self._point = (point[0] + 1, ()) if handed == last else point
            yield self._batch(plan, dealt[batch * size : (batch + 1) * size])

    @no_type_check
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; if the sampler stands in it already, stay where it is.

        Args:
            epoch: From 0.

        Raises:
            ValueError: If it is no such integer.
        """
        if require_at_least(epoch, 0, "epoch") != self.epoch:
            self._stand((int(epoch), ()))
        elif self._began[0] != self.epoch:
            self._stand(self._point)  # the epoch before is over, also for checkpoint

    @property
    def ledger(self) -> Ledger:
        """What the epoch that the sampler stands in keeps and drops, resumed or not."""
        formed = self._form(self.epoch)
        dropped = np.setdiff1d(formed.order, self._deal(self.epoch, ()))
        return without_packs(formed.plan, dropped, slots=self._former.slots(formed.plan, dropped))

    @no_type_check
    def straggler_ratio(self, *, token_cost: float = 0.0) -> float:
        """Say how much longer the epoch's steps take than they would with the work of a step spread evenly.

        A step takes as long as its slowest rank. The work of a document is its attention, length², and what its tokens
        cost elsewhere.

        Args:
            token_cost: The cost of a token outside attention, in units of one query-key pair: 0 for attention alone; in
                a transformer about 6 × its hidden size (12 × where the kernel skips the masked half), since a
                layer's matrices take 24 · hidden² operations a token, its attention 4 · hidden a pair.

        Returns:
            Σ over steps of the largest cost of a rank / Σ over steps of the mean cost; 1.0 is perfect.

        Raises:
            ValueError: If ``token_cost`` is negative.
        """
        if not isinstance(token_cost, int | float | np.number) or not token_cost >= 0:
            raise ValueError(f"token_cost must be a number of at least 0, got {token_cost!r}")
        plan, dealt = self._form(self.epoch).plan, self._deal(self.epoch, ())
        costs = np.append(pack_costs(plan, float(token_cost)), 0.0)[dealt]  # EMPTY, the last one, costs nothing
        batches = costs.reshape(-1, self._dealing.packs_per_batch).sum(axis=1)
        return straggler_ratio(batches.reshape(-1, self._dealing.world))

    def state_dict(self) -> dict[str, Any]:
        """Say how far this sampler's newest iterator is, for a loader that keeps track (``StatefulDataLoader``).

        Returns:
            A small JSON-able dict.
        """
        return self._state(self._after(self._began, self._handed))

    @no_type_check
    def checkpoint(self, consumed: int) -> dict[str, Any]:
        """Say how far the training loop is, for a loader whose workers have fetched ahead of it.

        Args:
            consumed: How many of this sampler's batches the loop has used since the epoch began (not since a resume).

        Returns:
            A state to resume from, as of ``state_dict``.

        Raises:
            ValueError: If the epoch, or what was left of it, does not have so many.
        """
        earlier = own_batches(self._began[1], self._dealing.share)
        total = earlier + self._remaining(self._began)
        if not earlier <= require_at_least(consumed, 0, "consumed") <= total:
            raise ValueError(
                f"consumed counts the batches since epoch {self._began[0]} began, from {earlier} to {total} here, "
                f"got {consumed}"
            )
        return self._state(self._after(self._began, consumed - earlier))

    def load_state_dict(self, state: Any) -> None:
        """Go to where a state says; the next iterators begin there until the epoch ends.

        Args:
            state: Of a sampler of the same kind, dataset, policy and seed, with any number of ranks.

        Raises:
            ValueError: If it is something else, naming the difference.
        """
        point = read_state(state, kind=type(self).__name__, identity=self._identify())
        packs_left(self._packs, point[1], self._dealing)  # refuses a state that says more than there was
        self._stand(point if self._remaining(point) else (point[0] + 1, ()))

    def _stand(self, point: Point) -> None:
        self._point, self._began, self._handed = point, point, 0
        self._newest = object()  # iterators that run already move no state any more

    def _state(self, point: Point) -> dict[str, Any]:
        return make_state(type(self).__name__, *point, self._identify())

    def _identify(self) -> dict[str, Any]:
        if self._identity is None:
            names = ("shuffle", "seed", "uneven", "balance", "balance_window", "packs_per_batch")
            self._identity = {**self._former.identity(), **{name: getattr(self._dealing, name) for name in names}}
        return self._identity

    def _after(self, point: Point, handed: int) -> Point:
        """Give the point after an iterator that began at ``point`` handed out so many batches."""
        epoch, used = point
        if handed == self._remaining(point):
            return epoch + 1, ()
        turns, first = split_progress(used, self._dealing.share)
        done = first + handed * self._dealing.share.stride
        return epoch, (*turns, (self._dealing.world, done)) if done else turns

    def _remaining(self, point: Point) -> int:
        turns, first = split_progress(point[1], self._dealing.share)
        total = self._dealing.batches(packs_left(self._packs, turns, self._dealing), self._dealing.world)
        return (total - first) // self._dealing.share.stride

    def _form(self, epoch: int) -> Formed:
        epoch = epoch if self._dealing.shuffle else 0
        if self._formed is None or self._formed[0] != epoch:
            self._formed = None  # the last epoch's plan goes before the next one comes
            self._formed = epoch, self._former.form((self._dealing.seed, epoch) if self._dealing.shuffle else None)
        return self._formed[1]

    def _deal(self, epoch: int, turns: Progress) -> Array:
        formed = self._form(epoch)
        costs = None if self._dealing.balance is None else pack_costs(formed.plan)
        return deal(formed.order, turns, self._dealing, epoch=epoch, costs=costs)

    def _batch(self, plan: Plan, packs: Array) -> list[Any]:
        spans = [(plan.bounds[pack], plan.bounds[pack + 1], pack) for pack in packs.tolist() if pack != EMPTY]
        if self._items == "packs":
            return [plan[pack] for first, end, pack in spans if first < end]
        return [document for first, end, _ in spans for document in plan.documents[first:end].tolist()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_formed": None}  # made again where it is needed

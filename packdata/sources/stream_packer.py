"""``StreamPacker``: pack a stream window by window, on any number of ranks and workers, and stop anywhere.

The stream is cut into windows of so many documents, each window is planned on its own, and the packs of all windows are
numbered through: 0, 1, 2, … With ``split="packs"`` rank *r* of *R* takes the packs *r*, *r* + *R*, …, and worker *w* of
its *W* takes of those the *w*-th, (*w* + *W*)-th, …, so that a ``DataLoader``, which asks its workers in turn, gets
them in order. In all that is one arithmetic progression for each worker:

    pack number = base + r + R · (w + W · i),   i = 0, 1, 2, …

The state is *i*, the base (0, or where a run with another number of ranks took over), and the mark of the window that
the last pack came from. At the end of the stream ranks that have one pack less get an empty one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Never

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from packdata.planning import Ledger, Pack, Plan
from packdata.planning.edge import no_type_check, require_at_least
from packdata.planning.plan import Array
from packdata.planning.policy import Overlong, Policy, Strategy
from packdata.planning.randomness import Seed
from packdata.ranks import resolve_rank

from .documents import Documents
from .packing import gather_spans, named_columns, packable
from .planned import PlanOptions, Untargeted, check_untargeted, plan_documents, refuse_unknown
from .streams import Mark, Window, open_stream, read_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far one worker has come.

    Attributes:
        epoch: The epoch.
        base: Packs that earlier runs, with other numbers of ranks, handed out.
        handed: Packs that this worker handed out since.
        world_size: Ranks.
        workers: Workers of the rank, 1 where the training process reads.
        part: Which part of the documents this worker reads, 0 where it reads all.
        packs: Packs before the window.
        mark: Where the window begins.
        ledger: Of the windows before.
    """

    epoch: int = 0
    base: int = 0
    handed: int = 0
    world_size: int = 1
    workers: int = 1
    part: int = 0
    packs: int = 0
    mark: Mark = field(default_factory=Mark)
    ledger: Ledger = field(default_factory=Ledger)


@no_type_check
class StreamPacker(IterableDataset[dict[str, Array]]):
    """Packs of a stream, each a dict of numpy arrays with ``seq_lengths``.

    Args:
        source: Documents that can be read again: a ``datasets.IterableDataset``, a ``Dataset``, an Arrow table, a list,
            or any object whose ``__iter__`` begins anew (also with ``state_dict`` and ``load_state_dict``). It must
            give every worker and rank the same documents.
        budget: The most tokens in a pack.
        window: Documents that are planned together, and held in memory.
        split: ``"packs"``: every rank and worker reads everything and takes its packs; ranks come out even.
            ``"documents"``: every rank and worker reads its part of the documents, and ``packs_per_rank`` is needed.
        packs_per_rank: Packs of each rank in an epoch with ``split="documents"``: a rank stops there, whatever is
            unread, and is filled up with empty packs before.
        rank: The data-parallel rank; by default that of ``torch.distributed`` or of the environment.
        world_size: The number of ranks.
        untargeted: What happens to documents left without a target: ``"keep"``, ``"drop"``, ``"error"``.
        drop_columns: Columns to leave behind. Each that is not per token must be named.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing.
        strategy: As for ``plan_packs``, like the rest; ``help(packdata.plan_packs)`` explains them.
        overlong: As for ``plan_packs``; ``ledger`` counts what is lost.
        max_documents: The most documents in a pack.
        align: Each span takes a multiple of this many slots.
        seed: Shuffles the packs of a window, differently in each window and epoch.

    Raises:
        ValueError: If an option is out of range, or the stream is already split by node; while iterating, if parts of
            the documents would not add up to the stream (after ``skip`` or ``take``).
        TypeError: If the source can be read only once, or an option is unknown.

    Example:
        >>> packer = StreamPacker([[1, 2, 3], [4, 5], [6]], budget=4)
        >>> [pack["input_ids"].tolist() for pack in packer]
        [[1, 2, 3, 6], [4, 5]]
    """

    def __init__(
        self,
        source: Any,
        budget: int,
        *,
        window: int = 4096,
        split: Literal["packs", "documents"] = "packs",
        packs_per_rank: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        untargeted: Untargeted = "keep",
        drop_columns: Collection[str] = (),
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        strategy: Strategy = "best_fit",
        overlong: Overlong = "error",
        max_documents: int | None = None,
        align: int = 1,
        seed: Seed | None = None,
        **unknown: Never,
    ):
        known = ("strategy", "overlong", "max_documents", "align", "window", "seed")
        refuse_unknown("StreamPacker", unknown, known)
        self.rank, self.world_size = resolve_rank(rank, world_size)
        require_at_least(window, 1, "window")
        self.policy = Policy(
            budget=budget,
            strategy=strategy,
            overlong=overlong,
            max_documents=max_documents,
            align=align,
            window=window,
            seed=seed,
        )
        _check_split(split, packs_per_rank)
        check_untargeted(untargeted)
        self._stream = open_stream(source)
        self.split, self.packs_per_rank, self.untargeted = split, packs_per_rank, untargeted
        self.drop_columns = named_columns(drop_columns)
        self.markers = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # seen by workers that live on
        self._resume: Position | None = None
        self._position = Position()
        self._ledger = Ledger()

    @property
    def epoch(self) -> int:
        """The epoch, which orders a source that has ``set_epoch`` and shuffles with ``seed``."""
        return int(self._epoch)

    @property
    def ledger(self) -> Ledger:
        """What became of the documents of all windows that this process has planned in this epoch."""
        return self._ledger

    def set_epoch(self, epoch: int) -> None:
        """Go to the front of another epoch; the current one stays where it is."""
        if require_at_least(epoch, 0, "epoch") != self.epoch:
            self._epoch.fill_(epoch)
            self._resume, self._position = None, Position(epoch=self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Say how far the iteration has come: a small dict, JSON-able if the source's own state is."""
        return {"options": self._options()} | asdict(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken: the next iteration, and each until the epoch ends, begins there.

        With ``split="packs"`` a state that the training process took (not a worker) is good for any rank, number of
        ranks and number of workers.

        Raises:
            ValueError: If it is no packer's state, or that of a packer with other options (they are named).
        """
        theirs, position = _read_state(state)
        ours = self._options()
        other = [name for name in ours if theirs.get(name) != ours[name]]
        if other:
            named = ", ".join(f"{name}={theirs.get(name)!r}, now {ours[name]!r}" for name in other)
            raise ValueError(f"the state is that of a packer with other options: {named}")
        self._resume = self._position = position
        self._epoch.fill_(self._resume.epoch)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._position = self._begin(worker, workers)
        return self._packs(worker, workers)  # a generator: all above is done before its first pack is asked for

    def _begin(self, worker: int, workers: int) -> Position:
        """Find where this worker begins: at the front, or at the state that was loaded."""
        part = self.rank * workers + worker if self.split == "documents" else 0
        position = self._resume
        if position is None or position.epoch != self.epoch:
            position = Position(epoch=self.epoch)
        here = replace(position, world_size=self.world_size, workers=workers, part=part)
        if here == position or not (position.handed or position.base):
            return here
        if self.split == "documents" or position.workers > 1:
            raise ValueError(
                f"the state was taken with {position.world_size} ranks of {position.workers} workers, part "
                f"{position.part}; now there are {self.world_size} of {workers}, part {part}: only a state that the "
                "training process took with split='packs' fits others"
            )
        return replace(here, base=position.base + position.world_size * position.handed, handed=0)

    def _packs(self, worker: int, workers: int) -> Iterator[dict[str, Array]]:
        position = self._position
        by_packs = self.split == "packs"
        parts = self.world_size * workers
        stride = parts if by_packs else 1
        offset = position.base + self.rank + self.world_size * worker if by_packs else 0
        limit = None if self.packs_per_rank is None else _share(self.packs_per_rank, worker, workers)
        documents, total, handed = None, position.packs, position.handed
        for documents, plan in self._windows(position):
            total = self._position.packs + len(plan)
            while (number := offset + stride * handed) < total and (limit is None or handed < limit):
                handed += 1
                pack = plan[number - self._position.packs]
                self._position = replace(self._position, handed=handed)
                yield gather_spans(documents, pack)
            if handed == limit:
                break
        rounds = -(-max(total - position.base, 0) // self.world_size)
        last = _share(rounds, worker, workers) if limit is None else limit
        for number in range(handed + 1, last + 1):
            self._position = replace(self._position, handed=number)
            yield _empty_pack(documents)
        self._resume = None

    def _windows(self, position: Position) -> Iterator[tuple[Documents, Plan]]:
        """Plan window after window, and note in the position where each begins."""
        stream = self._stream
        if self.split == "documents" and self.world_size * position.workers > 1:
            stream = stream.part(position.part, self.world_size * position.workers)
        packs, ledger = position.packs, position.ledger
        window = Window(size=self.policy.window or 1, open=self._open, epoch=position.epoch)
        for documents, mark in read_windows(stream, window, position.mark):
            plan = plan_documents(documents, self.policy.budget, untargeted=self.untargeted, **self._policy_at(mark))
            self._position = replace(self._position, packs=packs, mark=mark, ledger=ledger)
            packs, ledger = packs + len(plan), ledger + plan.ledger
            self._ledger = ledger
            yield documents, plan

    def _open(self, source: Any) -> Documents:
        return packable(source, self.drop_columns, **self.markers)

    def _policy_at(self, mark: Mark) -> PlanOptions:
        """Return the policy for the window at a mark, with a seed of its own."""
        policy, seed = self.policy, self.policy.seed
        if seed is not None:
            seed = (*(seed if isinstance(seed, tuple) else (seed,)), self.epoch, mark.documents)
        return {
            "strategy": policy.strategy,
            "overlong": policy.overlong,
            "max_documents": policy.max_documents,
            "align": policy.align,
            "seed": seed,
        }

    def _options(self) -> dict[str, Any]:
        policy = asdict(self.policy)
        if isinstance(self.policy.seed, tuple):
            policy["seed"] = list(self.policy.seed)  # as JSON gives it back
        names = ("split", "packs_per_rank", "untargeted", "drop_columns")
        return policy | {name: getattr(self, name) for name in names} | self.markers


def _share(packs: int, worker: int, workers: int) -> int:
    """Count the packs of a rank that fall to one of its workers when they take turns."""
    return max(0, -(-(packs - worker) // workers))


def _empty_pack(documents: Documents | None) -> dict[str, Array]:
    none = Pack(documents=np.empty(0, np.int64), starts=np.empty(0, np.int32), lengths=np.empty(0, np.int32))
    return gather_spans(Documents([]) if documents is None else documents, none)


def _check_split(split: Any, packs_per_rank: Any) -> None:
    if split not in ("packs", "documents"):
        raise ValueError(f"split must be 'packs' or 'documents', got {split!r}")
    if (split == "documents") != (packs_per_rank is not None):
        raise ValueError(
            f"packs_per_rank goes with split='documents', where ranks cannot know of each other's packs; got "
            f"split={split!r}, packs_per_rank={packs_per_rank}"
        )
    if packs_per_rank is not None:
        require_at_least(packs_per_rank, 1, "packs_per_rank")


def _read_state(state: Any) -> tuple[dict[str, Any], Position]:
    """Read the options and the position out of a state."""
    names = {"options", *(each.name for each in fields(Position))}
    if not isinstance(state, Mapping) or state.keys() != names or not isinstance(state["options"], Mapping):
        raise ValueError(f"state must be what a StreamPacker's state_dict() returned, got {state!r:.200}")
    plain = {name: value for name, value in state.items() if name not in ("options", "mark", "ledger")}
    for name, value in plain.items():
        require_at_least(value, 0, f"the state's {name}")
    ledger = Ledger.from_dict(state["ledger"])
    return dict(state["options"]), Position(**plain, mark=Mark(**state["mark"]), ledger=ledger)

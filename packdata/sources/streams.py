"""Sources that are read from the front, window by window, from any mark on.

A mark says where a window begins: how many documents come before it, the source's own state there if it has one, and a
digest of the window. Going back to a mark is the cheapest of three things that gives the same window again:

    seek      rows of a dataset, table or list are at hand
    restore   the source has ``state_dict`` and ``load_state_dict``
    replay    read from the front and count: for whatever can be iterated again, and where a restored state turns out to
              be inexact (that of a ``datasets`` stream forgets shuffle buffers, and some batches)
"""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, Protocol, runtime_checkable

import datasets
import numpy as np
import pyarrow as pa
from datasets import iterable_dataset as hf
from datasets.distributed import split_dataset_by_node

from packdata.planning import Pack
from packdata.planning.edge import no_type_check

from .documents import Documents
from .tables import open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a window begins.

    Attributes:
        documents: Documents of the stream before it.
        state: The source's own state there, None if it has none that is exact.
        digest: Of the tokens in the window, None at a mark that nothing was read from.
    """

    documents: int = 0
    state: Any = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How to read windows.

    Attributes:
        size: Documents in a window, but for the last.
        open: Makes ``Documents`` of what a source gives.
        epoch: The epoch, for sources that order themselves by it.
    """

    size: int
    open: Callable[[Any], Documents]
    epoch: int = 0


Windows = Iterator[tuple[Documents, Mark]]


@runtime_checkable
class Stream(Protocol):
    """A source that can be read in windows from a mark on."""

    def part(self, part: int, parts: int) -> "Stream":
        """Narrow the stream to every ``parts``-th document, from the ``part``-th on."""

    def windows(self, window: Window, mark: Mark) -> Windows:
        """Yield each window from a mark on, and its mark, undigested."""


def read_windows(stream: Stream, window: Window, mark: Mark) -> Windows:
    """Yield each window from a mark on, and the window's own mark.

    Raises:
        ValueError: If the stream no longer gives the window that it gave at the mark.
    """
    windows = _begin(stream, window, mark)
    if windows is None:
        windows = _begin(stream, window, replace(mark, state=None))
    if windows is None:
        raise ValueError(
            f"the stream does not repeat itself: from document {mark.documents} on it is not what was read before"
        )
    yield from windows


def _begin(stream: Stream, window: Window, mark: Mark) -> Windows | None:
    """Read on from a mark; None if that gives another window than it gave before."""
    read = stream.windows(window, mark)
    windows = ((documents, replace(here, digest=_digest(documents))) for documents, here in read)
    first = next(windows, None)
    if mark.digest is not None and (first is None or first[1].digest != mark.digest):
        return None
    return iter(()) if first is None else chain([first], windows)


def _digest(documents: Documents) -> str:
    """Digest the tokens of a window, whatever their integer type."""
    digest = hashlib.blake2b(documents.lengths.astype("<i8").tobytes(), digest_size=8)
    whole = Pack(
        documents=np.arange(len(documents)), starts=np.zeros(len(documents), np.int32), lengths=documents.lengths
    )
    digest.update(documents.gather("input_ids", whole).astype("<i8").tobytes())
    return digest.hexdigest()


def open_stream(source: Any) -> Stream:
    """See a source as a stream.

    Raises:
        TypeError: If the source cannot be read twice, or not at all.
        ValueError: If it is a part of a stream already.
    """
    if isinstance(source, datasets.IterableDataset):
        return PipelineStream.open(source)
    if isinstance(source, datasets.Dataset):
        return SeekableStream(source)
    if isinstance(source, pa.Table | Mapping | Sequence | np.ndarray) and not isinstance(source, str | bytes):
        return SeekableStream(open_source(source).table)
    if not isinstance(source, Iterable) or isinstance(source, str | bytes):
        raise TypeError(f"a stream must be iterable, got {type(source).__name__}")
    if iter(source) is source:
        raise TypeError(
            f"a {type(source).__name__} can be read only once, and a packer reads again: after a stop, in each worker, "
            "in each epoch. Give a list, a dataset, or an object whose __iter__ begins anew"
        )
    return IterableStream.open(source)


@dataclass(frozen=True, slots=True)
class SeekableStream:
    """Documents with row numbers; their order is the same in every epoch."""

    source: Any
    first: int = 0
    step: int = 1

    def part(self, part: int, parts: int) -> Stream:
        """Narrow the stream; see ``Stream``."""
        return replace(self, first=part, step=parts)

    def windows(self, window: Window, mark: Mark) -> Windows:
        """Yield windows; see ``Stream``."""
        documents = window.open(self.source)
        numbers = np.arange(self.first, len(documents), self.step)
        for number in range(mark.documents, len(numbers), window.size):
            yield documents.select(numbers[number : number + window.size]), Mark(documents=number)


@dataclass(frozen=True, slots=True)
class IterableStream:
    """Whatever can be iterated again; ``initial`` is its own state at the front, None if it has none."""

    source: Any
    initial: Any = None
    first: int = 0
    step: int = 1

    @classmethod
    def open(cls, source: Any) -> "IterableStream":
        """Open a source that stands at its front."""
        is_stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        return cls(source, copy.deepcopy(source.state_dict()) if is_stateful else None)

    def part(self, part: int, parts: int) -> Stream:
        """Narrow the stream; see ``Stream``."""
        return replace(self, first=part, step=parts)

    def windows(self, window: Window, mark: Mark) -> Windows:
        """Yield windows; see ``Stream``."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(window.epoch)
        if self.initial is not None:
            self.source.load_state_dict(copy.deepcopy(self.initial if mark.state is None else mark.state))
        documents = iter(self.source)
        deque(islice(documents, mark.documents * self.step if mark.state is None else 0), maxlen=0)
        state = self._state()
        for number in count(mark.documents, window.size):
            rows = list(islice(documents, window.size * self.step))[self.first :: self.step]
            if not rows:
                return
            yield window.open(rows), Mark(documents=number, state=state)
            state = self._state()

    def _state(self) -> Any:
        return None if self.initial is None else copy.deepcopy(self.source.state_dict())


@no_type_check  # datasets makes IterableDataset a subclass of torch's once torch is there, which confuses the checks
@dataclass(frozen=True, slots=True)
class PipelineStream:
    """A pipeline of ``datasets``."""

    source: datasets.IterableDataset
    has_buffer: bool

    @classmethod
    def open(cls, source: datasets.IterableDataset) -> "PipelineStream":
        """Open a pipeline that is no part of one."""
        if source._distributed is not None:
            raise ValueError(
                f"the stream is already split by node (rank {source._distributed.rank} of "
                f"{source._distributed.world_size}): give the whole stream, which the packer deals to ranks itself"
            )
        stages = _stages(source._ex_iterable)
        # Python rows cost far more than tables; but what is mapped stays in the format that it was made for.
        tables = source._ex_iterable.iter_arrow is not None and hf.MappedExamplesIterable not in stages
        own = source.with_format("arrow") if tables else copy.copy(source)
        return cls(own, has_buffer=hf.BufferShuffledExamplesIterable in stages)

    def part(self, part: int, parts: int) -> Stream:
        """Narrow the stream; see ``Stream``."""
        cut = _stages(self.source._ex_iterable) & {hf.SkipExamplesIterable, hf.TakeExamplesIterable}
        if cut and parts > 1 and self.source.num_shards % parts == 0:  # else parts take turns, which is right
            raise ValueError(
                f"split='documents' would deal the stream's {self.source.num_shards} shards to {parts} readers, and "
                "datasets then skips and takes other documents than in the whole stream: use split='packs'"
            )
        return replace(self, source=split_dataset_by_node(self.source, rank=part, world_size=parts))

    def windows(self, window: Window, mark: Mark) -> Windows:
        """Yield windows; see ``Stream``."""
        self.source.set_epoch(window.epoch)
        self.source.load_state_dict(copy.deepcopy(mark.state))
        state, first = self._state(), 0 if mark.state is None else mark.documents
        # Not iter(source): in a DataLoader's worker that would be a part of the stream.
        for rows in self.source.iter(batch_size=window.size):
            documents = window.open(rows)
            if first >= mark.documents:
                yield documents, Mark(documents=first, state=state)
            first += len(documents)
            state = self._state()

    def _state(self) -> Any:
        return None if self.has_buffer else self.source.state_dict()


def _stages(stage: Any) -> set[type]:
    """Collect the kinds of stages that a pipeline of ``datasets`` consists of."""
    inner = [stage.ex_iterable] if hasattr(stage, "ex_iterable") else getattr(stage, "ex_iterables", [])
    return {type(stage)}.union(*map(_stages, inner))

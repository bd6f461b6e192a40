"""The plan: which spans go into which pack, held as a few flat arrays."""

import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from .blocks import Array as Array
from .checking import check_arrays, check_plan
from .ledger import Ledger
from .pickling import narrow_fields, restore_plan
from .policy import Policy
from .storage import ARRAYS, load_fields, save_plan
from .wording import counted


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pack:
    """The spans that share one row, in order.

    Attributes:
        documents: Each span's document, int64, shape ``(spans,)``.
        starts: First token of each span within its document, int32 (int64 where a document has 2³¹ tokens).
        lengths: Tokens in each span, int32.
    """

    documents: Array
    starts: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Plan:
    """Which spans go into which pack, for all packs: pack ``i`` has the spans ``bounds[i]`` up to ``bounds[i + 1]``.

    Attributes:
        bounds: int64, shape ``(packs + 1,)``.
        documents: Each span's document, int64, shape ``(spans,)``.
        lengths: Tokens in each span, int32, shape ``(spans,)``.
        starts: First token of each span within its document, int32 (int64 where a document has 2³¹ tokens); None
            where all are 0.
        policy: The options that the plan was made with.
        ledger: What became of every document and token.
        fingerprint: Hexadecimal digest of the lengths and the policy.
    """

    bounds: Array
    documents: Array
    lengths: Array
    starts: Array | None
    policy: Policy
    ledger: Ledger
    fingerprint: str

    def __post_init__(self) -> None:
        for name in ARRAYS:
            if (array := getattr(self, name)) is not None:
                frozen = array.view()
                frozen.flags.writeable = False
                object.__setattr__(self, name, frozen)

    @property
    def budget(self) -> int:
        """The most tokens that a pack may hold."""
        return self.policy.budget

    @property
    def fill(self) -> float:
        """The share of all slots that hold a token."""
        return self.ledger.fill

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: SupportsIndex) -> Pack:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"pack {index} of a plan of {len(self)} packs")
        position %= len(self)
        spans = slice(int(self.bounds[position]), int(self.bounds[position + 1]))
        lengths = self.lengths[spans]
        starts = np.zeros(len(lengths), dtype=np.int32) if self.starts is None else self.starts[spans]
        return Pack(documents=self.documents[spans], starts=starts, lengths=lengths)

    @property
    def offsets(self) -> Array:
        """Where each pack begins in the stream of all packed tokens, and the number of tokens at the end, int64."""
        offsets = np.zeros(len(self.lengths) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets[self.bounds]

    def check(self, lengths: Any, *, groups: Any = None) -> None:
        """Prove from the lengths that the plan is right.

        Each token is in exactly one place or in the ledger; no pack is over the budget (alignment counted) or
        ``max_documents``; groups, if given, are together.

        Args:
            lengths: Tokens per document, as they were given to ``plan_packs``.
            groups: Each document's group, likewise.

        Raises:
            ValueError: On the first violation, with the document or the pack.

        Example:
            >>> from packdata.planning import plan_packs
            >>> plan_packs([3, 2], budget=4).check([3, 2])
            >>> plan_packs([3, 2], budget=4).check([3, 1])
            Traceback (most recent call last):
            ...
            ValueError: document 1 has 1 tokens, so a span of 2 from 0 on is out of range
        """
        check_plan(self, lengths, groups)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan into a folder, over an older plan if there is one.

        Args:
            folder: Is made where it does not exist.
        """
        save_plan(self, Path(folder))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Plan":
        """Read a plan that ``save`` wrote; its arrays stay on disk, memory-mapped.

        Raises:
            ValueError: If the folder holds no plan, one of another version, or a damaged one.
        """
        plan = cls(**load_fields(Path(folder)))
        check_arrays(plan)
        return plan

    def __copy__(self) -> "Plan":
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_plan, (type(self), narrow_fields(self))

    def __repr__(self) -> str:
        ledger = self.ledger
        lost = {
            "truncated": ledger.documents_truncated,
            "split": ledger.documents_split,
            "dropped": ledger.documents_dropped,
            "empty": ledger.documents_empty,
        }
        told = "".join(f", {many:,} {what}" for what, many in lost.items() if many)
        return (
            f"Plan({counted(len(self), 'pack')} of {counted(self.budget, 'token')}, {self.fill:.2%} full, "
            f"{counted(ledger.padding, 'slot')} of padding; "
            f"{ledger.documents_kept:,} of {counted(ledger.documents_in, 'document')}{told}; {self.policy.strategy})"
        )

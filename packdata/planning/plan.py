"""The plan: which spans go into which pack, held as a few flat arrays."""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ledger import Ledger
from .policy import Policy

Array = np.ndarray[Any, np.dtype[Any]]


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
            where all are 0 since nothing was cut.
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

    def __getitem__(self, index: int) -> Pack:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"pack {index} of a plan of {len(self)} packs")
        position %= len(self)
        spans = slice(int(self.bounds[position]), int(self.bounds[position + 1]))
        lengths = self.lengths[spans]
        starts = np.zeros(len(lengths), dtype=np.int32) if self.starts is None else self.starts[spans]
        return Pack(documents=self.documents[spans], starts=starts, lengths=lengths)

    def __repr__(self) -> str:
        return f"Plan({len(self):,} packs of {self.budget:,} tokens, {self.fill:.2%} full)"

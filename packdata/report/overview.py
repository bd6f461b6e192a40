"""What all reported objects have in common: packs, the lengths in them, what was lost, and how to look into one.

A plan, a packed dataset and a batch are each read into one ``Overview``; text, page and plot are drawn from it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64, Integer

from packdata.planning import Ledger

from .denominators import Counts
from .rows import Row


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Overview:
    """The numbers of a packing.

    Attributes:
        title: What it is, for headings.
        unit: What one pack is called: "pack" or "row".
        budget: Slots of a row.
        bounds: First span of each pack, then the number of spans.
        lengths: Tokens of each span, pack by pack.
        row: Opens one pack.
        ledger: What became of every document, where that is known.
        counts: How slots come down to targets, where tokens were looked at.
        counted: Which packs ``counts`` is about, where not all: " of 100 packs".
        warnings: What a user should know, one sentence each.
    """

    title: str
    unit: str
    budget: int
    bounds: Int64[np.ndarray, " bounds"]
    lengths: Integer[np.ndarray, " spans"]
    row: Callable[[int], Row]
    ledger: Ledger | None = None
    counts: Counts | None = None
    counted: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def packs(self) -> int:
        """Number of packs (rows of a batch)."""
        return len(self.bounds) - 1

    @property
    def spans(self) -> int:
        """Number of documents as packed; a cut document counts once per piece."""
        return len(self.lengths)

    @property
    def loads(self) -> Int64[np.ndarray, " packs"]:
        """Tokens of each pack."""
        return _sums(self.lengths, self.bounds)

    @property
    def tokens(self) -> int:
        """Tokens in all packs."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def slots(self) -> int:
        """Packs times budget."""
        return self.packs * self.budget

    @property
    def padding(self) -> int:
        """Slots without a token."""
        return self.slots - self.tokens

    @property
    def fill(self) -> float:
        """Share of slots that hold a token; 1 where there are no slots."""
        return self.tokens / self.slots if self.slots else 1.0

    @property
    def fills(self) -> Float64[np.ndarray, " packs"]:
        """Share of slots that hold a token, pack by pack."""
        return self.loads / max(self.budget, 1)

    @property
    def attention_pairs(self) -> int:
        """Query-key pairs of causal attention inside documents: the sum of n(n+1)/2."""
        return _causal_pairs(self.lengths)

    @property
    def attention_pairs_across(self) -> int:
        """The same if all documents of a pack attended to one another."""
        return _causal_pairs(self.loads)

    def choose(self, pack: int | None) -> int:
        """Return ``pack`` if there is such a one; for None the most ordinary one of several documents, if there is one.

        Raises:
            ValueError: If there is no such pack.
        """
        if pack is None:
            documents = np.diff(self.bounds)
            several = np.flatnonzero(documents > 1)
            return int(several[np.abs(documents[several] - documents.mean()).argmin()]) if len(several) else 0
        if not 0 <= pack < self.packs:
            raise ValueError(f"pack must be from 0 to {self.packs - 1}, got {pack}")
        return pack

    def spread(self, most: int) -> list[int]:
        """Return at most ``most`` packs, evenly spaced over all."""
        shown = min(most, self.packs)
        return [index * self.packs // shown for index in range(shown)]


def _sums(values: Integer[np.ndarray, " spans"], bounds: Int64[np.ndarray, " bounds"]) -> Int64[np.ndarray, " packs"]:
    # Not np.add.reduceat: it gives an empty pack its neighbour's first value.
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
    return np.diff(totals[bounds])


def _causal_pairs(lengths: Integer[np.ndarray, " n"]) -> int:
    exact = lengths.astype(np.int64)
    return int((exact * (exact + 1) // 2).sum())

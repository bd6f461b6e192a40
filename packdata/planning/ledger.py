"""What became of every document, token and target of a plan."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from .edge import no_type_check


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Counts in which nothing is lost: what came in was kept, cut off, dropped or empty.

    ``documents_in = kept + dropped + empty``, ``tokens_in = kept + truncated + dropped``; truncated and split documents
    are among the kept ones. Ledgers of parts add up with ``+``.

    Attributes:
        documents_in: Documents that the plan was asked to place.
        documents_kept: Documents of which at least one token is in a pack.
        documents_truncated: Kept documents that lost tokens.
        documents_split: Kept documents that are in several spans.
        documents_dropped: Documents left out whole.
        documents_untargeted: Those of the dropped ones that were left out since no target was left in them.
        documents_empty: Documents of no tokens.
        tokens_in: Tokens of all documents.
        tokens_kept: Tokens in packs.
        tokens_truncated: Tokens cut off kept documents.
        tokens_dropped: Tokens of dropped documents.
        targets_in: Targets of all documents, or None if they were not counted.
        targets_kept: Targets that a batch of these packs can still learn.
        targets_lost_to_cuts: Targets lost with cut-off tokens, or as the first token of a later span.
        slots: Packs times the budget.
        packs_capped: Packs with room left that ``max_documents`` closed.

    Example:
        >>> ledger = Ledger(documents_in=2, documents_kept=2, tokens_in=7, tokens_kept=7, slots=8)
        >>> (ledger + ledger).padding, ledger.fill
        (2, 0.875)
    """

    documents_in: int = 0
    documents_kept: int = 0
    documents_truncated: int = 0
    documents_split: int = 0
    documents_dropped: int = 0
    documents_untargeted: int = 0
    documents_empty: int = 0
    tokens_in: int = 0
    tokens_kept: int = 0
    tokens_truncated: int = 0
    tokens_dropped: int = 0
    targets_in: int | None = None
    targets_kept: int | None = None
    targets_lost_to_cuts: int | None = None
    slots: int = 0
    packs_capped: int = 0

    @property
    def padding(self) -> int:
        """Slots that hold no token (alignment is padding, too)."""
        return self.slots - self.tokens_kept

    @property
    def fill(self) -> float:
        """The share of slots that hold a token; 1.0 where there is no slot."""
        return self.tokens_kept / self.slots if self.slots else 1.0

    def __add__(self, other: "Ledger") -> "Ledger":
        if not isinstance(other, Ledger):
            return NotImplemented
        if self.documents_in == 0 and self.targets_in is None:
            return _sum(self, other, targets=other)
        if other.documents_in == 0 and other.targets_in is None:
            return _sum(self, other, targets=self)
        return _sum(self, other)

    def __radd__(self, other: object) -> "Ledger":
        return self if other == 0 else NotImplemented  # what sum() starts with

    def to_dict(self) -> dict[str, int | None]:
        """Return the counts as a dict of plain values, for JSON."""
        return asdict(self)

    @classmethod
    @no_type_check
    def from_dict(cls, counts: dict[str, Any]) -> "Ledger":
        """Read what ``to_dict`` wrote.

        Raises:
            ValueError: If the names or the kinds of the values are not a ledger's.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(counts, dict) or set(counts) != known:
            raise ValueError(f"not a ledger: its entries must be {sorted(known)}, got {counts!r}")
        wrong = [name for name, value in counts.items() if type(value) is not int and not _may_be_none(name, value)]
        if wrong:
            raise ValueError(f"not a ledger: {wrong[0]} must be an integer, got {counts[wrong[0]]!r}")
        return cls(**counts)

    def __str__(self) -> str:
        rows = [f"{name:<22}{value:>20,}" for name, value in self.to_dict().items() if value is not None]
        rows.insert(-1, f"{'padding':<22}{self.padding:>20,}")
        return "\n".join([*rows, f"{'fill':<22}{self.fill:>20.4%}"])


def _may_be_none(name: str, value: object) -> bool:
    return value is None and name.startswith("targets_")


def _sum(one: Ledger, other: Ledger, targets: Ledger | None = None) -> Ledger:
    """Add up; targets are known where both know them, or are those of ``targets`` where the other is of nothing."""
    both = {name: (value, getattr(other, name)) for name, value in one.to_dict().items()}
    total = {name: None if None in pair else sum(pair) for name, pair in both.items()}
    if targets is not None:
        total |= {name: getattr(targets, name) for name in total if name.startswith("targets_")}
    return Ledger(**total)  # type: ignore[arg-type]  # None only where a sum may be None

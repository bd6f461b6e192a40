"""What packing would give, for several budgets and strategies, before anything is packed.

The attention of a row of ``n`` slots costs about n². Without boundaries a pack costs budget², with them Σ length² over
its documents: the table gives the share that is left.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from packdata.layout import as_lengths

from .blocks import Array, blocks
from .edge import no_type_check
from .overlong import cut_overlong
from .patterns import patterns_of, refuse_overlong
from .planner import plan_packs
from .policy import Overlong, Policy, Strategy
from .sorting import distinct_descending, present_descending

_DEAR = 1.01
"""How many times the packs ``max_documents`` may cost before the table warns."""

_WIDTH = 12


@dataclass(frozen=True, kw_only=True)
class EstimateRow:
    """One budget and strategy of an estimate.

    Attributes:
        strategy: How packs are filled.
        budget: The most tokens in a pack.
        packs: The number of packs.
        fill: The share of slots that hold a token.
        padding: Slots that hold none.
        overlong: Documents over the budget; what becomes of them is for the policy to say.
        squared_lengths: Σ length² over the documents in packs, each one's attention to itself.
        squared_budgets: Packs times budget², the attention of packs without boundaries.
        attention: The first divided by the second; what it falls short of 1 is saved.
        documents_p99: 99 % of the packs have at most so many documents.
        documents_most: The most documents in a pack.
        packs_uncapped: The number of packs without ``max_documents``.
    """

    strategy: str
    budget: int
    packs: int
    fill: float
    padding: int
    overlong: int
    squared_lengths: int
    squared_budgets: int
    attention: float
    documents_p99: int
    documents_most: int
    packs_uncapped: int

    @property
    def warning(self) -> str | None:
        """Say so where ``max_documents`` costs more than one pack in a hundred."""
        if self.packs <= self.packs_uncapped * _DEAR:
            return None
        cost = self.packs / self.packs_uncapped - 1
        return f"max_documents costs {cost:.1%} more packs ({self.strategy}, budget {self.budget:,})"


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """A small table; prints as one.

    Attributes:
        rows: One for each strategy and budget.
    """

    rows: tuple[EstimateRow, ...]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns of the table: a list for each attribute of a row, and the warnings."""
        rows = [asdict(row) | {"warning": row.warning} for row in self.rows]
        names = [*(field.name for field in fields(EstimateRow)), "warning"]
        return {name: [row[name] for row in rows] for name in names}

    def __repr__(self) -> str:
        heads = ("strategy", "budget", "packs", "fill", "padding", "over-long", "attention", "docs p99", "docs most")
        lines = [_line(heads)]
        for row in self.rows:
            counts = (f"{row.budget:,}", f"{row.packs:,}", f"{row.fill:.2%}", f"{row.padding:,}", f"{row.overlong:,}")
            tail = (f"{row.attention:.2%}", f"{row.documents_p99:,}", f"{row.documents_most:,}")
            lines.append(_line((row.strategy, *counts, *tail)))
        return "\n".join([*lines, *(f"warning: {row.warning}" for row in self.rows if row.warning)])


@no_type_check
def estimate(
    lengths: Any = None,
    *,
    counts: Any = None,
    budgets: int | Sequence[int] = (2048, 4096, 8192),
    strategies: Strategy | Sequence[Strategy] = ("best_fit",),
    overlong: Overlong = "split",
    max_documents: int | None = None,
    align: int = 1,
) -> Estimate:
    """Say how well documents would pack.

    Args:
        lengths: Tokens per document, 1-D integers.
        counts: Instead of the lengths, ``counts[length]`` documents have that length; for ``"best_fit"`` only.
        budgets: Tokens in a pack, one row of the table for each, or a single number.
        strategies: As in ``plan_packs``, one row for each, or a single name.
        overlong: What happens to documents over a budget.
        max_documents: The most documents in a pack.
        align: Each span takes a multiple of this many slots.

    Returns:
        The table, whose columns are the attributes of `EstimateRow`. Where ``max_documents`` costs more than 1 % of the
        packs, it says so, and warns.

    Raises:
        ValueError: If not exactly one of lengths and counts is given, or as ``plan_packs`` does.

    Example:
        >>> estimate([6, 6, 4, 3, 3, 2], budgets=[10, 12])
        strategy        budget       packs        fill     padding   over-long   attention    docs p99   docs most
        best_fit            10           3      80.00%           6           0      36.67%           2           2
        best_fit            12           2     100.00%           0           0      38.19%           4           4
    """
    if (lengths is None) == (counts is None):
        raise ValueError("give either lengths or counts, not both or neither")
    histogram = _histogram(lengths, counts)
    order = None if lengths is None else as_lengths(lengths)
    rows, budgets = [], _several(budgets)
    for strategy in _several(strategies):
        for budget in budgets:
            free = Policy(budget=budget, strategy=strategy, overlong=overlong, align=align)
            rows.append(_row(histogram, order, replace(free, max_documents=max_documents), free))
    for row in rows:
        if row.warning:
            warnings.warn(row.warning, stacklevel=2)
    return Estimate(tuple(rows))


def _several(one_or_more: Any) -> tuple[Any, ...]:
    """Make a single budget or strategy the only one."""
    several = isinstance(one_or_more, Iterable) and not isinstance(one_or_more, str)
    return tuple(one_or_more) if several else (one_or_more,)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The packs' documents (each number, and how many packs have it), and the sum and the squares of their spans."""

    documents: Array
    packs: Array
    tokens: int
    squares: int


def _histogram(lengths: Any, counts: Any) -> tuple[Array, Array]:
    if counts is None:
        return distinct_descending(as_lengths(lengths))
    return present_descending(as_lengths(counts, name="counts").astype(np.int64))


def _row(histogram: tuple[Array, Array], order: Array | None, policy: Policy, free: Policy) -> EstimateRow:
    outcome = _outcome(histogram, order, policy)
    packs = int(outcome.packs.sum())
    uncapped = packs if policy == free else int(_outcome(histogram, order, free).packs.sum())
    squared_budgets = packs * policy.budget**2
    by_documents = np.argsort(outcome.documents, kind="stable")
    reached = np.cumsum(outcome.packs[by_documents])
    p99 = outcome.documents[by_documents][np.searchsorted(reached, 0.99 * packs)] if packs else 0
    return EstimateRow(
        strategy=policy.strategy,
        budget=policy.budget,
        packs=packs,
        fill=outcome.tokens / (packs * policy.budget) if packs else 1.0,
        padding=packs * policy.budget - outcome.tokens,
        overlong=int(histogram[1][histogram[0] > policy.limit].sum()),
        squared_lengths=outcome.squares,
        squared_budgets=squared_budgets,
        attention=outcome.squares / squared_budgets if packs else 1.0,
        documents_p99=int(p99),
        documents_most=int(outcome.documents.max(initial=0)),
        packs_uncapped=uncapped,
    )


def _outcome(histogram: tuple[Array, Array], order: Array | None, policy: Policy) -> _Outcome:
    if policy.strategy == "best_fit":
        if policy.overlong == "error" and order is not None:
            cut_overlong(order, policy)  # names the documents, which the histogram does not know
        return _from_histogram(*histogram, policy)
    if order is None:
        raise ValueError(f"strategy={policy.strategy!r} depends on the order of documents: give lengths, not counts")
    plan = plan_packs(
        order,
        policy.budget,
        strategy=policy.strategy,
        overlong=policy.overlong,
        max_documents=policy.max_documents,
        align=policy.align,
    )
    documents = np.diff(plan.bounds)
    squares = sum(int(np.square(plan.lengths[block], dtype=np.int64).sum()) for block in blocks(len(plan.lengths)))
    return _Outcome(documents=documents, packs=np.ones_like(documents), tokens=plan.ledger.tokens_kept, squares=squares)


def _from_histogram(lengths: Array, counts: Array, policy: Policy) -> _Outcome:
    """Apply the over-long policy to the distinct lengths, and plan what comes out of it."""
    if policy.overlong == "error":
        refuse_overlong(lengths, counts, policy)
    spans = cut_overlong(lengths, policy)
    each = counts if spans.documents is None else counts[spans.documents]
    short, kind = np.unique(spans.lengths.astype(np.int64), return_inverse=True)
    many = np.zeros(len(short), dtype=np.int64)
    np.add.at(many, kind, each)
    present = np.flatnonzero(short)[::-1]
    patterns = patterns_of(short[present], many[present], policy)
    kept = zip(patterns.lengths.tolist(), patterns.counts.tolist(), strict=True)
    squares = sum(length**2 * count for length, count in kept)
    return _Outcome(documents=patterns.documents, packs=patterns.multiplicity, tokens=patterns.tokens, squares=squares)


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:<10}" if place == 0 else f"{cell:>{_WIDTH}}" for place, cell in enumerate(cells))

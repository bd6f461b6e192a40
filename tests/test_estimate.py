"""An estimate says what the plan will be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packdata.planning import estimate, plan_packs


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.sampled_from(["best_fit", "sequential", "concat"]),
    st.sampled_from(["truncate", "split", "drop"]),
    st.sampled_from([1, 4]),
)
def test_the_rows_are_what_the_plans_become(lengths, strategy, overlong, align):
    options = {"overlong": overlong, "align": align}
    table = estimate(lengths, budgets=[8, 21], strategies=[strategy], **options)
    for row, budget in zip(table.rows, (8, 21), strict=True):
        plan = plan_packs(lengths, budget, strategy=strategy, **options)
        documents = np.diff(plan.bounds)
        squares = sum(length**2 for length in plan.lengths.tolist())
        assert (row.strategy, row.budget, row.packs, row.fill) == (strategy, budget, len(plan), plan.fill)
        assert (row.padding, row.squared_lengths) == (plan.ledger.padding, squares)
        assert row.overlong == sum(length > budget // align * align for length in lengths)
        assert row.attention == (squares / (len(plan) * budget**2) if len(plan) else 1.0)
        assert row.documents_most == documents.max(initial=0)
        assert sum(documents <= row.documents_p99) >= 0.99 * len(plan)
        assert not len(plan) or sum(documents < row.documents_p99) < 0.99 * len(plan)


def test_counts_give_what_lengths_give():
    lengths = np.random.default_rng(0).integers(0, 5000, 500)
    by_lengths = estimate(lengths)
    assert by_lengths.to_dict() == estimate(counts=np.bincount(lengths)).to_dict()
    assert by_lengths.to_dict()["budget"] == [2048, 4096, 8192]


def test_counts_of_a_billion_documents():
    row = estimate(counts=[0, 10**9, 0, 0, 10**9], budgets=[8]).rows[0]
    assert (row.packs, row.fill, row.squared_lengths) == (625_000_000, 1.0, 17 * 10**9)


def test_a_cap_that_costs_packs_is_warned_of():
    with pytest.warns(UserWarning, match=r"max_documents costs 100.0% more packs \(best_fit, budget 8\)"):
        table = estimate([1] * 8 + [0], budgets=[8], max_documents=4)
    assert "warning: max_documents costs 100.0% more packs" in repr(table)
    assert table.to_dict()["warning"][0].startswith("max_documents costs")
    assert estimate([1] * 8, budgets=[8], max_documents=8).rows[0].warning is None


def test_one_budget_and_one_strategy_need_no_list():
    for budget in (8, np.int64(8)):
        alone = estimate([5, 3, 2], budgets=budget, strategies="sequential")
        assert alone.rows == estimate([5, 3, 2], budgets=[8], strategies=["sequential"]).rows
    assert len(estimate([5], budgets=iter([8, 9]), strategies=("best_fit", "sequential")).rows) == 4


def test_the_table_prints_small():
    table = estimate([6, 6, 4, 3, 3, 2], budgets=[10, 12])
    lines = repr(table).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["best_fit", "10", "3", "80.00%", "6", "0", "36.67%", "2", "2"]

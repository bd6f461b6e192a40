"""Faults that other packers had, as inputs and what is right for them."""

import pickle

import numpy as np
import pytest

from packdata.planning import Ledger, Pack, plan_packs


def spans(plan):
    return [list(zip(p.documents.tolist(), p.starts.tolist(), p.lengths.tolist(), strict=True)) for p in plan]


OVER_LONG = [
    # lengths, budget, policy, tokens kept, truncated, dropped, documents that are there
    ("E1", [7, 3, 2], 4, "split", 12, 0, 0, {0, 1, 2}),
    ("E1", [7, 3, 2], 4, "truncate", 9, 3, 0, {0, 1, 2}),
    ("E1", [7, 3, 2], 4, "truncate_left", 9, 3, 0, {0, 1, 2}),
    ("E1", [7, 3, 2], 4, "drop", 5, 0, 7, {1, 2}),
    ("E1", [1000, 1, 1000], 2, "truncate", 5, 1996, 0, {0, 1, 2}),
    ("E8", [9, 9, 2], 8, "truncate", 18, 2, 0, {0, 1, 2}),
    ("E8", [80, 8, 9, 1], 8, "truncate", 25, 73, 0, {0, 1, 2, 3}),
    ("E12", [3, 9, 4], 8, "drop", 7, 0, 9, {0, 2}),
    ("E12", [9, 9, 9], 8, "drop", 0, 0, 27, set()),
    ("J4", [6], 4, "truncate", 4, 2, 0, {0}),
]


@pytest.mark.parametrize(("case", "lengths", "budget", "overlong", "kept", "truncated", "dropped", "there"), OVER_LONG)
@pytest.mark.parametrize("strategy", ["best_fit", "sequential"])
def test_over_long_documents_are_accounted_for(
    case, lengths, budget, overlong, kept, truncated, dropped, there, strategy
):
    plan = plan_packs(lengths, budget, overlong=overlong, strategy=strategy)
    ledger = plan.ledger
    assert (ledger.tokens_kept, ledger.tokens_truncated, ledger.tokens_dropped) == (kept, truncated, dropped), case
    assert set(plan.documents.tolist()) == there
    plan.check(lengths)


@pytest.mark.parametrize(
    ("case", "lengths", "budget", "document"),
    [
        ("E1", [7, 3, 2], 4, 0),
        ("E2", [13, 5], 10, 0),
        ("E2", [5, 6, 700], 10, 2),
        ("E12", [3, 9, 4], 8, 1),
        ("E14", [10], 10, 0),
    ],
)
@pytest.mark.parametrize("strategy", ["best_fit", "sequential"])
def test_by_default_an_over_long_document_is_an_error_that_names_it(case, lengths, budget, document, strategy):
    with pytest.raises(ValueError, match=f"^document {document} has {lengths[document]} tokens, over the budget"):
        plan_packs(lengths, budget, strategy=strategy, align=4 if case == "E14" else 1)


@pytest.mark.parametrize("overlong", ["truncate", "truncate_left", "drop"])
@pytest.mark.parametrize("strategy", ["best_fit", "sequential", "concat"])
def test_no_two_spans_are_of_one_document_unless_asked_for(overlong, strategy):
    """E2: the tail of a chat without its prompt is no document of its own."""
    plan = plan_packs([13, 5], 10, overlong=overlong, strategy=strategy)
    if strategy != "concat":  # which cuts documents by its nature, and counts them
        assert len(set(plan.documents.tolist())) == len(plan.documents)
    assert plan.ledger.documents_split == len(plan.documents) - len(set(plan.documents.tolist()))
    assert spans(plan_packs([13, 5], 10, overlong="split")) == [[(0, 0, 10)], [(1, 0, 5), (0, 10, 3)]]


@pytest.mark.parametrize("lengths", [[0, 0], [], np.zeros(3, dtype=np.uint8), np.empty(0), np.empty(0, dtype=np.int32)])
@pytest.mark.parametrize("strategy", ["best_fit", "sequential", "concat"])
@pytest.mark.parametrize(
    "options", [{}, {"seed": 1, "packs_multiple_of": 4}, {"window": 1, "max_documents": 2}, {"groups": 7}]
)
def test_nothing_to_pack_gives_no_packs(lengths, strategy, options):
    """E5: all documents empty, or none at all."""
    if "groups" in options:
        if strategy == "concat":
            return
        options = {"groups": [7] * len(lengths)}
    plan = plan_packs(lengths, 8, strategy=strategy, **options)
    assert (len(plan), plan.fill, list(plan)) == (0, 1.0, [])
    assert (plan.bounds.tolist(), plan.documents.dtype, plan.lengths.dtype) == ([0], np.int64, np.int32)
    assert plan.ledger == Ledger(documents_in=len(lengths), documents_empty=len(lengths))
    plan.check(lengths)


def test_a_ledger_counts_only_the_packs_that_it_is_of():
    """E7: packs left out of the last step are not in the efficiency, and no packs have one, too."""
    plan = plan_packs([10, 10, 10, 10, 7], 10, strategy="sequential")
    assert (plan.fill, plan.ledger.padding) == (47 / 50, 3)
    used = plan_packs([10, 10, 10, 10], 10).ledger
    left = Ledger(documents_in=1, documents_dropped=1, tokens_in=7, tokens_dropped=7)
    assert ((used + left).fill, (used + left).tokens_dropped) == (1.0, 7)
    assert Ledger().fill == 1.0


def test_truncated_documents_keep_their_targets_and_clog_nothing():
    """E8: three packs of 8, 8 and 2 tokens, none without targets."""
    plan = plan_packs([9, 9, 2], 8, overlong="truncate", targets=[9, 9, 2])
    assert [int(pack.lengths.sum()) for pack in plan] == [8, 8, 2]
    ledger = plan.ledger
    assert (ledger.targets_in, ledger.targets_kept, ledger.targets_lost_to_cuts) == (17, 15, 2)


@pytest.mark.parametrize(
    ("lengths", "align", "budget", "loads"),
    [([5, 5], 4, 12, [8, 8]), ([5, 5], 4, 16, [16]), ([1] * 5, 16, 64, [64, 16]), ([9, 3], 4, 15, [12, 4])],
)
@pytest.mark.parametrize("strategy", ["best_fit", "sequential", "concat"])
def test_the_budget_bounds_the_aligned_sum(lengths, align, budget, loads, strategy):
    """E14: two documents of 5 take 16 slots at align 4, not 10; a capacity is never exceeded by alignment."""
    plan = plan_packs(lengths, budget, align=align, strategy=strategy)
    found = [sum(-(-length // align) * align for length in pack.lengths.tolist()) for pack in plan]
    assert sum(found) == sum(loads)
    assert max(found) <= budget
    if strategy != "concat":
        assert found == loads


def test_a_budget_is_rounded_down_to_the_alignment():
    """E14: never a 12-token buffer in a 10-token bin."""
    assert spans(plan_packs([10], 10, align=4, overlong="split")) == [[(0, 0, 8)], [(0, 8, 2)]]
    assert spans(plan_packs([10], 10, align=4, overlong="truncate")) == [[(0, 0, 8)]]
    assert spans(plan_packs([10], 10, align=4, strategy="concat")) == [[(0, 0, 8)], [(0, 8, 2)]]


def test_a_plan_of_a_million_documents_is_a_few_arrays():
    """G3: no list of lists to be copied into every worker."""
    plan = plan_packs(np.full(1_000_000, 100), 1000)
    assert len(pickle.dumps(plan)) < 20_000_000
    assert all(isinstance(array, np.ndarray) for array in (plan.bounds, plan.documents, plan.lengths))
    assert isinstance(plan[99_999], Pack)
    for lengths, options in [
        (np.full(1_000_000, 1000), {}),  # a document in each pack
        (np.arange(1_000_000) % 1000, {"overlong": "split"}),
        (np.arange(1_000_000) % 1000, {"strategy": "concat", "seed": 0}),
    ]:
        assert len(pickle.dumps(plan_packs(lengths, 1000, **options))) < 20_000_000


@pytest.mark.parametrize("strategy", ["best_fit", "sequential", "concat"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_offsets_past_31_bits(strategy, dtype):
    """H7: 32-bit offsets overflow."""
    lengths = np.array([1_200_000_000] * 3, dtype=dtype)
    plan = plan_packs(lengths, 1_200_000_000, strategy=strategy)
    assert plan.offsets.tolist() == [0, 1_200_000_000, 2_400_000_000, 3_600_000_000]
    assert plan.offsets.dtype == plan.bounds.dtype == np.int64
    assert plan.lengths.dtype == np.int32
    assert plan.ledger.tokens_in == 3_600_000_000
    plan.check(lengths)


def test_a_document_whose_answer_lies_past_the_cut_is_counted():
    """J4: of its two targets, the last tokens, none is kept."""
    ledger = plan_packs([6], 4, overlong="truncate", targets=[2]).ledger
    assert (ledger.targets_in, ledger.targets_kept, ledger.targets_lost_to_cuts) == (2, 0, 2)
    ledger = plan_packs([6], 4, overlong="truncate_left", targets=[2]).ledger
    assert (ledger.targets_kept, ledger.targets_lost_to_cuts) == (2, 0)
    ledger = plan_packs([6], 4, overlong="drop", targets=[2]).ledger
    assert (ledger.targets_kept, ledger.targets_lost_to_cuts, ledger.documents_dropped) == (0, 0, 1)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2], np.array([3, 3]), [np.int64(3), np.int32(3)]])
def test_equal_lengths_are_as_good_as_different_ones(lengths):
    """K4: a list of equal-length arrays becomes a 2-D array."""
    plan = plan_packs(lengths, 6)
    assert plan.documents.tolist() == [0, 1]
    for documents in ([np.arange(3), np.arange(3)], np.arange(6).reshape(2, 3)):
        with pytest.raises(ValueError, match=r"lengths must be 1-D, one number per document, got shape \(2, 3\)"):
            plan_packs(documents, 6)
    with pytest.raises(ValueError, match="lengths must be a 1-D array of integers"):
        plan_packs([np.arange(3), np.arange(2)], 6)

"""Which documents share a batch: budgets, buckets, packs, ready plans, and what is refused."""

import math
import random

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import document_lengths, documents_of, sampler_factories

from packdata.planning import plan_packs
from packdata.samplers import LengthBucketBatchSampler, PackBatchSampler
from packdata.sources import Documents


@given(
    document_lengths(budget=20, max_size=40).filter(lambda lengths: any(lengths) or not lengths),
    st.lists(st.integers(1, 24), unique=True, max_size=3).map(sorted),
    st.booleans(),
    st.booleans(),
)
def test_bucket_batches_have_the_lengths_of_the_oracles(lengths, boundaries, padded, shuffle):
    options = {"boundaries": boundaries, "padded": padded, "overlong": "drop", "shuffle": shuffle}
    sampler = LengthBucketBatchSampler(lengths, 16, **options)
    expected = oracles.bucket_batches(lengths, budget=16, boundaries=boundaries, padded=padded)
    for _ in range(2):
        batches = list(sampler)
        found = [[lengths[document] for document in batch] for batch in batches]
        if padded:
            assert sorted(found) == sorted(expected)
        else:  # among equally full packs, any may take the next document
            assert sorted(map(sum, found)) == sorted(map(sum, expected))
        documents = sorted(document for batch in batches for document in batch)
        assert documents == [document for document, length in enumerate(lengths) if 0 < length <= 16]


@settings(max_examples=100)
@given(sampler_factories(uneven=["pad"]))
def test_an_epoch_has_each_document_once_within_the_budget_and_the_bucket(case):
    lengths, make = case
    sampler = make(rank=0, world_size=1)
    edges = [0, *make.keywords.get("boundaries", ()), math.inf]
    for _ in range(2):
        batches = list(sampler)
        documents = [document for batch in batches for document in documents_of(batch)]
        assert sorted(documents) == [document for document, length in enumerate(lengths) if length]
        for batch in map(documents_of, batches):
            held = [lengths[document] for document in batch]
            assert (len(held) * max(held) if make.keywords.get("padded") else sum(held)) <= 16 * make.keywords.get(
                "packs_per_batch", 1
            )
            if "boundaries" in make.keywords:
                assert len({next(edge for edge in edges if length <= edge) for length in held}) == 1


@settings(max_examples=60)
@given(document_lengths(min_size=1).filter(any), st.integers(0, 3))
def test_packs_are_those_that_plan_packs_makes_for_the_seed_and_the_epoch(lengths, seed):
    sampler = PackBatchSampler(lengths, 16, seed=seed, align=2)
    for epoch in range(2):
        plan = plan_packs(lengths, 16, seed=(seed, epoch), align=2)
        assert list(sampler) == [pack.documents.tolist() for pack in plan]
    fixed = PackBatchSampler(lengths, 16, shuffle=False)
    assert list(fixed) == list(fixed) == [pack.documents.tolist() for pack in plan_packs(lengths, 16)]


def test_a_window_keeps_the_documents_near_their_place():
    sampler = PackBatchSampler([4] * 64, 8, window=8)
    for first, batch in enumerate(sampler):
        assert all(first // 4 * 8 <= document < first // 4 * 8 + 8 for document in batch)


def test_a_ready_plan_is_shuffled_as_it_is():
    plan = plan_packs([9, 3, 7, 2, 16], 8, overlong="split")
    sampler = PackBatchSampler(plan, items="packs", packs_per_batch=2)
    first, second = ([pack for batch in sampler for pack in batch] for _ in range(2))
    rows = [[pack.documents.tolist(), pack.starts.tolist(), pack.lengths.tolist()] for pack in plan]
    for packs in first, second:
        found = [[pack.documents.tolist(), pack.starts.tolist(), pack.lengths.tolist()] for pack in packs]
        assert sorted(found) == sorted(rows)
    unshuffled = PackBatchSampler(plan, items="packs", shuffle=False)
    assert [batch[0].documents.tolist() for batch in unshuffled] == [row[0] for row in rows]
    assert sampler.ledger == plan.ledger


def test_empty_packs_of_a_plan_make_empty_batches():
    sampler = PackBatchSampler([5, 3], 8, packs_multiple_of=4, items="packs", packs_per_batch=2, shuffle=False)
    assert [list(map(len, batch)) for batch in sampler] == [[1, 1], []]


@pytest.mark.parametrize(
    "lengths",
    [np.array([5, 3, 8], dtype=np.uint8), torch.tensor([5, 3, 8]), (5, 3, 8), np.array([5, 3, 8], dtype=np.uint64)],
)
def test_lengths_of_every_kind_give_the_same_batches(lengths):
    assert list(PackBatchSampler(lengths, 8, seed=3)) == list(PackBatchSampler([5, 3, 8], 8, seed=3))
    assert list(LengthBucketBatchSampler(lengths, 8)) == list(LengthBucketBatchSampler([5, 3, 8], 8))


@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_no_documents_are_no_batches(make, uneven):
    sampler = make([], 8, uneven=uneven)
    assert (len(sampler), list(sampler), sampler.ledger.fill, sampler.straggler_ratio()) == (0, [], 1.0, 1.0)  # E7


def test_dropped_packs_leave_the_efficiency_and_are_counted():
    options = {"packs_per_batch": 2, "items": "packs", "uneven": "drop"}
    sampler = PackBatchSampler([10, 10, 10, 10, 7], 10, shuffle=False, **options)  # E7
    ledger = sampler.ledger
    assert (ledger.tokens_kept, ledger.slots, ledger.fill) == (40, 40, 1.0)
    assert (ledger.tokens_dropped, ledger.documents_dropped, len(sampler)) == (7, 1, 2)


@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
def test_a_document_over_the_budget_is_named_or_dropped_and_counted(make):
    with pytest.raises(ValueError, match=r"document 1 has 9 tokens, over the budget of 8"):
        make([3, 9, 4], 8)  # E12
    sampler = make([3, 9, 4], 8, overlong="drop")  # E12
    assert {document for batch in sampler for document in batch} == {0, 2}
    assert (sampler.ledger.documents_dropped, sampler.ledger.tokens_dropped) == (1, 9)


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_the_last_batch_is_incomplete_or_counted(uneven):
    options = {"packs_per_batch": 3, "items": "packs", "uneven": uneven}
    sampler = PackBatchSampler([8] * 7, 8, **options)  # F16
    batches = [documents_of(batch) for batch in sampler]
    assert list(map(len, batches)) == ([3, 3, 1] if uneven == "pad" else [3, 3])
    assert len({document for batch in batches for document in batch}) == 7 - sampler.ledger.documents_dropped


def test_global_random_states_have_no_part_in_it():
    def batches():
        return [list(PackBatchSampler([4] * 9, 8)), list(LengthBucketBatchSampler([4] * 9, 8))]

    first = batches()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert batches() == first
    assert before == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


def test_epochs_repack_and_seeds_differ():
    for make in PackBatchSampler, LengthBucketBatchSampler:
        orders = [list(make([3] * 30, 8, seed=seed)) for seed in (0, 1)]
        sampler = make([3] * 30, 8)
        orders += [list(sampler) for _ in range(3)][1:]
        shares = [frozenset(map(frozenset, order)) for order in orders]
        assert len(set(shares)) == 4


CUT = plan_packs([9, 3], 8, overlong="split")
WHOLE = plan_packs([5, 3], 8)


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([0, 0, 0, 0], {}, "lengths are 0 for all 4 documents"),  # F15
        ([[5], [9]], {}, r"lengths must be 1-D, one number per document, got shape \(2, 1\)"),  # F15
        ([np.zeros((1, 5)), np.zeros((1, 9))], {}, "lengths must be a 1-D array of integers"),  # F15
        ([[5, 9]], {}, r"got shape \(1, 2\)"),
        ([5.0], {}, "lengths must be integers"),
        (Documents({"input_ids": [[1, 2]]}), {}, "lengths must be a 1-D .* got Documents: give its lengths"),
        ([5, -1], {}, "lengths must not be negative, got -1 for document 1"),
        ([5], {"budget": 0}, "budget"),
        ([5], {"rank": -1, "world_size": 2}, "rank must be from 0 to 1 for world_size=2, got -1"),  # F17 H9
        ([5], {"rank": 2, "world_size": 2}, "rank must be from 0 to 1 for world_size=2, got 2"),  # H9
        ([5], {"rank": 4, "world_size": 4}, "rank must be from 0 to 3 for world_size=4, got 4"),  # F17
        ([5], {"rank": 0, "world_size": 0}, "world_size must be at least 1, got 0"),  # F17 H9
        ([5], {"rank": "all", "world_size": 0}, "world_size must be at least 1, got 0"),
        ([5], {"rank": 0}, "give rank and world_size together"),
        ([5], {"rank": "some"}, "rank must be an integer, \"all\" or None, got 'some'"),
        ([5], {"rank": 0.5, "world_size": 2}, "rank must be an integer, got 0.5"),
        ([5], {"uneven": "repeat"}, 'uneven must be "pad" or "drop", got \'repeat\''),
        ([5], {"balance": "tokens"}, "balance must be None or \"attention\", got 'tokens'"),
        ([5], {"overlong": "cut"}, "overlong must be"),
        ([5], {"seed": 0.5}, "seed must be an integer"),
        ([5], {"budget": 8.0}, "budget must be an integer"),
        ([5], {"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ([5], {"balance_window": 0}, "balance_window must be an integer of at least 1, got 0"),
        ([5, 5], {"rank": 0, "world_size": 4, "uneven": "drop"}, r"drop all .* packs.*world_size=4"),  # F17
    ],
)
@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
def test_what_makes_no_sense_is_refused_at_construction(make, lengths, options, message):
    with pytest.raises(ValueError, match=message):
        make(lengths, **{"budget": 8, **options})


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ((4, 2), "boundaries must ascend, got 2 after 4 at position 1"),
        ((4, 4), "boundaries must ascend, got 4 after 4"),
        ((-1, 4), "boundaries must be at least 1, got -1 at position 0"),
        ((0,), "boundaries must be at least 1, got 0"),
        ((4.5,), "boundaries must be integers"),
        (4, "boundaries must be integers, got 4"),
    ],
)
def test_boundaries_ascend(boundaries, message):
    with pytest.raises(ValueError, match=message):
        LengthBucketBatchSampler([5], 8, boundaries=boundaries)


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([5], {"budget": None}, "budget must be given, unless a ready plan is"),
        ([5], {"packs_per_batch": 2}, 'packs_per_batch must be 1 with items="documents"'),
        ([5], {"packs_per_batch": 0, "items": "packs"}, "packs_per_batch must be an integer of at least 1, got 0"),
        ([8] * 3, {"packs_per_batch": 4, "items": "packs", "uneven": "drop"}, "drop all 3 packs.*packs_per_batch=4"),
        ([5], {"items": "spans"}, 'items must be "documents" or "packs", got \'spans\''),
        ([5], {"strategy": "worst_fit"}, "strategy must be one of"),
        ([5], {"strategy": "concat"}, 'strategy="concat" cuts documents'),
        ([9, 3], {"overlong": "split"}, "cuts 1 document, which"),
        ([9, 3], {"overlong": "truncate"}, "cuts 1 document, which"),
        ([9, 3], {"overlong": "truncate_left"}, "cuts 1 document, which"),
        ([5], {"max_documents": 0}, "max_documents must be at least 1"),
        ([5, 5], {"groups": [0]}, "groups"),
        (plan_packs([0, 0], 8), {"budget": None}, "lengths are 0 for all 2 documents"),  # F15
        (CUT, {"budget": None}, 'the plan cuts 1 document, which items="documents" cannot say'),
        (WHOLE, {"budget": None, "packs_per_batch": 2}, "packs_per_batch must be 1"),
        (WHOLE, {"budget": 9}, "budget must be left out with a ready plan, or be its 8, got 9"),
        (WHOLE, {"align": 2}, "align has no effect on a ready plan"),
        (WHOLE, {"groups": [0, 0]}, "groups has no effect on a ready plan"),
    ],
)
def test_packs_that_cannot_be_are_refused_at_construction(lengths, options, message):
    with pytest.raises(ValueError, match=message):
        PackBatchSampler(lengths, **{"budget": 8, **options})


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        (PackBatchSampler, {"shuffle": "no"}, "shuffle must be True or False, got 'no'"),
        (LengthBucketBatchSampler, {"shuffle": None}, "shuffle must be True or False, got None"),
        (LengthBucketBatchSampler, {"padded": "no"}, "padded must be True or False, got 'no'"),
        (PackBatchSampler, {"groups": [[1], [2, 3]]}, "groups must be a 1-D array of integers"),
    ],
)
def test_what_is_true_by_accident_is_refused(sampler, options, message):
    with pytest.raises(ValueError, match=message):
        sampler([3, 2], 5, **options)


@pytest.mark.parametrize("cost", [-1, float("nan"), None, "1"])
def test_the_cost_of_a_token_is_a_number(cost):
    with pytest.raises(ValueError, match="token_cost must be a number of at least 0"):
        PackBatchSampler([3, 2], 5).straggler_ratio(token_cost=cost)

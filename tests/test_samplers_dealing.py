"""Dealing to ranks: every rank as many batches, every document once or counted, steps of similar cost."""

from itertools import chain, pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from strategies import documents_of, sampler_factories

from packdata.samplers import LengthBucketBatchSampler, PackBatchSampler
from packdata.samplers.costs import straggler_ratio

worlds = st.integers(1, 4)


def every_rank(make, world, **options):
    """One sampler for each rank; examples of which ``uneven="drop"`` would drop everything are passed over."""
    try:
        return [make(rank=rank, world_size=world, **options) for rank in range(world)]
    except ValueError:
        with pytest.raises(ValueError, match='uneven="drop" would drop all'):
            make(rank=0, world_size=world, **options)
        reject()


@settings(max_examples=60)
@given(sampler_factories(), worlds)
def test_ranks_have_as_many_batches_and_every_document_once_or_counted(case, world):
    lengths, make = case
    samplers = every_rank(make, world)
    present = {document for document, length in enumerate(lengths) if length}
    for _ in range(2):
        ledger = samplers[0].ledger
        epoch = [list(sampler) for sampler in samplers]
        assert {len(batches) for batches in epoch} == {len(sampler) for sampler in samplers}
        found = [document for batches in epoch for batch in batches for document in documents_of(batch)]
        assert len(found) == len(set(found)) == ledger.documents_kept
        assert ledger.documents_kept + ledger.documents_dropped == len(present) == len(present | set(found))
        assert ledger.tokens_kept == sum(lengths[document] for document in found)
        assert ledger.tokens_kept + ledger.tokens_dropped == sum(lengths)
        assert ledger.documents_dropped == 0 or make.keywords["uneven"] == "drop"


@settings(max_examples=60)
@given(sampler_factories(balance=[None]), worlds)
def test_steps_are_dealt_as_by_the_oracle(case, world):
    _, make = case
    samplers = every_rank(make, world)
    packs_per_batch = make.keywords.get("packs_per_batch", 1)
    everything = make(rank=0, world_size=1, uneven="pad", **({"packs_per_batch": 1} if packs_per_batch > 1 else {}))
    for _ in range(2):
        packs = [documents_of(batch) for batch in everything]
        steps = oracles.deal(packs, world=world, packs_per_batch=packs_per_batch, uneven=make.keywords["uneven"])
        expected = [[list(chain(*batch)) for batch in step] for step in steps]
        found = zip(*(map(documents_of, sampler) for sampler in samplers), strict=True)
        assert [list(step) for step in found] == expected


@settings(max_examples=40)
@given(sampler_factories(), worlds)
def test_rank_all_yields_what_all_ranks_do_in_dealing_order(case, world):
    _, make = case
    samplers = every_rank(make, world)
    for _ in range(2):
        everything = make(rank="all", world_size=world)
        everything.set_epoch(samplers[0].epoch)
        batches = [documents_of(batch) for batch in everything]
        assert len(batches) == len(everything) == world * len(samplers[0])
        assert [batches[rank::world] for rank in range(world)] == [list(map(documents_of, s)) for s in samplers]


@settings(max_examples=40)
@given(sampler_factories(balance=["attention"]), st.integers(2, 4))
def test_balance_sorts_the_packs_of_a_window_and_moves_none_beyond_it(case, world):
    lengths, make = case
    samplers, loose = every_rank(make, world), every_rank(make, world, balance=None)

    def cost(pack):
        return sum(lengths[document] ** 2 for document in pack)

    def steps_of(samplers):
        return [[documents_of([pack]) for batch in step for pack in batch] for step in zip(*samplers, strict=True)]

    if "packs_per_batch" not in make.keywords:
        return
    balanced, plain, window = steps_of(samplers), steps_of(loose), make.keywords["balance_window"]
    full = len(balanced) - (len(balanced[-1]) < world * make.keywords["packs_per_batch"])
    assert balanced[full:] == plain[full:]  # the incomplete step
    for first in range(0, full, window):
        steps = balanced[first : min(first + window, full)]
        assert sorted(chain(*steps)) == sorted(chain(*plain[first : min(first + window, full)]))
        steps.sort(key=lambda step: sorted(map(cost, step)))
        assert all(max(map(cost, one)) <= min(map(cost, next_)) for one, next_ in pairwise(steps))


@settings(max_examples=40)
@given(sampler_factories(), worlds, st.floats(0, 100))
def test_the_straggler_ratio_is_the_oracles(case, world, token_cost):
    lengths, make = case
    samplers = every_rank(make, world)
    measured = [sampler.straggler_ratio(token_cost=token_cost) for sampler in samplers]
    epoch = zip(*(map(documents_of, sampler) for sampler in samplers), strict=True)
    steps = [[[lengths[document] for document in batch] for batch in step] for step in epoch]
    assert measured == pytest.approx([oracles.straggler_ratio(steps, token_cost=token_cost)] * world)


@pytest.mark.parametrize(("ranks", "loose"), [(8, 2.0), (64, 3.0)])
def test_balanced_steps_of_log_normal_documents_hardly_wait(ranks, loose):
    lengths = np.clip(np.random.default_rng(0).lognormal(6.2, 1.1, ranks * 2200), 1, 8192).astype(np.int32)
    options = {"rank": 0, "world_size": ranks}
    balanced = PackBatchSampler(lengths, 8192, balance="attention", **options)
    assert len(balanced) >= 200
    assert balanced.straggler_ratio() < 1.05
    assert balanced.straggler_ratio(token_cost=6 * 1024) < 1.05
    assert PackBatchSampler(lengths, 8192, **options).straggler_ratio() > loose


def test_a_tokens_cost_is_not_negative():
    with pytest.raises(ValueError, match="token_cost must be a number of at least 0, got -1"):
        PackBatchSampler([8], 8).straggler_ratio(token_cost=-1)


def test_no_work_waits_for_nobody():
    assert straggler_ratio(np.zeros((0, 4))) == straggler_ratio(np.zeros((2, 4))) == 1.0


def test_balance_leaves_the_steps_of_a_window_in_random_order():
    lengths = np.arange(1, 257)
    sampler = PackBatchSampler(lengths, 256, max_documents=1, balance="attention", rank=0, world_size=2)
    longest = [max(batch) for batch in sampler]
    assert longest != sorted(longest)
    assert len({batch[0] % 2 for batch in sampler}) == 2  # a rank is not always the one with the longer document


@pytest.mark.parametrize(("uneven", "steps"), [("pad", 3), ("drop", 2)])
@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
def test_five_full_batches_on_two_ranks(make, uneven, steps):
    samplers = [make([8] * 5, 8, rank=rank, world_size=2, uneven=uneven) for rank in range(2)]  # F1
    epoch = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in epoch] == [steps, steps]
    found = [document for batches in epoch for batch in batches for document in batch]
    assert len(found) == len(set(found)) == (5 if uneven == "pad" else 4)  # F13: each is weighted once
    assert [batch for batches in epoch for batch in batches if not batch] == ([[]] if uneven == "pad" else [])


@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
def test_ranks_are_disjoint_whatever_their_global_random_states(make):
    epoch = []
    for rank in range(2):
        np.random.seed(rank)  # noqa: NPY002
        epoch.append(list(make([8] * 10, 8, rank=rank, world_size=2)))  # F3
    assert sorted(document for batches in epoch for batch in batches for document in batch) == list(range(10))


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])
def test_the_length_is_what_is_yielded_in_every_epoch(make, world, uneven):
    for rank in range(world):
        sampler = make([5, 5, 5, 3, 3, 3, 2], 8, rank=rank, world_size=world, uneven=uneven)  # F6
        assert {len(list(sampler)) for _ in range(5)} == {len(sampler)}


def test_a_sampler_says_what_it_deals_to_whom():
    sampler = PackBatchSampler([5, 5, 3, 3, 8], 8, rank=0, world_size=2, seed=7)
    held = "PackBatchSampler(5 documents, 3 packs, budget 8, 2 lists of documents, rank 0 of 2, "
    assert repr(sampler) == held + "epoch 0, seed 7)"
    list(sampler)
    assert repr(sampler) == held + "epoch 1, seed 7)"
    packs = PackBatchSampler([1], 8, items="packs", rank="all", world_size=1, shuffle=False)
    assert repr(packs).endswith("(1 document, 1 pack, budget 8, 1 list of packs, rank all of 1, epoch 0, not shuffled)")
    buckets = LengthBucketBatchSampler([5, 2, 3, 2], 6, boundaries=(3,), padded=True, rank=0, world_size=1)
    assert repr(buckets).startswith("LengthBucketBatchSampler(4 documents, 3 packs, budget 6, 3 lists of documents")


def test_saying_so_plans_nothing():
    sampler = PackBatchSampler([5, 5, 3], 8, rank=0, world_size=1)
    list(sampler)
    before = sampler._formed
    assert "epoch 1" in repr(sampler)
    assert sampler._formed is before

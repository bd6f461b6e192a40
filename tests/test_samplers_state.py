"""Epochs and states: resumed equals uninterrupted, from any point, also with another number of ranks."""

import json
import pickle
from copy import deepcopy
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import documents_of, sampler_factories
from test_samplers_dealing import every_rank

from packdata.planning import plan_packs
from packdata.samplers import LengthBucketBatchSampler, PackBatchSampler

worlds = st.integers(1, 4)
both = pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])


def saved(state):
    return json.loads(json.dumps(state))


@settings(max_examples=60)
@given(sampler_factories(), worlds, st.data())
def test_resumed_equals_uninterrupted_from_any_point(case, world, data):
    _, make = case
    rank = data.draw(st.sampled_from([*range(world), "all"]), label="rank")
    every_rank(make, world)
    uninterrupted = make(rank=rank, world_size=world)
    expected = [documents_of(batch) for _ in range(3) for batch in uninterrupted]
    sampler, found = make(rank=rank, world_size=world), []
    while sampler.epoch < 3 and len(sampler):
        epoch, began = sampler.epoch, sampler.consumed
        taken = data.draw(st.integers(1, len(sampler) - began), label="taken")
        found += map(documents_of, islice(sampler, taken))
        state = sampler.state_dict()
        assert state == sampler.checkpoint(began + taken)
        assert (state["epoch"], sampler.epoch) == (epoch + (began + taken == len(sampler)),) * 2
        sampler = make(rank=rank, world_size=world)
        sampler.load_state_dict(saved(state))
        assert sampler.state_dict() == state
    assert found == expected


@settings(max_examples=60)
@given(sampler_factories(), st.lists(st.tuples(worlds, st.integers(0, 4), st.booleans()), min_size=1, max_size=4))
def test_a_resume_with_another_number_of_ranks_repeats_and_loses_nothing(case, legs):
    lengths, make = case
    for world, _, _ in legs:
        every_rank(make, world)
    state, found = None, []
    for world, steps, everything in [*legs, (1, None, False)]:
        ranks = ["all"] if everything else list(range(world))
        samplers = [make(rank=rank, world_size=world) for rank in ranks]
        for sampler in samplers if state else []:
            sampler.load_state_dict(saved(state))
        if samplers[0].epoch:  # what was left did not make a step of so many ranks
            state = samplers[0].state_dict()
            break
        parts = [[documents_of(batch) for batch in islice(sampler, steps)] for sampler in samplers]
        assert len(set(map(len, parts))) == 1
        found += [document for part in parts for batch in part for document in batch]
        states = [sampler.state_dict() if steps != 0 else sampler.checkpoint(sampler.consumed) for sampler in samplers]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert len(found) == len(set(found))
    present = {document for document, length in enumerate(lengths) if length}
    assert set(found) == present or make.keywords["uneven"] == "drop"
    following, fresh = make(rank=0, world_size=1), make(rank=0, world_size=1)
    following.load_state_dict(state)
    fresh.set_epoch(1)
    assert following.epoch == 1
    assert list(map(documents_of, following)) == list(map(documents_of, fresh))


def test_twenty_batches_change_from_two_to_four_ranks():
    def ranks(world):
        return [PackBatchSampler([8] * 20, 8, rank=rank, world_size=world) for rank in range(world)]

    order = [batch for step in zip(*ranks(2), strict=True) for batch in step]
    two = ranks(2)
    for sampler in two:
        list(islice(sampler, 3))
    four = ranks(4)
    for sampler in four:
        sampler.load_state_dict(saved(two[0].state_dict()))  # F12: six of twenty are consumed
    steps = list(zip(*four, strict=True))
    assert [batch for step in steps for batch in step if batch] == order[6:]
    assert [len(steps), sum(batch == [] for step in steps for batch in step)] == [4, 2]


@pytest.mark.parametrize(
    ("lengths", "budget", "options", "named"),
    [
        ([8] * 20, 16, {}, "budget is 8, here it is 16"),  # F12
        ([8] * 21, 8, {}, "lengths is"),  # F12
        ([8] * 19 + [7], 8, {}, "lengths is"),
        ([8] * 20, 8, {"seed": 1}, "seed is 0, here it is 1"),  # F12
        ([8] * 20, 8, {"shuffle": False}, "shuffle is True, here it is False"),
        ([8] * 20, 8, {"strategy": "sequential"}, "strategy is 'best_fit', here it is 'sequential'"),
        ([8] * 20, 8, {"max_documents": 2}, "max_documents is None, here it is 2"),
        ([8] * 20, 8, {"align": 2}, "align is 1, here it is 2"),
        ([8] * 20, 8, {"window": 4}, "window is None, here it is 4"),
        ([8] * 20, 8, {"groups": list(range(20))}, "groups is None"),
        ([8] * 20, 8, {"packs_multiple_of": 3}, "packs_multiple_of is 1, here it is 3"),
        ([8] * 20, 8, {"overlong": "drop"}, "overlong is 'error', here it is 'drop'"),
        ([8] * 20, 8, {"balance": "attention"}, "balance is None, here it is 'attention'"),
        ([8] * 20, 8, {"balance_window": 3}, "balance_window is 64, here it is 3"),
        ([8] * 20, 8, {"uneven": "drop"}, "uneven is 'pad', here it is 'drop'"),
        ([8] * 20, 8, {"packs_per_batch": 2, "items": "packs"}, "packs_per_batch is 1, here it is 2"),
        (plan_packs([8] * 20, 8), None, {}, "plan has none, here it is"),
    ],
)
def test_a_state_of_another_dataset_budget_policy_or_seed_is_refused(lengths, budget, options, named):
    state = saved(PackBatchSampler([8] * 20, 8).state_dict())
    with pytest.raises(ValueError, match=f"state belongs to another run: its {named}"):
        PackBatchSampler(lengths, budget, **options).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"boundaries": (4,)}, r"boundaries is \[770, .*, here it is \[4\]"),
        ({"padded": True}, "padded is False, here it is True"),
    ],
)
def test_a_state_of_other_buckets_is_refused(options, named):
    state = saved(LengthBucketBatchSampler([8] * 20, 8).state_dict())
    with pytest.raises(ValueError, match=named):
        LengthBucketBatchSampler([8] * 20, 8, **options).load_state_dict(state)


@both
def test_what_a_sampler_did_not_save_is_refused_and_changes_nothing(make):
    sampler, other = make([8] * 5, 8), {PackBatchSampler: LengthBucketBatchSampler}.get(make, PackBatchSampler)
    list(islice(sampler, 2))
    state = sampler.state_dict()
    damaged = [
        (other([8] * 5, 8).state_dict(), "its sampler is"),
        ({}, r"state must be what a \w+'s state_dict\(\) returned, got {}"),
        ({"epoch": 1, "samples_yielded": 3}, "state must be what"),
        ({**state, "version": 2}, "version 2, this packdata reads version 1"),
        ({**state, "epoch": -1}, "state is damaged"),
        ({**state, "epoch": True}, "state is damaged"),
        ({**state, "used": [[1, "2"]]}, "state is damaged"),
        ({**state, "used": [[0, 2]]}, "state is damaged"),
        ({**state, "used": [3]}, "state is damaged"),
        ({**state, "used": 3}, "state is damaged"),
        ({**state, "identity": None}, "state belongs to another run"),
        ({**state, "used": [[1, 6]]}, "6 batches used by 1 ranks are more than there were"),
    ]
    for wrong, message in damaged:
        with pytest.raises(ValueError, match=message):
            sampler.load_state_dict(wrong)
    assert sampler.state_dict() == state


@both
@pytest.mark.parametrize(("consumed", "bounds"), [(-1, "consumed"), (6, "from 0 to 5 here, got 6"), (1.5, "consumed")])
def test_a_checkpoint_of_what_cannot_be_consumed_is_refused(make, consumed, bounds):
    with pytest.raises(ValueError, match=bounds):
        make([8] * 5, 8).checkpoint(consumed)


@both
def test_a_checkpoint_counts_from_the_epochs_begin_not_from_the_resume(make):
    sampler, resumed = make([8] * 5, 8), make([8] * 5, 8)
    resumed.load_state_dict(sampler.checkpoint(3))
    assert (resumed.consumed, len(list(resumed))) == (3, 2)
    resumed.load_state_dict(sampler.checkpoint(3))
    with pytest.raises(ValueError, match="since epoch 0 began, from 3 to 5 here, got 1"):
        resumed.checkpoint(1)
    assert resumed.checkpoint(5)["epoch"] == 1


@pytest.mark.parametrize(("rank", "consumed"), [(0, 3), ("all", 6)])
def test_steps_of_other_numbers_of_ranks_count_as_one_batch_each(rank, consumed):
    two, one = (
        PackBatchSampler([8] * 20, 8, rank=0, world_size=2),
        PackBatchSampler([8] * 20, 8, rank=rank, world_size=1),
    )
    one.load_state_dict(two.checkpoint(3))
    assert one.consumed == consumed
    list(islice(one, 4))
    assert one.state_dict() == one.checkpoint(consumed + 4)
    assert one.state_dict()["used"] == [[2, 6], [1, 4]]


@both
def test_set_epoch_chooses_the_order(make):
    sampler = make([8] * 16, 8)
    orders = []
    for epoch in 0, 1, 0:
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] != orders[1]  # F4
    assert orders[0] == orders[2]  # F4
    assert sampler.sampler is sampler.batch_sampler is sampler
    sampler.set_epoch(np.int64(0))
    assert [list(sampler), list(sampler)] == orders[:2]  # F4: a finished epoch is followed by the next


@both
def test_an_unfinished_epoch_begins_again_where_it_was_resumed(make):
    sampler = make([8] * 6, 8)
    order = list(sampler)
    sampler.set_epoch(0)
    for _ in range(2):
        assert list(islice(sampler, 3)) == order[:3]
    sampler.load_state_dict(sampler.checkpoint(2))
    for _ in range(2):
        assert list(islice(sampler, 3)) == order[2:5]
        sampler.set_epoch(0)  # the current epoch: nothing changes
        assert sampler.state_dict() == sampler.checkpoint(5)
    sampler.set_epoch(1)
    assert sampler.state_dict() == sampler.checkpoint(0) == make([8] * 6, 8).checkpoint(6)


@both
@pytest.mark.parametrize("epoch", [-1, True, 0.5, "1", None])
def test_an_epoch_is_an_integer_from_0(make, epoch):
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0"):
        make([8], 8).set_epoch(epoch)


@both
def test_a_resume_in_a_later_epoch_goes_on_with_its_order(make):
    uninterrupted, sampler = make([8] * 10, 8), make([8] * 10, 8)
    epochs = [list(uninterrupted) for _ in range(3)]
    list(sampler), list(islice(sampler, 3))
    resumed = make([8] * 10, 8)
    resumed.load_state_dict(saved(sampler.state_dict()))  # F7
    assert list(resumed) == epochs[1][3:]
    assert list(resumed) == epochs[2]


@both
def test_a_second_resume_goes_on_where_the_first_one_stopped(make):
    order, state, found = list(make([8] * 12, 8)), None, []
    for stop in 3, 2, None:  # F9
        sampler = make([8] * 12, 8)
        if state:
            sampler.load_state_dict(state)
        found.append(list(islice(sampler, stop)))
        state = saved(sampler.state_dict())
    assert list(map(len, found)) == [3, 2, 7]
    assert sum(found, []) == order  # noqa: RUF017


@both
def test_only_the_newest_iterator_moves_the_state(make):
    sampler = make([8] * 6, 8)
    old = iter(sampler)
    next(old)
    new = iter(sampler)
    next(new), next(new)
    list(old)
    assert (sampler.epoch, sampler.state_dict()) == (0, sampler.checkpoint(2))
    sampler.set_epoch(3)
    list(new)
    assert (sampler.epoch, sampler.consumed) == (3, 0)


@both
def test_a_state_is_small_and_a_copy(make):
    sampler = make([8] * 1000, 8, rank=0, world_size=2)
    list(islice(sampler, 3))
    state = sampler.state_dict()
    kept = deepcopy(state)
    next(iter(sampler))
    assert state == kept
    assert len(json.dumps(state)) < 1000


@both
def test_a_sampler_pickles_without_its_plan(make):
    sampler = make(np.full(10_000, 4), 8)  # G2
    list(islice(sampler, 5))
    data = pickle.dumps(sampler)
    assert len(data) < 90_000
    copy = pickle.loads(data)
    assert copy.state_dict() == sampler.state_dict()
    assert list(copy) == list(sampler)

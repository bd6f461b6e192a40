"""The samplers inside the loaders that people use: torch, torchdata, Accelerate, Lightning."""

import json
import pickle
from itertools import chain, islice

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packdata.batches import PackingCollator
from packdata.samplers import LengthBucketBatchSampler, PackBatchSampler
from packdata.sources import Documents

pytestmark = [  # what the frameworks themselves warn of
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]

IDS = [np.arange(place, place + 3 + place % 4) for place in range(40)]
LENGTHS = [len(ids) for ids in IDS]
both = pytest.mark.parametrize("make", [PackBatchSampler, LengthBucketBatchSampler])


class Numbers(torch.utils.data.Dataset):
    """Document ``i`` is the number ``i``, so that a batch says what it holds."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        return index


def as_list(batch):
    return list(batch)


def loader_of(sampler, kind=DataLoader, **options):
    return kind(Numbers(), batch_sampler=sampler, collate_fn=as_list, **options)


@pytest.mark.parametrize(
    ("items", "context", "persistent"),
    [("documents", "fork", False), ("packs", "fork", True), ("packs", "spawn", True)],
)
def test_workers_give_the_batches_of_one_process(items, context, persistent):
    def epochs(**options):
        documents = Documents([{"input_ids": ids} for ids in IDS])
        several = {"packs_per_batch": 2} if items == "packs" else {}
        sampler = PackBatchSampler(documents.lengths, 16, items=items, rank=1, world_size=3, **several)
        loader = DataLoader(documents, batch_sampler=sampler, collate_fn=PackingCollator(), **options)
        found = [[batch["input_ids"].tolist() for batch in loader] for _ in range(2)]
        assert [len(epoch) for epoch in found] == [len(loader)] * 2
        return found

    workers = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": persistent}
    alone, shared = epochs(), epochs(**workers)  # G2
    assert alone == shared
    assert alone[0] != alone[1]


@pytest.mark.parametrize("what", [PackingCollator(), PackBatchSampler(LENGTHS, 16), Documents({"input_ids": IDS})])
def test_what_a_loader_holds_goes_through_pickle(what):
    assert type(pickle.loads(pickle.dumps(what))) is type(what)  # G2


@both
def test_a_checkpoint_says_what_the_loop_consumed_not_what_the_workers_fetched(make):
    order = list(make([8] * 20, 8))
    sampler = make([8] * 20, 8)
    batches = iter(DataLoader(range(20), batch_sampler=sampler, collate_fn=as_list, num_workers=2, prefetch_factor=2))
    assert [next(batches) for _ in range(3)] == order[:3]
    ahead, state = sampler.state_dict(), json.loads(json.dumps(sampler.checkpoint(3)))
    del batches
    resumed = make([8] * 20, 8)
    resumed.load_state_dict(state)  # F11
    assert ahead["used"][0][1] > 3
    assert list(DataLoader(range(20), batch_sampler=resumed, collate_fn=as_list)) == order[3:]


@both
def test_a_checkpoint_holds_when_the_workers_have_fetched_the_whole_epoch(make):
    order = list(make([8] * 5, 8))
    sampler = make([8] * 5, 8)
    batches = iter(DataLoader(range(5), batch_sampler=sampler, collate_fn=as_list, num_workers=2, prefetch_factor=4))
    assert next(batches) == order[0]
    assert sampler.epoch == 1
    resumed = make([8] * 5, 8)
    resumed.load_state_dict(sampler.checkpoint(1))
    assert (resumed.epoch, list(resumed)) == (0, order[1:])


@pytest.mark.parametrize(("num_workers", "every"), [(0, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("taken", [0, 4, None])
def test_a_stateful_loader_resumes_in_the_middle_and_at_the_end(num_workers, taken, every):
    def loader():
        sampler = PackBatchSampler(LENGTHS, 16)
        options = {"num_workers": num_workers, "snapshot_every_n_steps": every}
        return loader_of(sampler, StatefulDataLoader, **options)

    uninterrupted = PackBatchSampler(LENGTHS, 16)
    expected = [list(uninterrupted) for _ in range(4)]
    first = loader()
    iterator = iter(first)
    found = list(islice(iterator, len(first) if taken is None else taken))
    state = first.state_dict()
    del iterator
    resumed = loader()
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    passes = [list(resumed) for _ in range(3)]  # one of nothing, if all batches but not their end had been seen
    found += chain(*passes)
    assert found == list(chain(*expected))[: len(found)]
    assert len(found) in (3 * len(first), 4 * len(first))


def test_a_stateful_loader_that_saw_the_end_goes_on_with_the_next_epoch():
    uninterrupted, first, resumed = (loader_of(PackBatchSampler(LENGTHS, 16), StatefulDataLoader) for _ in range(3))
    expected = [list(uninterrupted) for _ in range(2)]
    assert list(first) == expected[0]
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == expected[1]


def prepared(sampler, rank, *, processes=2, stateful=False):
    """What ``Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False)).prepare`` makes on a rank."""
    return prepare_data_loader(
        loader_of(sampler),
        num_processes=processes,
        process_index=rank,
        put_on_device=False,
        even_batches=False,
        use_stateful_dataloader=stateful,
    )


def all_ranks(**options):
    return PackBatchSampler(LENGTHS, 16, rank="all", world_size=2, **options)


def test_accelerate_deals_what_the_samplers_would():
    loaders = [prepared(all_ranks(), rank) for rank in range(2)]
    samplers = [PackBatchSampler(LENGTHS, 16, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(3):  # prepared loaders call set_epoch themselves
        for loader, sampler in zip(loaders, samplers, strict=True):
            assert list(loader) == list(sampler)
            assert len(loader) == len(sampler)


@pytest.mark.parametrize("stateful", [False, True])
def test_accelerate_resumes(stateful):
    expected = [[list(loader) for _ in range(3)] for loader in (prepared(all_ranks(), rank) for rank in range(2))]
    for rank in range(2):
        loader = prepared(all_ranks(), rank, stateful=stateful)
        assert list(loader) == expected[rank][0]
        found = list(islice(loader, 2))
        state = loader.state_dict() if stateful else None
        resumed = prepared(all_ranks(), rank, stateful=stateful)
        if stateful:
            resumed.load_state_dict(state)
            resumed.set_epoch(1)
            found += list(resumed)
        else:
            resumed.set_epoch(1)
            rest = skip_first_batches(resumed, 2)
            found += list(rest)
            resumed.set_epoch(2)
        assert found == expected[rank][1]
        assert list(resumed) == expected[rank][2]


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_resumes_from_the_samplers_state(processes):
    def sampler():
        return PackBatchSampler(LENGTHS, 16, rank="all", world_size=processes)

    for rank in range(processes):
        whole = prepared(sampler(), rank, processes=processes)
        expected, first = [list(whole) for _ in range(3)], sampler()
        loader = prepared(first, rank, processes=processes)
        found = [*loader, *islice(loader, 2)]
        state = first.checkpoint(2 * processes)
        for _ in range(2):  # the second resume counts from the epoch's begin, too
            resumed = sampler()
            resumed.load_state_dict(state)
            begin, loader = resumed.consumed, prepared(resumed, rank, processes=processes)
            loader.set_epoch(resumed.epoch)
            found += islice(loader, 1)
            state = resumed.checkpoint(begin + processes)
        resumed.load_state_dict(state)
        assert found + list(loader) + list(loader) == list(chain(*expected))


@pytest.mark.parametrize("ranks", [{"rank": 0, "world_size": 2}, {"rank": "all", "world_size": 3}])
def test_sharding_twice_is_detected(ranks):
    with pytest.raises(RuntimeError, match='Give rank="all", world_size=2'):
        list(prepared(PackBatchSampler(LENGTHS, 16, **ranks), 0))


class Recorder(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), {}

    def training_step(self, batch, index):
        self.seen.setdefault(self.current_epoch, []).append(batch)
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_goes_through_the_epochs(tmp_path):
    recorder, sampler = Recorder(), PackBatchSampler(LENGTHS, 16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", max_epochs=3, default_root_dir=tmp_path, enable_model_summary=False, **quiet)
    trainer.fit(recorder, loader_of(sampler))
    fresh = PackBatchSampler(LENGTHS, 16)
    assert recorder.seen == {epoch: list(fresh) for epoch in range(3)}


@both
def test_nobody_takes_it_for_a_sampler_to_batch_again(make):
    sampler = make(LENGTHS, 16)
    assert not isinstance(sampler, BatchSampler)
    assert not hasattr(sampler, "batch_size")

import json
import pickle

import datasets
import numpy as np
import oracles
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packdata.sources import StreamPacker, pack_table

datasets.disable_progress_bars()


class Again:
    """An iterable that begins anew each time."""

    def __init__(self, documents):
        self.documents = documents

    def __iter__(self):
        return iter(self.documents)


class Resumable(Again):
    """A source with a state of its own: the next document."""

    def __init__(self, documents):
        super().__init__(documents)
        self.place = 0

    def __iter__(self):
        while self.place < len(self.documents):
            self.place += 1
            yield self.documents[self.place - 1]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def pipeline(documents, shards=1):
    return datasets.Dataset.from_dict({"input_ids": documents}).to_iterable_dataset(num_shards=shards)


def _same(batch):
    return {"input_ids": batch["input_ids"]}


SOURCES = {
    "a list": list,
    "a dataset": lambda documents: datasets.Dataset.from_dict({"input_ids": documents}),
    "a shuffled dataset": lambda documents: datasets.Dataset.from_dict({"input_ids": documents}).shuffle(seed=3),
    "a table": lambda documents: pa.table({"input_ids": pa.array(documents, pa.list_(pa.uint16()))}),
    "an iterable": Again,
    "a source with a state": Resumable,
    "a stream": pipeline,
    "a stream of shards": lambda documents: pipeline(documents, 3),
    "a shuffled stream": lambda documents: pipeline(documents, 3).shuffle(seed=1, buffer_size=7),
    "a mapped stream": lambda documents: pipeline(documents, 2).map(_same, batched=True, batch_size=4),
    "a filtered stream": lambda documents: pipeline(documents, 2).filter(lambda row: True),
    "a skipped stream": lambda documents: pipeline([[0], *documents], 1).skip(1),
}


def tokens_of(packs):
    return sorted(int(token) for pack in packs for token in pack["input_ids"])


def all_tokens(documents):
    return sorted(token for document in documents for token in document)


def some_documents(count, seed=0):
    """Documents of which no two hold the same token."""
    rng = np.random.default_rng(seed)
    return [[number + 1] * int(length) for number, length in enumerate(rng.integers(1, 9, count))]


def run_with_stops(make_packer, stops):
    """Iterate, and after each of so many packs throw the packer away and go on with a new one from its state."""
    packs, state = [], None
    for stop in [*stops, None]:
        packer = make_packer()
        if state is not None:
            packer.load_state_dict(json.loads(json.dumps(state)))
        for taken, pack in enumerate(packer, 1):
            packs.append(pack)
            if taken == stop:
                break
        else:
            return packs, packer
        state = packer.state_dict()
        assert len(json.dumps(state)) < 64_000
    return packs, packer


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=6)
@given(
    count=st.integers(3, 20),
    window=st.integers(1, 11),
    world_size=st.integers(1, 3),
    stops=st.lists(st.integers(1, 4), max_size=4),
    seed=st.none() | st.just(5),
)
def test_stopped_anywhere_every_rank_goes_on_as_if_it_had_not(kind, count, window, world_size, stops, seed):
    documents = some_documents(count)
    ranks = []
    for rank in range(world_size):

        def make(rank=rank):
            source = SOURCES[kind](documents)
            return StreamPacker(source, 12, window=window, rank=rank, world_size=world_size, seed=seed)

        stopped, packer = run_with_stops(make, stops)
        whole = list(make())
        assert oracles.rows_of(stopped) == oracles.rows_of(whole)
        if count:
            assert packer.ledger.tokens_kept == sum(map(len, documents))
        ranks.append(whole)
    assert len({len(packs) for packs in ranks}) == 1
    assert tokens_of(pack for packs in ranks for pack in packs) == all_tokens(documents)


@pytest.mark.parametrize("kind", ["a list", "a dataset", "an iterable", "a source with a state"])
def test_nothing_is_fine(kind):
    """E5."""
    for documents in ([], [[], []]):
        packer = StreamPacker(SOURCES[kind](documents), 12, rank=0, world_size=2)
        assert list(packer) == []
        assert packer.ledger.documents_empty == len(documents)


def test_packs_are_those_of_each_window():
    documents = some_documents(20)
    packs = list(StreamPacker(documents, 12, window=8))
    tables = [pack_table(pa.table({"input_ids": documents[first : first + 8]}), 12)[0] for first in (0, 8, 16)]
    assert oracles.rows_of(packs) == [row for table in tables for row in table.to_pylist()]


def test_a_buffer_of_documents_is_not_lost_in_a_stop():
    """H8: documents 0 to 11 of one token, packs of three, windows of four, a stop after one pack."""
    for kind in SOURCES:
        packs, _ = run_with_stops(
            lambda kind=kind: StreamPacker(SOURCES[kind]([[number] for number in range(12)]), 3, window=4), [1]
        )
        assert tokens_of(packs) == list(range(12)), kind


def test_a_second_stop_starts_where_the_first_left_off():
    """F9: twelve packs, stops after 3 and after 2 more."""
    packs, _ = run_with_stops(lambda: StreamPacker([[number] for number in range(12)], 1, window=4), [3, 2])
    assert [pack["input_ids"].tolist() for pack in packs] == [[number] for number in range(12)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's call
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["a list", "a stream of shards", "a shuffled stream"])
def test_stateful_loaders_with_workers_resume_exactly(workers, kind):
    documents = some_documents(40)

    def loader(rank):
        packer = StreamPacker(SOURCES[kind](documents), 12, window=8, rank=rank, world_size=2)
        return StatefulDataLoader(packer, batch_size=None, num_workers=workers)

    ranks = []
    for rank in range(2):
        taken, state = [], None
        for stop in (3, 1, None):
            stateful = loader(rank)
            if state is not None:
                stateful.load_state_dict(state)
            for number, pack in enumerate(stateful, 1):
                taken.append(pack)
                if number == stop:
                    break
            state = stateful.state_dict()
        ranks.append(taken)
        packer = StreamPacker(SOURCES[kind](documents), 12, window=8, rank=rank, world_size=2)
        assert oracles.rows_of(taken) == oracles.rows_of(packer)
    assert len(ranks[0]) == len(ranks[1])
    assert tokens_of(ranks[0] + ranks[1]) == all_tokens(documents)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_neither_packs_nor_their_order(workers):
    packer = StreamPacker(pipeline(some_documents(50), 4), 12, window=8, rank=1, world_size=2)
    loaded = DataLoader(packer, batch_size=None, num_workers=workers)
    assert oracles.rows_of(loaded) == oracles.rows_of(packer)


@given(count=st.integers(0, 40), taken=st.integers(0, 6), worlds=st.tuples(st.integers(1, 3), st.integers(1, 4)))
@settings(max_examples=20)
def test_another_number_of_ranks_takes_over(count, taken, worlds):
    documents, (before, after) = some_documents(count), worlds
    packs, state = [], None
    for rank in range(before):
        packer = StreamPacker(documents, 12, window=8, rank=rank, world_size=before)
        packs += [pack for _, pack in zip(range(taken), packer, strict=False)]
        state = packer.state_dict()
    for rank in range(after):
        packer = StreamPacker(documents, 12, window=8, rank=rank, world_size=after)
        packer.load_state_dict(state)
        packs += list(packer)
    assert tokens_of(packs) == all_tokens(documents)


@pytest.mark.parametrize("kind", ["a list", "an iterable", "a stream of shards"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packs_per_rank", [3, 40])
def test_documents_may_be_split_instead(kind, workers, packs_per_rank):
    documents = some_documents(60)
    ranks = [
        StreamPacker(
            SOURCES[kind](documents), 12, split="documents", packs_per_rank=packs_per_rank, rank=rank, world_size=3
        )
        for rank in range(3)
    ]
    packs = [list(DataLoader(packer, batch_size=None, num_workers=workers)) for packer in ranks]
    assert [len(theirs) for theirs in packs] == [packs_per_rank] * 3
    tokens = tokens_of(pack for theirs in packs for pack in theirs)
    if packs_per_rank == 40:
        assert tokens == all_tokens(documents)
    else:
        assert all(tokens.count(token) == len(documents[token - 1]) for token in set(tokens))


def test_a_split_stream_resumes_on_its_own_rank_only():
    def make(rank):
        return StreamPacker(some_documents(60), 12, split="documents", packs_per_rank=9, rank=rank, world_size=2)

    packs, packer = run_with_stops(lambda: make(1), [2, 3])
    assert oracles.rows_of(packs) == oracles.rows_of(make(1))
    other = make(0)
    other.load_state_dict(packer.state_dict())
    with pytest.raises(ValueError, match="only a state that the training process took with split='packs' fits others"):
        iter(other)


def test_epochs_shuffle_anew_and_a_resume_point_holds_until_its_epoch_ends():
    packer = StreamPacker(some_documents(40), 12, window=20, seed=1)
    first, again = (oracles.rows_of(packer) for _ in range(2))
    assert first == again
    packer.set_epoch(1)
    second = oracles.rows_of(packer)
    assert second != first
    assert tokens_of(second) == tokens_of(first)
    iterator = iter(packer)
    for _ in range(3):
        next(iterator)
    resumed = StreamPacker(some_documents(40), 12, window=20, seed=1)
    resumed.load_state_dict(packer.state_dict())
    assert resumed.epoch == 1
    resumed.set_epoch(1)
    next(iter(resumed))  # a look, as trainers take before they begin
    assert oracles.rows_of(resumed) == second[3:]
    assert oracles.rows_of(resumed) == second
    resumed.set_epoch(0)
    assert oracles.rows_of(resumed) == first


def test_a_finished_epoch_is_resumed_as_finished():
    packer = StreamPacker([[1], [2]], 1)
    assert len(list(packer)) == 2
    resumed = StreamPacker([[1], [2]], 1)
    resumed.load_state_dict(packer.state_dict())
    assert list(resumed) == []
    assert len(list(resumed)) == 2


def test_masks_markers_and_losses_of_tokens():
    documents = [{"input_ids": [1, 2, 3], "completion_mask": [0, 0, 1], "text": "a"}] * 2
    packer = StreamPacker(documents, 8, eos_token_id=9, drop_columns=["text"], overlong="truncate")
    assert oracles.rows_of(packer) == [
        {"input_ids": [1, 2, 3, 9, 1, 2, 3, 9], "labels": [-100, -100, 3, 9] * 2, "seq_lengths": [4, 4]}
    ]
    assert packer.ledger.targets_kept == 4
    packer = StreamPacker([[1] * 9, [2]], 8, overlong="drop", rank=1, world_size=2)
    empty = {"input_ids": [], "seq_lengths": []}
    assert oracles.rows_of(packer) == [empty]
    assert (packer.ledger.documents_dropped, packer.ledger.tokens_dropped) == (1, 9)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (None, 2), (0, None), (0.5, 2)])
def test_ranks_that_cannot_be_are_refused(rank, world_size):
    """H9."""
    with pytest.raises(ValueError, match=r"rank|world_size"):
        StreamPacker([[1]], 8, rank=rank, world_size=world_size)


def test_a_stream_that_is_split_already_is_refused():
    """H9: nested splits."""
    split = datasets.distributed.split_dataset_by_node(pipeline(some_documents(12), 12), rank=1, world_size=4)
    with pytest.raises(ValueError, match=r"already split by node \(rank 1 of 4\): give the whole stream"):
        StreamPacker(split, 8, rank=1, world_size=3)


def test_ranks_stay_disjoint_after_skipping():
    """H9."""
    documents = some_documents(30)
    ranks = [StreamPacker(pipeline(documents).skip(5), 12, window=8, rank=rank, world_size=2) for rank in range(2)]
    assert tokens_of(pack for packer in ranks for pack in packer) == all_tokens(documents[5:])


@pytest.mark.parametrize("cut", [lambda stream: stream.skip(5), lambda stream: stream.take(7)], ids=["skip", "take"])
def test_a_cut_stream_is_read_in_parts_or_refused(cut):
    """H9: never other documents than those of the whole stream."""
    documents = [[number] for number in range(24)]
    options = {"split": "documents", "packs_per_rank": 24, "world_size": 2}

    def read(shards):
        stream = cut(pipeline(documents, shards))
        return tokens_of(pack for rank in range(2) for pack in StreamPacker(stream, 1, rank=rank, **options))

    assert read(shards=3) == all_tokens(row["input_ids"] for row in cut(pipeline(documents, 3)))
    with pytest.raises(ValueError, match=r"would deal the stream's 4 shards to 2 readers, .* use split='packs'"):
        read(shards=4)


def test_a_generator_is_refused():
    for source in ((row for row in [[1]]), iter([[1]]), map(list, [[1]])):
        with pytest.raises(TypeError, match="can be read only once, and a packer reads again"):
            StreamPacker(source, 8)
    for source in ("text", 7):
        with pytest.raises(TypeError, match="a stream must be iterable"):
            StreamPacker(source, 8)


def test_a_source_that_changed_meanwhile_is_noticed():
    packer = StreamPacker(Again([[1], [2], [3]]), 1, window=1)
    iterator = iter(packer)
    next(iterator), next(iterator)
    changed = StreamPacker(Again([[1], [7], [3]]), 1, window=1)
    changed.load_state_dict(packer.state_dict())
    with pytest.raises(ValueError, match="the stream does not repeat itself: from document 1 on"):
        list(changed)


BAD_OPTIONS = [
    ({"window": 0}, "window must be an integer of at least 1, got 0"),
    ({"budget": 0}, "budget must be at least 1"),
    ({"split": "rows"}, "split must be 'packs' or 'documents', got 'rows'"),
    ({"split": "documents"}, "packs_per_rank goes with split='documents'"),
    ({"packs_per_rank": 3}, "packs_per_rank goes with split='documents'"),
    ({"split": "documents", "packs_per_rank": 0}, "packs_per_rank must be an integer of at least 1"),
    ({"strategy": "bfd"}, "strategy must be one of"),
    ({"untargeted": "no"}, "untargeted must be 'keep', 'drop' or 'error'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[case[1] for case in BAD_OPTIONS])
def test_bad_options_raise_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        StreamPacker([[1]], **{"budget": 8} | options)


def test_a_state_of_another_policy_is_refused_by_name():
    state = StreamPacker([[1]], 8).state_dict()
    with pytest.raises(ValueError, match="packer with other options: budget=8, now 9"):
        StreamPacker([[1]], 9).load_state_dict(state)


def test_it_pickles():
    """G2."""
    packer = StreamPacker(pipeline(some_documents(20), 2), 12, window=8, seed=(1, 2))
    again = pickle.loads(pickle.dumps(packer))
    assert oracles.rows_of(again) == oracles.rows_of(packer)
    loader = DataLoader(packer, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert oracles.rows_of(loader) == oracles.rows_of(packer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": None}, "window must be an integer of at least 1, got None"),
        *(
            ({"split": "documents", "packs_per_rank": wrong}, "packs_per_rank must be an integer of at least 1")
            for wrong in (0, 1.5, "2", True)
        ),
    ],
)
def test_counts_are_integers(options, message):
    with pytest.raises(ValueError, match=message):
        StreamPacker([[1]], 4, **options)


@pytest.mark.parametrize("epoch", [-1, 1.5, None, "1", True])
def test_an_epoch_is_an_integer(epoch):
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0"):
        StreamPacker([[1]], 4).set_epoch(epoch)


@pytest.mark.parametrize("damage", [None, 5, {}, [], {"options": {}}, {"version": 1}, {"handed": -1}, {"epoch": 0.5}])
def test_what_is_no_state_is_refused(damage):
    packer = StreamPacker([[1]], 4)
    if isinstance(damage, dict) and damage and "options" not in damage:
        damage = packer.state_dict() | damage
    with pytest.raises(
        ValueError, match=r"state must be what a StreamPacker's state_dict|the state's .* must be an int"
    ):
        packer.load_state_dict(damage)


def test_an_unknown_option_is_named_beside_the_known_ones():
    message = (
        r"StreamPacker has no option 'over_long'; those of plan_packs that it takes are strategy, .*, window, seed \("
    )
    with pytest.raises(TypeError, match=message):
        StreamPacker([[1]], 8, over_long="split")

import pickle
import subprocess
import sys

import datasets
import numpy as np
import oracles
import pyarrow as pa
import pytest
import strategies
from datasets.fingerprint import Hasher
from hypothesis import given
from hypothesis import strategies as st

from packdata.planning import plan_packs
from packdata.sources import BatchPacker, pack_dataset

datasets.disable_progress_bars()

IDS = [[number] * (number % 7) for number in range(50)]
DOCUMENTS = datasets.Dataset.from_dict(
    {"input_ids": IDS, "completion_mask": [[place % 2 for place in range(len(row))] for row in IDS]}
)


@given(strategies.token_tables(), st.integers(1, 12), st.sampled_from(["best_fit", "sequential", "concat"]))
def test_each_batch_is_packed_with_every_column_in_step(made, budget, strategy):
    table, columns = made
    packer = BatchPacker(budget, strategy=strategy, overlong="split")
    plan = plan_packs([len(row) for row in columns["input_ids"]], budget, strategy=strategy, overlong="split")
    expected = oracles.packed_rows(columns, plan)
    assert packer(table).to_pylist() == expected
    batch = {name: list(rows) for name, rows in columns.items()}
    packed = packer(batch)
    assert [dict(zip(packed, row, strict=True)) for row in zip(*packed.values(), strict=True)] == expected
    assert batch.keys() <= packed.keys() | {"input_ids"}  # what is folded away must not be merged by map()


def every_way(packer, batch_size):
    """The packed rows, by each kind of map."""
    options = {"batched": True, "batch_size": batch_size}
    stream = DOCUMENTS.to_iterable_dataset(num_shards=1)
    yield DOCUMENTS.map(packer, **options)
    yield DOCUMENTS.with_format("arrow").map(packer, **options).with_format(None)
    yield stream.map(packer, remove_columns=["completion_mask"], **options)
    yield stream.with_format("arrow").map(packer, **options).with_format(None)


@pytest.mark.parametrize("batch_size", [7, 25, 1000])
def test_maps_streams_and_arrow_agree(batch_size):
    """H3: streaming and map-style agree."""
    parts = [DOCUMENTS.select(range(first, min(first + batch_size, 50))) for first in range(0, 50, batch_size)]
    expected = [row for part in parts for row in pack_dataset(part, 12).to_list()]
    for packed in every_way(BatchPacker(12), batch_size):
        assert list(packed) == expected


def test_two_processes_lose_nothing():
    packed = DOCUMENTS.map(BatchPacker(12), batched=True, batch_size=10, num_proc=2)
    assert sorted(token for row in packed["input_ids"] for token in row) == sorted(
        token for row in IDS for token in row
    )


def test_text_is_dropped_or_named():
    """H3."""
    dataset = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2], [3], [4, 5]], "text": ["a", "b", "c"], "weights": [[0.1, 0.2], [0.3], [0.4, 0.5]]}
    )
    with pytest.raises(ValueError, match=r"columns \['text'\] have no value per token"):
        dataset.map(BatchPacker(8), batched=True)
    stream = dataset.to_iterable_dataset()
    with pytest.raises(ValueError, match=r"columns \['text'\] have no value per token"):
        list(stream.map(BatchPacker(8), batched=True))
    packer = BatchPacker(8, drop_columns=["text"])
    packed = dataset.map(packer, batched=True)
    assert packed.to_list() == [
        {"input_ids": [1, 2, 4, 5, 3], "weights": [0.1, 0.2, 0.4, 0.5, 0.3], "seq_lengths": [2, 2, 1]}
    ]
    assert list(stream.map(packer, batched=True, remove_columns=["text"])) == packed.to_list()


CHANGES = [{"budget": 9}, {"eos_token_id": 3}, {"strategy": "sequential"}, {"overlong": "split"}, {"max_documents": 3}]


def test_hash_is_stable_and_tells_options_apart():
    """H5: equal for equal options, before and after use and in another process; another for each change."""
    packer = BatchPacker(8, drop_columns=["b", "a"])
    before = Hasher.hash(packer)
    packer(pa.table({"input_ids": [[1, 2], [3]], "a": ["", ""], "b": ["", ""]}))
    assert Hasher.hash(packer) == before == Hasher.hash(BatchPacker(8, drop_columns=("a", "b")))
    code = """if True:
        from datasets.fingerprint import Hasher
        from packdata.sources import BatchPacker
        print(Hasher.hash(BatchPacker(8, drop_columns=["a", "b"])))
    """
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == before
    numbers = {"align": 2, "max_documents": 3, "bos_token_id": 4, "eos_token_id": 5}
    of_numpy = {name: np.int32(number) for name, number in numbers.items()}
    assert Hasher.hash(BatchPacker(np.int64(8), **of_numpy)) == Hasher.hash(BatchPacker(8, **numbers))
    others = {Hasher.hash(BatchPacker(**{"budget": 8} | change)) for change in CHANGES}
    assert len(others | {Hasher.hash(BatchPacker(8))}) == len(CHANGES) + 1


def test_it_pickles():
    """G2."""
    packer = BatchPacker(8, eos_token_id=3, overlong="split")
    again = pickle.loads(pickle.dumps(packer))
    table = pa.table({"input_ids": [[1, 2], [4] * 20]})
    assert again(table) == packer(table)
    assert repr(again) == repr(packer)


@given(st.integers(0, 9).map(lambda length: [[1] * length, [2] * length]))
def test_markers_are_added(rows):
    packed = BatchPacker(32, bos_token_id=7, eos_token_id=8)({"input_ids": rows})
    assert [token for row in packed["input_ids"] for token in row] == [
        token for row in rows if row for token in [7, *row, 8]
    ]


@pytest.mark.parametrize("overlong", ["truncate", "truncate_left", "drop", "skip"])
def test_what_loses_tokens_is_refused(overlong):
    with pytest.raises(ValueError, match=r"overlong must be 'error' or 'split' in a map, which has no ledger"):
        BatchPacker(8, overlong=overlong)


def test_bad_options_raise_at_once():
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        BatchPacker(0)
    with pytest.raises(ValueError, match="strategy must be one of"):
        BatchPacker(8, strategy="bfd")
    with pytest.raises(ValueError, match="document 1 has 9 tokens, over the budget of 8"):
        BatchPacker(8)({"input_ids": [[1], [2] * 9]})


def test_an_unknown_option_is_named_beside_the_known_ones():
    message = r"BatchPacker has no option 'over_long'; those of plan_packs that it takes are strategy, .*, align \("
    with pytest.raises(TypeError, match=message):
        BatchPacker(8, over_long="split")

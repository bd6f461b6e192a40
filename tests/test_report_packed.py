"""Packed datasets, eager and lazy, under all three reports."""

import time

import datasets
import matplotlib
import numpy as np
import oracles
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import PackingCollator
from packdata.planning import plan_packs
from packdata.report import plot, show, to_html
from packdata.report.facts import numbers_of
from packdata.sources import Documents, PackedDataset, pack_dataset

matplotlib.use("agg")


def documents_of(lengths, **columns):
    ids = [list(range(1, length + 1)) for length in lengths]
    return datasets.Dataset.from_dict({"input_ids": ids, **columns})


@given(st.lists(st.integers(1, 16), min_size=1, max_size=20), st.integers(0, 3))
@settings(max_examples=15)
def test_numbers_of_dataset_plan_and_lazy_twin_agree(lengths, seed):
    plan = plan_packs(lengths, budget=16, seed=seed)
    packed = pack_dataset(documents_of(lengths), budget=16, seed=seed)
    lazy = PackedDataset(Documents(documents_of(lengths)), plan)
    expected = oracles.report_numbers([plan[i].lengths.tolist() for i in range(len(plan))], budget=16)
    for obj in (packed, lazy, plan):
        numbers = numbers_of(obj)
        assert {key: numbers[key] for key in expected} == pytest.approx(expected)
    for obj in (packed, lazy):
        assert numbers_of(obj)["counts.targets"] == sum(lengths) - len(lengths)
    drawn, drawn_lazily = (show(obj).split("\n\npack ")[1] for obj in (packed, lazy))
    assert drawn == drawn_lazily


def test_selected_packs_keep_their_own_lengths_and_the_ledger_says_so():
    packed = pack_dataset(documents_of([8, 5, 3, 7, 1]), budget=8)
    numbers = numbers_of(packed.select([2, 0]))
    assert (numbers["packs"], numbers["tokens"]) == (2, 16)
    assert any("is about 3 packs, but the dataset has 2" in warning for warning in numbers["warnings"])


def test_packs_of_other_people_need_no_ledger():
    packed = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4]], "seq_lengths": [[2, 1], [1]]})
    numbers = numbers_of(packed)
    assert (numbers["budget"], numbers["spans"], numbers["counts.targets"]) == (3, 3, 1)


def test_masks_are_what_is_learnt(tmp_path):
    packed = pack_dataset(documents_of([4, 3], completion_mask=[[0, 0, 1, 1], [0, 0, 0]]), budget=8)
    numbers = numbers_of(packed)
    assert (numbers["counts.targets"], numbers["counts.masked"]) == (2, -3)
    assert "1 of 2 documents have no target: they cost compute and teach nothing." in numbers["warnings"]
    page = to_html(packed, tmp_path / "page.html").read_text()
    assert "<span>1 2</span><mark>3 4</mark>" in page


def test_large_datasets_are_sampled_and_say_so():
    table = pa.table({"input_ids": [np.ones(4096, np.int32)] * 700})
    packed = pack_dataset(datasets.Dataset(table), budget=4096)
    assert "From slots to targets of 488 packs looked at" in show(packed)


def test_an_empty_dataset_shows():
    assert numbers_of(pack_dataset(documents_of([0]), budget=8))["packs"] == 0


def test_a_million_documents_in_seconds_and_kilobytes(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 20, 1_000_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ones(offsets[-1], np.int32)))
    packed = pack_dataset(datasets.Dataset(pa.table({"input_ids": tokens})), budget=4096)
    start = time.process_time()
    path = to_html(packed, tmp_path / "page.html")
    assert time.process_time() - start < 10
    assert path.stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("obj", "error", "words"),
    [
        (documents_of([3]), ValueError, r"not packed: it has no column 'seq_lengths' among \['input_ids'\]"),
        (datasets.DatasetDict(), TypeError, "got DatasetDict"),
    ],
)
def test_what_is_not_packed_is_refused(obj, error, words):
    with pytest.raises(error, match=words):
        show(obj)


@pytest.mark.parametrize("kind", ["plan", "dataset", "lazy", "batch"])
def test_every_object_can_be_plotted(kind):
    lengths = [8, 5, 3, 7, 1]
    plan = plan_packs(lengths, budget=8)
    obj = {
        "plan": lambda: plan,
        "dataset": lambda: pack_dataset(documents_of(lengths), budget=8),
        "lazy": lambda: PackedDataset(Documents(documents_of(lengths)), plan),
        "batch": lambda: PackingCollator(layout="rows", pad_to=8)([{"input_ids": [1] * n} for n in lengths]),
    }[kind]()
    axes = plot(obj)
    drawn = sum(path.get_extents().width for bars in axes.collections[::2] for path in bars.get_paths())
    assert drawn == pytest.approx(8 * numbers_of(obj)["packs"])
    assert plot(obj, axes) is axes
    matplotlib.pyplot.close("all")

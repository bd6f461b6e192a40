import pickle
import subprocess
import sys

import datasets
import numpy as np
import oracles
import pyarrow as pa
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packdata.planning import Pack, plan_packs
from packdata.sources import Documents


def features(documents):
    return [{name: values.tolist() for name, values in feature.items()} for feature in documents]


def columns_to_features(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@given(strategies.token_tables(), st.randoms(use_true_random=False))
def test_documents_are_the_rows_whatever_the_layout(made, random):
    table, columns = made
    documents = Documents(table)
    assert documents.lengths.tolist() == [len(row) for row in columns["input_ids"]]
    assert features(documents) == columns_to_features(columns)
    order = [random.randrange(-len(documents), len(documents)) for _ in range(5 if len(documents) else 0)]
    assert features(documents.__getitems__(order)) == [columns_to_features(columns)[number] for number in order]


@given(strategies.token_tables(), st.randoms(use_true_random=False))
def test_selected_and_shuffled_datasets_are_read_in_their_order(made, random):
    table, columns = made
    if pa.types.is_list_view(table.schema.field(0).type):  # datasets knows no list views
        return
    order = [random.randrange(table.num_rows) for _ in range(6 if table.num_rows else 0)]
    dataset = datasets.Dataset(table).select(order)
    assert features(Documents(dataset)) == [columns_to_features(columns)[number] for number in order]


@given(strategies.token_tables(), st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))
def test_markers_are_added_where_they_are_missing(made, bos, eos):
    table, columns = made
    documents = Documents(table, bos_token_id=bos, eos_token_id=eos)
    expected = oracles.marked(columns, bos=bos, eos=eos)
    assert documents.lengths.tolist() == [len(row) for row in expected["input_ids"]]
    assert features(documents) == columns_to_features(expected)


@given(strategies.token_tables(), st.none() | st.just(0), st.none() | st.just(1), st.integers(1, 5), st.data())
def test_packs_are_spans_joined_with_their_markers(made, bos, eos, budget, data):
    table, columns = made
    documents = Documents(table, bos_token_id=bos, eos_token_id=eos)
    strategy = data.draw(st.sampled_from(["best_fit", "sequential", "concat"]))
    plan = plan_packs(documents.lengths, budget, overlong="split", strategy=strategy)
    expected = oracles.marked(columns, bos=bos, eos=eos)
    for pack, feature in zip(plan, documents.__getitems__(list(plan)), strict=True):
        spans = zip(pack.documents.tolist(), pack.starts.tolist(), pack.lengths.tolist(), strict=True)
        spans = [(document, slice(start, start + length)) for document, start, length in spans]
        for name, rows in expected.items():
            assert feature[name].tolist() == [value for document, part in spans for value in rows[document][part]]
        assert feature["seq_lengths"].tolist() == pack.lengths.tolist()


SAME = {
    "lists": [[1, 2, 3], [4, 5, 6]],
    "tuples": [(1, 2, 3), (4, 5, 6)],
    "arrays of equal length": [np.array([1, 2, 3]), np.array([4, 5, 6])],
    "a 2-D array": np.array([[1, 2, 3], [4, 5, 6]]),
    "dicts": [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}],
    "a dict of lists": {"input_ids": [[1, 2, 3], [4, 5, 6]]},
    "an array of fixed-size lists": pa.table({"input_ids": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64(), 3))}),
    "a record batch": pa.RecordBatch.from_pydict({"input_ids": [[1, 2, 3], [4, 5, 6]]}),
    "a dataset": datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6]]}),
}


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_every_kind_of_source_gives_the_same_documents(source):
    documents = Documents(source)
    assert features(documents) == [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}]
    assert documents.lengths.tolist() == [3, 3]
    assert len(documents) == 2


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64"])
def test_the_integer_type_travels_with_the_tokens(dtype, tmp_path):
    """K3: four tokens written as uint16 must not be read back as one int64."""
    ids = [np.array([1, 2, 3, 4], dtype), np.array([100], dtype)]
    table = pa.table({"input_ids": pa.array(ids)})
    for source in (ids, table, _through_a_file(table, tmp_path / "tokens.arrow")):
        first = Documents(source)[0]["input_ids"]
        assert first.tolist() == [1, 2, 3, 4]
        assert first.dtype == dtype


def _through_a_file(table, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return datasets.Dataset.from_file(str(path))


def test_values_per_document_are_served_when_they_are_named():
    source = {"input_ids": [[1, 2], [3]], "reward": [0.5, -1.0], "text": ["a", "b"]}
    assert Documents(source)[0].keys() == {"input_ids"}
    documents = Documents(source, columns=["reward"])
    assert documents[1]["reward"] == -1.0
    pack = Pack(documents=np.array([1, 0]), starts=np.zeros(2, np.int32), lengths=np.array([1, 2], np.int32))
    assert documents[pack]["reward"].tolist() == [-1.0, 0.5]


NOTHING = {
    "no documents": {"input_ids": []},
    "no documents in a list": [],
    "empty documents": {"input_ids": [[], []]},
    "a dataset of none": datasets.Dataset.from_dict({"input_ids": []}),
    "a dataset of empty ones": datasets.Dataset.from_dict({"input_ids": [[], []]}),
    "a table of no chunks": pa.table({"input_ids": pa.chunked_array([], pa.list_(pa.int32()))}),
}


@pytest.mark.parametrize("source", NOTHING.values(), ids=NOTHING)
def test_nothing_is_fine(source):
    """E5."""
    documents = Documents(source, eos_token_id=2)
    assert documents.lengths.tolist() == [0] * len(documents)
    assert features(documents) == [{"input_ids": []}] * len(documents)


WRONG = [
    ({"input_ids": [[1, 2], [3, None]]}, {}, ValueError, r"'input_ids' has a null in row 1"),
    ({"input_ids": [[1], None, [2]]}, {}, ValueError, r"'input_ids' is null in row 1"),
    (pa.table({"input_ids": pa.chunked_array([[[1]], [[2], [3, None]]])}), {}, ValueError, r"null in row 2"),
    ({"input_ids": [[1.5]]}, {}, ValueError, r"'input_ids' must hold integers, got list<item: double>"),
    ({"input_ids": [["a"]]}, {}, ValueError, r"must hold a list of numbers per row"),
    ({"input_ids": [[[1]]]}, {}, ValueError, r"must hold a list of numbers per row"),
    ({"input_ids": ["a b"]}, {}, ValueError, r"must hold a list of numbers per row, got string"),
    ({"input_ids": [[1, "a"]]}, {}, ValueError, r"'input_ids' must hold a flat list of numbers"),
    ([np.array([1]), np.array([[2]])], {}, ValueError, r"row 1 must be a flat sequence of numbers, got shape \(1, 1\)"),
    ([np.ma.masked_array([1, 2], [False, True])], {}, ValueError, r"row 0 must be a flat .* masked array: fill it"),
    (
        pa.table([pa.array([[1]]), pa.array([[2]])], names=["input_ids", "input_ids"]),
        {},
        ValueError,
        r"columns must have a name each, got \['input_ids', 'input_ids'\]",
    ),
    (
        {"input_ids": [[5], [5, 0]], "attention_mask": [[1], [1, 0]]},
        {"eos_token_id": 2},  # J6: it would stand behind the padding
        ValueError,
        r"attention_mask must be 1 on every token, .* the first is 1, which has 0",
    ),
    (
        {"input_ids": [[5], [5, 0]], "attention_mask": [[1], [1, 0]]},
        {"eos_token_id": 2, "columns": []},
        ValueError,
        r"attention_mask must be 1 on every token, .* the first is 1, which has 0",
    ),
    *(
        (
            {"input_ids": [[1, 2]], "seq_lengths": [[1, 1]]},
            {"columns": columns},
            ValueError,
            "'seq_lengths' says that these rows are packs",  # H6
        )
        for columns in (None, [])
    ),
    ({"ids": [[1]]}, {}, ValueError, r"no column 'input_ids' among \['ids'\]"),
    ({"input_ids": [[1], [2]], "a": [1]}, {}, ValueError, r"one entry per document each, got .*'a': 1"),
    ([{"input_ids": [1]}, {"input_ids": [2], "labels": [2]}], {}, ValueError, r"document 1 has the columns"),
    (
        {"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3, 4]]},
        {},
        ValueError,
        r"'labels' is out of step .*row 1 has 2",
    ),
    ({"input_ids": [[1]]}, {"columns": ["labels"]}, ValueError, r"no column 'labels' among \['input_ids'\]"),
    ([np.array([1], np.uint16)], {"eos_token_id": 65536}, ValueError, r"eos_token_id 65536 does not fit the uint16"),
    ([np.array([1], np.int8)], {"bos_token_id": 128}, ValueError, r"bos_token_id 128 does not fit the int8"),
    ([[1]], {"bos_token_id": -1}, ValueError, r"bos_token_id -1 does not fit"),
    ([[1]], {"columns": "labels"}, ValueError, r"columns must be several names, such as \['labels'\], got 'labels'"),
    ({"input_ids": None}, {}, ValueError, r"'input_ids' must have one entry per document, got NoneType"),
    ("text", {}, TypeError, r"must be a datasets.Dataset, a pyarrow Table, .*, got str"),
    (datasets.DatasetDict(a=SAME["a dataset"]), {}, TypeError, r"several splits \['a'\]: choose one"),
    (SAME["a dataset"].to_iterable_dataset(), {}, TypeError, r"StreamPacker packs streams"),
    (SAME["a dataset"].with_transform(lambda batch: batch), {}, ValueError, r"has a transform, which would be skipped"),
]


@pytest.mark.parametrize(("source", "options", "kind", "message"), WRONG, ids=[case[3] for case in WRONG])
def test_bad_input_is_named(source, options, kind, message):
    with pytest.raises(kind, match=message):
        Documents(source, **options)


def test_document_numbers_and_packs_out_of_range_are_refused():
    documents = Documents([[1, 2], [3]])
    for number in (2, -3):
        with pytest.raises(IndexError, match=f"document {number} of 2"):
            documents[number]
    plan = plan_packs(Documents([[1, 2], [3]], eos_token_id=9).lengths, 8)
    with pytest.raises(ValueError, match=r"wants tokens up to 3 of document 0, which has 2: plan from the .lengths"):
        documents[plan[0]]
    with pytest.raises(IndexError, match="a pack has document 7, but there are 2"):
        documents[Pack(documents=np.array([7]), starts=np.zeros(1, np.int32), lengths=np.ones(1, np.int32))]
    for start, length in [(-1, 2), (0, -1)]:
        pack = Pack(documents=np.array([0]), starts=np.array([start], np.int32), lengths=np.array([length], np.int32))
        with pytest.raises(ValueError, match=f"wants {length} tokens from {start} on of document 0"):
            documents[pack]
    with pytest.raises(ValueError, match="three arrays with an entry per span"):
        documents[Pack(documents=np.array([0, 1]), starts=np.zeros(1, np.int32), lengths=np.ones(2, np.int32))]


class Number:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


@pytest.mark.parametrize("kind", [int, np.int8, np.uint64, torch.tensor, Number])
def test_documents_are_numbered_by_any_kind_of_integer(kind):
    documents = Documents([[1, 2], [], [3]])
    assert features(documents.__getitems__([kind(2), kind(0)])) == [{"input_ids": [3]}, {"input_ids": [1, 2]}]


@pytest.mark.parametrize("number", [2**63, -(2**70), np.uint64(2**63)])
def test_numbers_past_int64_are_out_of_range(number):
    with pytest.raises(IndexError, match=f"document {number} of 1"):
        Documents([[1]])[number]


@pytest.mark.parametrize("mask", [[True, False], np.array([True, False]), torch.tensor([True, False])])
def test_a_mask_does_not_number_documents(mask):
    with pytest.raises(TypeError, match=r"named by their numbers, got .*True"):
        Documents([[1], [2]]).__getitems__(mask)


def test_documents_are_selected_by_numbers_that_are_there():
    documents = Documents([[5, 6], [], [8]])
    assert features(documents.select(np.array([2, 0], np.int8))) == [{"input_ids": [8]}, {"input_ids": [5, 6]}]
    for number in (-1, 3):
        with pytest.raises(IndexError, match=f"document {number} of 3"):
            documents.select(np.array([number]))
    with pytest.raises(ValueError, match="must be a 1-D array of integers, got bool"):
        documents.select(np.array([True, False, True]))


def test_an_empty_span_has_no_markers():
    empty = Pack(documents=np.array([0, 0]), starts=np.zeros(2, np.int32), lengths=np.array([0, 2], np.int32))
    assert Documents([[5, 6]], bos_token_id=1)[empty]["input_ids"].tolist() == [1, 5]


@pytest.mark.parametrize("source", [*SAME.values(), {"input_ids": [[1]], "mask": [[True]]}], ids=[*SAME, "booleans"])
def test_what_is_served_cannot_be_written_to(source):
    for feature in Documents(source):
        for values in feature.values():
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 0


def test_a_format_does_not_hide_labels():
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[-100, 2]]})
    documents = Documents(dataset)
    dataset.set_format("torch", columns=["input_ids"])
    for same in (documents, documents.select(np.array([0])), pickle.loads(pickle.dumps(documents)), Documents(dataset)):
        assert features(same) == [{"input_ids": [1, 2], "labels": [-100, 2]}]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint64"])
def test_labels_of_any_integer_type_take_markers(dtype):
    ids = [np.array([1, 2, 3], dtype), np.array([4], dtype)]
    documents = Documents({"input_ids": ids, "labels": ids}, bos_token_id=8, eos_token_id=9)
    assert [feature["labels"].tolist() for feature in documents] == [[-100, 1, 2, 3, 9], [-100, 4, 9]]


def test_a_dataset_on_disk_pickles_as_its_path(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [list(range(1000))] * 500}).save_to_disk(tmp_path / "saved")
    documents = Documents(datasets.load_from_disk(tmp_path / "saved"), eos_token_id=7)
    assert documents.lengths.sum() == 500 * 1001
    pickled = pickle.dumps(documents)
    assert len(pickled) < 10_000
    assert features([pickle.loads(pickled)[3]]) == features([documents[3]])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_the_same(context, tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[n] * (n % 5) for n in range(40)]}).save_to_disk(tmp_path / "saved")
    documents = Documents(datasets.load_from_disk(tmp_path / "saved").shuffle(seed=1))
    batches = [[0, 1, 2], list(plan_packs(documents.lengths, 16))[:2], []]
    loader = DataLoader(
        documents, batch_sampler=batches, collate_fn=list, num_workers=2, multiprocessing_context=context
    )
    assert [features(batch) for batch in loader] == [features(documents.__getitems__(batch)) for batch in batches]


def test_reading_documents_loads_no_torch():
    code = (
        "import sys; from packdata.sources import Documents, pack_table, pack_dataset; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_past_two_billion_tokens_offsets_do_not_overflow():
    """H7: chunks that share one buffer make 2.2 billion tokens of 88 MB."""
    values = pa.array(np.arange(22_000_000, dtype=np.int32))
    offsets = pa.array(np.arange(0, 22_000_001, 1_000_000, dtype=np.int32))
    chunk = pa.ListArray.from_arrays(offsets, values)
    documents = Documents(pa.table({"input_ids": pa.chunked_array([chunk] * 100)}))
    assert documents.lengths.sum(dtype=np.int64) == 2_200_000_000
    plan = plan_packs(documents.lengths, 10_000_000)
    plan.check(documents.lengths)
    assert plan.ledger.tokens_kept == 2_200_000_000
    last = documents[len(documents) - 1]["input_ids"]
    assert (last[0], last[-1]) == (21_000_000, 21_999_999)
    assert documents[plan[len(plan) - 1]]["input_ids"].shape == (10_000_000,)

import subprocess
import sys

import numpy as np
import oracles
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.layout import (
    cu_seqlens_from_lengths,
    document_ids_from_lengths,
    lengths_from_cu_seqlens,
    lengths_from_eos,
    lengths_from_position_ids,
    lengths_from_segment_ids,
    position_ids_from_lengths,
)

WRITERS = [cu_seqlens_from_lengths, document_ids_from_lengths, position_ids_from_lengths]
KINDS = [list, tuple, np.array, torch.tensor]


@given(strategies.document_lengths())
def test_each_way_to_write_lengths_matches_counting(lengths):
    assert cu_seqlens_from_lengths(lengths).tolist() == [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    assert document_ids_from_lengths(lengths).tolist() == [i for i, length in enumerate(lengths) for _ in range(length)]
    assert position_ids_from_lengths(lengths).tolist() == [place for length in lengths for place in range(length)]


@given(strategies.document_lengths(), st.integers(0, 3), st.sampled_from(["repeat", "minus one"]))
def test_lengths_come_back_from_what_was_written(lengths, tail, kind):
    filled = [length for length in lengths if length]
    offsets = cu_seqlens_from_lengths(lengths)
    padded = np.append(offsets, np.full(tail, offsets[-1] if kind == "repeat" else -1))
    assert lengths_from_cu_seqlens(padded).tolist() == filled
    assert lengths_from_position_ids(position_ids_from_lengths(lengths)).tolist() == filled
    assert (
        lengths_from_segment_ids(np.append(document_ids_from_lengths(lengths) + 1, np.zeros(tail, int))).tolist()
        == filled
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=8))
def test_positions_that_start_anywhere_are_read(pieces):
    expected = [list(range(start, start + length)) for start, length in pieces]
    merged = [expected[0]]
    for piece in expected[1:]:
        if piece[0] == merged[-1][-1] + 1:  # a continuation looks like one document
            merged[-1] = merged[-1] + piece
        else:
            merged.append(piece)
    flat = [position for piece in expected for position in piece]
    assert lengths_from_position_ids(flat).tolist() == [len(piece) for piece in merged]


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4))
def test_rows_of_segment_ids_never_join(rows):
    expected = []
    for row in rows:
        lengths = oracles.lengths_of_runs(row)
        heads = [row[sum(lengths[:index])] for index in range(len(lengths))]
        expected += [length for length, head in zip(lengths, heads, strict=True) if head != 0]
    assert lengths_from_segment_ids(rows).tolist() == expected


MARKERS = st.sets(st.integers(0, 3), min_size=1)


@given(st.lists(st.integers(0, 5), max_size=20), MARKERS, st.none() | MARKERS)
def test_splitting_at_markers_matches_the_oracle(ids, eos, bos):  # N3, of several ids each
    expected = oracles.lengths_by_markers(ids, eos=eos, bos=bos or ())
    assert lengths_from_eos(ids, eos, bos_token_id=bos).tolist() == expected


@given(st.lists(st.lists(st.integers(3, 9), max_size=4), max_size=5), st.booleans())
def test_documents_in_shared_markers_come_back(texts, last_is_open):  # N3, any documents
    documents = [[2, *text, 2] for text in texts]
    if last_is_open and documents:
        documents[-1] = documents[-1][:-1]
    flat = [token for document in documents for token in document]
    assert lengths_from_eos(flat, 2, bos_token_id=2).tolist() == [len(document) for document in documents]


CASES = {
    "A9 a": (lengths_from_eos, ([5, 6, 2, 7, 8, 2], 2), [3, 3]),
    "A9 b": (lengths_from_eos, ([5, 2, 2, 6], 2), [2, 1, 1]),
    "A9 c": (lengths_from_eos, ([5, 2, 6], 2), [2, 1]),
    "A9 no marker": (lengths_from_eos, ([5, 6], 2), [2]),
    "A9 rows": (lengths_from_eos, ([[5, 2, 6], [7, 7, 2]], 2), [2, 1, 3]),
    "A9 several markers": (lengths_from_eos, ([5, 2, 6, 3, 7], [2, 3]), [2, 2, 1]),
    "B3 a": (lengths_from_position_ids, ([0, 1, 2, 0, 0, 0, 1],), [3, 1, 1, 2]),
    "B3 b": (lengths_from_position_ids, ([0, 1, 2, 0],), [3, 1]),
    "B4": (lengths_from_position_ids, ([4, 5, 6, 0, 1],), [3, 2]),
    "B4 rows of shards": (lengths_from_position_ids, ([[7, 8, 0], [1, 2, 3]],), [2, 1, 3]),
    "B4 nothing": (lengths_from_position_ids, ([],), []),
    "C3 repeats": (lengths_from_cu_seqlens, ([0, 4, 6, 6, 6, 6],), [4, 2]),
    "C3 repeats, many": (lengths_from_cu_seqlens, ([0, 2, 4, 6, 6, 6],), [2, 2, 2]),
    "C3 minus ones": (lengths_from_cu_seqlens, ([0, 4, 6, -1, -1],), [4, 2]),
    "C3 nothing": (lengths_from_cu_seqlens, ([0, 0, 0],), []),
    "C5": (lengths_from_segment_ids, ([[1, 1, 2, 0], [1, 2, 2, 2]],), [2, 1, 1, 3]),
    "I8": (lengths_from_segment_ids, ([1, 1, 2, 2, 0],), [2, 2]),
    "I8 padding left": (lengths_from_segment_ids, ([0, 0, 1, 2, 2],), [1, 2]),
    "I8 all padding": (lengths_from_segment_ids, ([0, 0],), []),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_readers_give_the_lengths_of_the_handed_case(name, kind):
    reader, (values, *rest), lengths = CASES[name]
    if kind is tuple and name == "B4 nothing":
        values = ()
    given_values = kind(values) if values else torch.zeros(0, dtype=torch.int64) if kind is torch.tensor else values
    result = reader(given_values, *rest)
    assert isinstance(result, torch.Tensor if kind is torch.tensor else np.ndarray)
    assert result.tolist() == lengths
    assert str(result.dtype).removeprefix("torch.") == "int64"


def test_padding_may_be_minus_one():
    assert lengths_from_segment_ids([0, 0, 1, -1], padding=-1).tolist() == [2, 1]


def test_a_start_marker_begins_a_document_without_an_end_before_it():
    assert lengths_from_eos([1, 5, 6, 1, 7, 2, 1], 2, bos_token_id=1).tolist() == [3, 3, 1]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.uint8, np.int64])
def test_writers_return_the_kind_they_were_given_and_never_overflow(writer, dtype):
    lengths = np.array([200, 100, 0, 255]).astype(dtype)
    expected = writer([200, 100, 0, 255])
    np.testing.assert_array_equal(writer(lengths), expected)
    tensor = writer(torch.from_numpy(lengths.astype(np.int64)))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), expected)
    assert tensor.dtype == (torch.int32 if writer is cu_seqlens_from_lengths else torch.int64)


def test_offsets_are_what_varlen_kernels_demand():  # C1
    offsets = cu_seqlens_from_lengths(torch.tensor([4, 1, 3]))
    assert offsets.tolist() == [0, 4, 5, 8]
    assert offsets.dtype == torch.int32
    assert offsets.is_contiguous()


WRONG = [
    (cu_seqlens_from_lengths, [2**31 - 1, 1], "int32 and holds up to"),
    (cu_seqlens_from_lengths, [1.5], "lengths must be integers, got dtype float64"),
    (document_ids_from_lengths, [3, -1], "got -1 for document 1"),
    (position_ids_from_lengths, [[1], [2]], "lengths must be 1-D"),
    (lengths_from_cu_seqlens, [3, 5], r"cu_seqlens must start at 0, got \[3\]"),
    (lengths_from_cu_seqlens, [], "must start at 0, got no offset"),
    (lengths_from_cu_seqlens, [-1, -1], "must start at 0, got no offset"),
    (lengths_from_cu_seqlens, [0, 4, 2], "must not fall, got 2 after 4 at index 2"),
    (lengths_from_cu_seqlens, [0, -1, 4], "must not fall, got -1 after 0 at index 1"),
    (lengths_from_cu_seqlens, [[0, 4], [0, 2]], "read stacked rows one at a time"),
    (lengths_from_segment_ids, [0, 0, -1], "pass padding=-1"),
    (lengths_from_segment_ids, [True, False], "must be integers, got dtype bool"),
    (lengths_from_position_ids, [0.0, 1.0], "position_ids must be integers, got dtype float64"),
    (lengths_from_position_ids, np.zeros((1, 1, 3), int), r"shape \(tokens,\) or \(rows, tokens\), got \(1, 1, 3\)"),
    (lengths_from_eos, [[1], [2, 3]], "input_ids must be an array of integers"),
    *(
        (writer, lengths, r"lengths must add up to less than 2\*\*62, .* for document 0")
        for writer in WRITERS
        for lengths in ([2**62] * 4, [2**63], np.array([2**64 - 1, 2], np.uint64))
    ),
]


@pytest.mark.parametrize(("function", "values", "message"), WRONG)
def test_wrong_input_is_named(function, values, message):
    with pytest.raises(ValueError, match=message):
        function(values, 2) if function is lengths_from_eos else function(values)


@pytest.mark.parametrize("marker", [None, "2", 2.0, True, [], [None], -1, {2: 1}, iter([2])])
def test_what_is_no_marker_is_refused_rather_than_never_found(marker):
    with pytest.raises(ValueError, match="eos_token_id must be a token id or several of them, got"):
        lengths_from_eos([5, 2, 6], marker)
    if marker is not None:
        with pytest.raises(ValueError, match="bos_token_id must be a token id"):
            lengths_from_eos([5, 2, 6], 2, bos_token_id=marker)


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, np.array, torch.tensor])
def test_several_end_markers_may_come_in_any_kind_of_collection(kind):
    assert lengths_from_eos([5, 2, 6, 3, 7], kind([2, 3])).tolist() == [2, 2, 1]


@pytest.mark.parametrize("padding", [None, "0", 0.5, True, [0]])
def test_the_id_of_padding_is_an_integer(padding):
    with pytest.raises(ValueError, match="padding must be an integer, the id of padding, got"):
        lengths_from_segment_ids([1, 1, 2, 0], padding=padding)


def test_a_tensor_on_a_device_is_refused_rather_than_waited_for():
    with pytest.raises(ValueError, match="position_ids must be on the CPU, got a tensor on meta"):
        lengths_from_position_ids(torch.zeros(3, dtype=torch.int64, device="meta"))


def test_layout_does_not_load_torch():
    code = "import sys, packdata.layout as l; l.position_ids_from_lengths([2]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

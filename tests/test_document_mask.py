"""The dense mask, the flex predicate and the intervals say what the brute-force predicate says."""

import hypothesis.strategies as st
import numpy as np
import oracles
import pytest
import strategies
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given

from packdata import document_block_mask, document_mask, document_mask_mod
from packdata.attention import key_intervals
from packdata.batches import PackingCollator
from packdata.layout import cu_seqlens_from_lengths, lengths_from_segment_ids


def evaluate(mask_mod, rows, slots):
    """Ask a flex predicate about every pair."""
    row, query, key = torch.meshgrid(torch.arange(rows), torch.arange(slots), torch.arange(slots), indexing="ij")
    return mask_mod(row, torch.zeros_like(row), query, key).unsqueeze(1)


@given(st.data())
def test_every_form_equals_the_brute_force_predicate(data):
    cu_seqlens, rows = data.draw(strategies.segmented_rows())
    kind = data.draw(strategies.mask_kinds(cu_seqlens))
    slots = cu_seqlens[-1] // rows
    expected = torch.tensor(oracles.document_mask(cu_seqlens, rows=rows, **kind)).view(rows, 1, slots, slots)
    mask = document_mask(cu_seqlens, rows=rows, **kind)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected)
    assert torch.equal(evaluate(document_mask_mod(cu_seqlens, rows=rows, **kind), rows, slots), expected)
    assert mask.diagonal(dim1=-2, dim2=-1).all(), "every query sees at least itself"


@given(st.data())
def test_intervals_never_move_backwards(data):
    cu_seqlens, rows = data.draw(strategies.segmented_rows())
    intervals = key_intervals(cu_seqlens, rows=rows, **data.draw(strategies.mask_kinds(cu_seqlens)))
    assert (intervals.first.diff() >= 0).all()
    assert (intervals.end.diff() >= 0).all()


@pytest.mark.parametrize(
    ("case", "lengths", "rows"),
    [
        ("C8", [2, 2], ["1000", "1100", "0010", "0011"]),
        ("I1", [2, 3], ["10000", "11000", "00100", "00110", "00111"]),
        ("one document", [3], ["100", "110", "111"]),
        ("documents of one token", [1, 1, 1], ["100", "010", "001"]),
    ],
)
def test_masks_of_known_lengths(case, lengths, rows):
    mask = document_mask(cu_seqlens_from_lengths(lengths))[0, 0]
    assert ["".join("01"[seen] for seen in row) for row in mask.int().tolist()] == rows, case


def test_a_mask_of_ones_beside_the_batch_changes_nothing():
    # C8: an innocent all-ones attention_mask in the features must not switch the document mask off.
    features = [{"input_ids": [1, 2], "attention_mask": [1, 1]}, {"input_ids": [3, 4], "attention_mask": [1, 1]}]
    batch = PackingCollator()(features)
    assert "attention_mask" not in batch
    mask = document_mask(batch.cu_seqlens)[0, 0]
    assert int(mask.sum()) == 6
    assert not mask[2, 1]
    assert not mask[3, 1]


@pytest.mark.parametrize("causal", [True, False])
def test_padding_never_meets_a_document(causal):
    # I3: padding is no document 0, and its segment is its own.
    batch = PackingCollator(pad_to=4)([{"input_ids": [7, 8]}])
    assert batch.document_ids.tolist() == [[0, 0, -1, -1]]
    mask = document_mask(batch.cu_seqlens, causal=causal)[0, 0]
    assert not mask[2:, :2].any()
    assert not mask[:2, 2:].any()


def test_segment_ids_of_other_frameworks_keep_their_documents():
    # I8: 1, 1, 2, 2, 0 are two documents and padding, neither one of four tokens nor one of two.
    lengths = lengths_from_segment_ids([1, 1, 2, 2, 0])
    assert list(lengths) == [2, 2]
    mask = document_mask([0, 2, 4, 5])[0, 0]
    assert mask.sum(1).tolist() == [1, 2, 1, 2, 1]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.booleans(), st.randoms())
def test_documents_attend_as_if_alone(lengths, causal, random):
    # I1: bit-equal when another document changes; equal to the document by itself.
    generator = torch.Generator().manual_seed(random.randrange(2**32))
    query, key, value = torch.randn(3, 1, 2, sum(lengths), 4, generator=generator)
    mask = document_mask(cu_seqlens_from_lengths(lengths), causal=causal)
    packed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    changed = [tensor.clone() for tensor in (query, key, value)]
    for tensor in changed:
        tensor[:, :, : lengths[0]] += 1
    others = F.scaled_dot_product_attention(*changed, attn_mask=mask)[:, :, lengths[0] :]
    assert torch.equal(others, packed[:, :, lengths[0] :])
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value, packed)), strict=True)
    for *alone, together in parts:
        torch.testing.assert_close(
            F.scaled_dot_product_attention(*alone, is_causal=causal), together, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "convert", [list, np.array, torch.tensor, lambda offsets: torch.tensor(offsets, dtype=torch.int32)]
)
def test_boundaries_may_be_any_integers(convert):
    assert torch.equal(document_mask(convert([0, 2, 5])), document_mask([0, 2, 5]))


def test_a_compiled_consumer_builds_its_mask_in_one_graph_wherever_boundaries_lie():
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters["stats"]
    build = torch.compile(lambda cu_seqlens: document_mask(cu_seqlens, slots=8), fullgraph=True, backend="eager")
    build(torch.tensor([0, 8, 8, 8]))
    graphs = counters["unique_graphs"]
    for cu_seqlens in ([0, 2, 5, 8], [0, 1, 8, 8], [0, 3, 4, 8]):
        assert torch.equal(build(torch.tensor(cu_seqlens)), document_mask(cu_seqlens))
    assert counters["unique_graphs"] == graphs


def test_a_mask_of_nothing_is_empty():
    assert document_mask([0]).shape == (1, 1, 0, 0)
    assert document_block_mask([0]).shape == (1, 1, 0, 0)


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**40, 2**64], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_wider_than_the_rows_hides_nothing(window, causal):
    cu_seqlens = [0, 2, 5, 8]
    mask = document_mask(cu_seqlens, causal=causal, window=window)
    assert torch.equal(mask, document_mask(cu_seqlens, causal=causal))
    tables = document_block_mask(cu_seqlens, causal=causal, window=window, block_size=2).to_dense()
    assert torch.equal(tables, document_block_mask(cu_seqlens, causal=causal, block_size=2).to_dense())


@pytest.mark.parametrize("form", [document_mask, document_mask_mod, document_block_mask])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seqlens": [0, 4, 2, 5]}, r"must not decrease, got 4 then 2 at segment 1"),
        ({"cu_seqlens": [0, 2, 5, -1, -1]}, r"must not decrease, got 5 then -1 .* repeat the last offset"),
        ({"cu_seqlens": [1, 5]}, r"must start at 0, got 1"),
        ({"cu_seqlens": [2, 3], "rows": 3}, r"must start at 0, got 2"),
        ({"cu_seqlens": [0, 2, 5], "slots": 6}, r"must end at rows \* slots = 1 \* 6, got 5"),
        ({"cu_seqlens": [0, 2, 5], "rows": 2}, r"must end at a multiple of rows=2, got 5"),
        ({"cu_seqlens": [0, 3, 8], "rows": 2}, r"boundary at the end of each row, got none at 4 \(row 0\)"),
        ({"cu_seqlens": []}, r"cu_seqlens must be"),
        ({"cu_seqlens": {"cu_seqlens": [0, 2]}}, r"cu_seqlens must be boundaries, got a dict: give batch.cu_seqlens"),
        ({"cu_seqlens": [[0, 2]]}, r"must be 1-D .* got shape \(1, 2\)"),
        ({"cu_seqlens": [0.0, 2.0]}, r"must be integers, got dtype torch.float32"),
        ({"cu_seqlens": [0, 2**32 + 2]}, r"must fit int32, up to 2147483647 slots, got 4294967298"),
        ({"cu_seqlens": [0, 2], "rows": 0}, r"rows must be an integer of at least 1, got 0"),
        ({"cu_seqlens": [0, 2], "window": 0}, r"window must be None or an integer of at least 1, got 0"),
        ({"cu_seqlens": [0, 2], "window": -3}, r"window must be None or an integer of at least 1, got -3"),
        ({"cu_seqlens": [0, 2], "window": 1.5}, r"window must be None or an integer of at least 1, got 1.5"),
        ({"cu_seqlens": [0, 2, 5], "prefix_lengths": [1, 4]}, r"got 4 for segment 1 of 3 slots"),
        ({"cu_seqlens": [0, 2, 5], "prefix_lengths": [-1, 0]}, r"got -1 for segment 0 of 2 slots"),
        ({"cu_seqlens": [0, 2, 5], "prefix_lengths": [1]}, r"one entry for each of the 2 segments .* got shape \(1,\)"),
        ({"cu_seqlens": [0, 2], "prefix_lengths": [0.5]}, r"prefix_lengths must be integers"),
        ({"cu_seqlens": [0, 2], "prefix_lengths": [1], "causal": False}, r"prefix_lengths .* causal=False"),
        ({"cu_seqlens": [0, 2], "prefix_lengths": [1], "window": 2}, r"exclude each other"),
    ],
)
def test_bad_boundaries_and_options_are_named(form, arguments, message):
    with pytest.raises(ValueError, match=message):
        form(**arguments)

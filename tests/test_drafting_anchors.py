"""Where slots stand in their documents, and which of them become anchors."""

import oracles
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.drafting import document_remaining, select_anchors
from packdata.drafting.slots import offsets_from_ids, offsets_from_remaining


def as_row(values):
    return torch.tensor([values], dtype=torch.int64)


def remaining_of(stream):
    return document_remaining(torch.tensor(stream["cu_seqlens"], dtype=torch.int32), as_row(stream["document_ids"]))


def draw_anchors(stream, **options):
    return select_anchors(as_row(stream["labels"]), remaining_of(stream), **options)


def rearranged(stream, order, padding):
    """The same documents in another order and with other padding, and the document key of each slot."""
    slots = [[slot for slot, owner in enumerate(stream["document_ids"]) if owner == document] for document in order]
    taken = [slot for document in slots for slot in document]
    document_ids = [number for number, document in enumerate(slots) for _ in document] + [-1] * padding
    ends = [0]
    for document in slots:
        ends.append(ends[-1] + len(document))
    return {
        "document_ids": document_ids,
        "labels": [stream["labels"][slot] for slot in taken] + [-100] * padding,
        "cu_seqlens": [*ends, len(document_ids)],
        "keys": [stream["document_ids"][slot] for slot in taken] + [-1] * padding,
        "tokens": taken + [None] * padding,
    }


@given(strategies.draft_streams())
def test_remaining_tokens_are_those_of_the_own_document(stream):
    remaining = remaining_of(stream)
    assert remaining.dtype == torch.int64
    assert remaining.tolist() == [oracles.document_remaining(stream["document_ids"])]


@given(strategies.draft_streams())
def test_both_ways_to_number_a_documents_slots_agree(stream):
    ids = as_row(stream["document_ids"])
    by_remaining, by_ids = offsets_from_remaining(remaining_of(stream)[0]), offsets_from_ids(ids)[0]
    assert torch.equal(by_remaining[ids[0] >= 0], by_ids[ids[0] >= 0])


def test_boundaries_alone_tell_documents_of_one_id_apart():
    remaining = document_remaining(torch.tensor([0, 2, 5, 5]), as_row([7, 7, 7, 7, 7]))
    assert remaining.tolist() == [[1, 0, 2, 1, 0]]


def test_rows_of_a_padded_batch_are_counted_row_by_row():
    remaining = document_remaining(torch.tensor([0, 2, 3, 6]), torch.tensor([[0, 0, -1], [1, 1, 1]]))
    assert remaining.tolist() == [[1, 0, -1], [2, 1, 0]]


@given(
    strategies.draft_streams(),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(["truncate", "exclude"]),
)
def test_anchors_are_candidates_ascending_unique_and_as_many_as_there_can_be(stream, count, block, first, tail):
    options = {"block_size": block, "first_target": first, "tail": tail}
    anchors, valid = draw_anchors(stream, num_anchors=count, **options)
    candidates = oracles.anchor_candidates(stream["document_ids"], stream["labels"], **options)
    assert (anchors.shape, anchors.dtype, valid.shape, valid.dtype) == ((count,), torch.int64, (count,), torch.bool)
    expected = min(count, len(candidates))
    assert valid.tolist() == [True] * expected + [False] * (count - expected)
    chosen = anchors[valid].tolist()
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(candidates)
    assert not anchors[~valid].any()


@given(strategies.draft_streams(), st.integers(1, 12), st.integers(0, 2**63 - 1), st.data())
def test_neither_padding_nor_the_order_of_documents_changes_which_tokens_are_drawn(stream, count, key, data):
    documents = data.draw(st.permutations(range(len(stream["lengths"]))))
    other = rearranged(stream, documents, data.draw(st.integers(1, 40)))
    options = {"num_anchors": count, "block_size": 3, "key": key}
    anchors, valid = draw_anchors(stream, document_keys=as_row(stream["document_ids"]), **options)
    moved, moved_valid = draw_anchors(other, document_keys=as_row(other["keys"]), **options)
    assert torch.equal(valid, moved_valid)
    assert sorted(other["tokens"][slot] for slot in moved[valid].tolist()) == anchors[valid].tolist()


@given(strategies.draft_streams(), st.integers(-(2**63), 2**63 - 1))
def test_more_anchors_only_add_to_the_draw_and_a_tensor_key_is_the_same_key(stream, key):
    few, few_valid = draw_anchors(stream, num_anchors=3, block_size=2, key=key)
    many, many_valid = draw_anchors(stream, num_anchors=9, block_size=2, key=torch.tensor(key))
    assert set(few[few_valid].tolist()) <= set(many[many_valid].tolist())


@given(strategies.draft_streams())
def test_the_defaults_for_document_keys_agree(stream):
    ids = as_row(stream["document_ids"])
    by_ids = draw_anchors(stream, num_anchors=4, block_size=2, document_ids=ids)
    by_keys = draw_anchors(stream, num_anchors=4, block_size=2, document_ids=ids * 0, document_keys=ids)
    assert all(torch.equal(a, b) for a, b in zip(by_ids, by_keys, strict=True))


def test_every_candidate_is_drawn_equally_often():
    labels, remaining = as_row([-100] + [1] * 9), as_row(range(9, -1, -1))
    drawn = torch.zeros(10)
    for key in range(1500):
        anchors, _ = select_anchors(labels, remaining, num_anchors=2, block_size=4, key=key)
        drawn[anchors] += 1
    expected = 1500 * 2 / 8
    assert drawn[[0, 9]].tolist() == [0, 0]
    chi_square = ((drawn[1:9] - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 0.1 % of uniform draws of 7 degrees of freedom lie above


def test_neighbouring_keys_and_documents_draw_independently():
    labels, remaining = as_row([-100] + [1] * 9), as_row(range(9, -1, -1))
    pairs = set()
    for key in range(200):
        for document in range(2):
            ids = torch.full((1, 10), document)
            pairs.add(
                (
                    key,
                    *select_anchors(labels, remaining, num_anchors=2, block_size=4, key=key, document_keys=ids)[
                        0
                    ].tolist(),
                )
            )
    assert 360 < len(pairs) < 400  # 28 pairs of slots: one document in 28 draws what the other drew


def test_no_candidates_give_no_anchor():
    anchors, valid = select_anchors(as_row([-100] * 5), as_row([4, 3, 2, 1, 0]), num_anchors=3, block_size=2)
    assert anchors.tolist() == [0, 0, 0]
    assert not valid.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_anchors": 0}, r"num_anchors must be an integer of at least 1, got 0"),
        ({"block_size": 0}, r"block_size must be an integer of at least 1, got 0"),
        ({"first_target": 0}, r"first_target must be an integer of at least 1, got 0"),
        ({"block_size": 1.5}, r"block_size must be an integer of at least 1, got 1.5"),
        ({"tail": "drop"}, r'tail must be "truncate" or "exclude", got \'drop\''),
        ({"document_keys": as_row([0, 0])}, r"one stream of shape \(1, T\).*'document_keys': \(1, 2\)"),
        ({"key": 2**63}, r"key must fit into 64 bits"),
        ({"key": 0.5}, r"key must be an int or a 0-d integer tensor, got 0.5"),
        ({"key": torch.tensor(0.5)}, r"key must be .* got torch.float32 of shape \(\)"),
        ({"key": as_row([1, 2, 3])}, r"key must be .* got torch.int64 of shape \(1, 3\)"),
    ],
)
def test_a_wrong_option_is_refused(change, message):
    options = {"num_anchors": 3, "block_size": 2} | change
    with pytest.raises(ValueError, match=message):
        select_anchors(as_row([-100, 1, 1]), as_row([2, 1, 0]), **options)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 4)])
def test_a_tensor_that_is_no_stream_is_refused(shape):
    with pytest.raises(ValueError, match=r"one stream of shape \(1, T\) is needed"):
        select_anchors(torch.zeros(shape).long(), as_row([2, 1, 0]), num_anchors=1, block_size=1)

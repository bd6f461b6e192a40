"""What draft slots predict: the right token of the right document, at the right weight."""

import oracles
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.drafting import DraftTargets, document_remaining, draft_loss, draft_targets, select_anchors, targets_ahead

HIDDEN, VOCABULARY = 5, 7


def as_row(values):
    return torch.tensor([values], dtype=torch.int64)


def remaining_of(stream):
    return document_remaining(torch.tensor(stream["cu_seqlens"]), as_row(stream["document_ids"]))


def targets_of(stream, anchors, anchor_valid, **options):
    labels, positions = as_row(stream["labels"]), as_row(stream["position_ids"])
    return draft_targets(labels, remaining_of(stream), positions, anchors, anchor_valid, **options)


def any_anchors(stream, count, key):
    return select_anchors(as_row(stream["labels"]), remaining_of(stream), num_anchors=count, block_size=1, key=key)


@given(
    strategies.draft_streams(),
    st.integers(1, 8),
    st.integers(1, 6),
    st.booleans(),
    st.none() | st.floats(0.5, 20),
    st.integers(0, 9),
)
def test_every_weighted_label_is_a_trained_token_ahead_in_the_anchors_document(stream, count, block, ahead, decay, key):
    anchors, valid = any_anchors(stream, count, key)
    options = {"block_size": block, "sample_from_anchor": ahead, "decay": decay}
    found = targets_of(stream, anchors, valid, **options)
    assert (found.label_index.dtype, found.label_weight.dtype) == (torch.int64, torch.float32)
    assert found.label_index.shape == found.label_weight.shape == (count, block)
    assert found.label_index.min() >= 0
    assert found.label_index.max() < len(stream["labels"])
    expected = oracles.draft_labels(
        stream["document_ids"], stream["labels"], anchors=anchors.tolist(), anchor_valid=valid.tolist(), **options
    )
    weighted = [tuple(place) for place in found.label_weight.nonzero().tolist()]
    assert weighted == sorted(expected)
    for place, (slot, weight) in expected.items():
        assert found.label_index[place] == slot
        assert found.label_weight[place] == pytest.approx(weight, rel=1e-6)


@given(strategies.draft_streams(), st.integers(1, 8), st.integers(1, 6))
def test_draft_slots_stand_at_their_anchors_position_and_after(stream, count, block):
    anchors, valid = any_anchors(stream, count, key=0)
    found = targets_of(stream, anchors, valid, block_size=block).slot_positions
    expected = [stream["position_ids"][anchor] + place for anchor in anchors.tolist() for place in range(block)]
    assert (found.dtype, found.tolist()) == (torch.int64, expected)


@given(strategies.draft_streams(), st.integers(1, 15))
def test_targets_ahead_never_cross_a_documents_end(stream, steps):
    found = targets_ahead(as_row(stream["labels"]), remaining_of(stream), steps)
    document_ids, labels = stream["document_ids"], stream["labels"]
    expected = [
        [
            labels[slot + ahead]
            if document >= 0 and slot + ahead < len(labels) and document_ids[slot + ahead] == document
            else -100
            for slot, document in enumerate(document_ids)
        ]
        for ahead in range(1, steps + 1)
    ]
    assert (found.dtype, found[:, 0].tolist()) == (torch.int64, expected)


@given(strategies.draft_streams(), st.integers(1, 6), st.integers(2, 5), st.none() | st.floats(1, 9))
def test_the_loss_is_the_weighted_sum_over_the_predictions(stream, count, block, decay):
    anchors, valid = any_anchors(stream, count, key=1)
    targets = targets_of(stream, anchors, valid, block_size=block, decay=decay)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, count * block, HIDDEN, dtype=torch.float64, generator=generator)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, generator=generator)
    input_ids = torch.randint(VOCABULARY, (1, len(stream["labels"])), generator=generator)
    loss, chunked = (
        draft_loss(hidden.requires_grad_(), weight, targets, input_ids, max_logits_bytes=room) for room in (2**20, 3)
    )
    gradients = [torch.autograd.grad(some.total, hidden)[0] for some in (loss, chunked)]
    assert chunked.total.item() == pytest.approx(loss.total.item(), rel=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    logs = (hidden[0] @ weight.T).log_softmax(-1).view(count, block, VOCABULARY)
    expected = oracles.draft_labels(
        stream["document_ids"],
        stream["labels"],
        anchors=anchors.tolist(),
        anchor_valid=valid.tolist(),
        block_size=block,
        decay=decay,
    )
    total = sum(-share * logs[place][input_ids[0, slot]].item() for place, (slot, share) in expected.items())
    assert loss.total.item() == pytest.approx(total, rel=1e-6, abs=1e-12)
    assert loss.count.item() == pytest.approx(sum(share for _, share in expected.values()), rel=1e-6)


def test_no_target_gives_a_zero_loss_and_zero_gradients():  # D5, L3
    targets = draft_targets(
        as_row([-100] * 4),
        as_row([3, 2, 1, 0]),
        as_row(range(4)),
        torch.tensor([0, 0]),
        torch.tensor([False] * 2),
        block_size=3,
    )
    hidden = torch.full((1, 6, HIDDEN), torch.nan, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    loss = draft_loss(hidden, weight, targets, as_row([1, 2, 3, 4]))
    loss.total.backward()
    assert (loss.total.item(), loss.count.item()) == (0, 0)
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_sum_is_at_least_float32(dtype):
    targets = DraftTargets(torch.tensor([[0, 1]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1]))
    loss = draft_loss(torch.zeros(1, 2, 3, dtype=dtype), torch.zeros(4, 3, dtype=dtype), targets, as_row([1, 2]))
    assert loss.total.dtype == torch.promote_types(dtype, torch.float32)
    assert loss.total.item() == pytest.approx(1.3862944)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, r"block_size must be an integer of at least 1, got 0"),
        ({"decay": 0.0}, r"decay must be above 0 tokens \(None weighs all alike\), got 0.0"),
    ],
)
def test_a_wrong_option_is_refused(change, message):
    row, anchor = as_row([1, 2]), torch.tensor([0])
    with pytest.raises(ValueError, match=message):
        draft_targets(row, row, row, anchor, anchor >= 0, **({"block_size": 2} | change))


@pytest.mark.parametrize("decay", [0.01, 1e-6])
def test_however_quick_the_decay_no_weight_is_nan(decay):
    row, anchor = as_row([1, 2, 3]), torch.tensor([0])
    targets = draft_targets(row, as_row([2, 1, 0]), row, anchor, anchor >= 0, block_size=3, decay=decay)
    assert targets.label_weight.tolist() == [pytest.approx([0, 1, 0])]


@pytest.mark.parametrize(
    ("anchors", "valid", "message"),
    [
        (torch.tensor([0, 1]), torch.tensor([True]), r"must both be \(A,\), got \(2,\) and \(1,\)"),
        (torch.tensor([[0]]), torch.tensor([True]), r"must both be \(A,\), got \(1, 1\) and \(1,\)"),
        (torch.tensor([0]), torch.tensor([2]), r"anchor_valid bool, got torch.int64 and torch.int64"),
        (torch.tensor([0.0]), torch.tensor([True]), r"anchors must be integers .* got torch.float32"),
    ],
)
def test_anchors_that_were_not_drawn_are_refused(anchors, valid, message):
    row = as_row([1, 2])
    with pytest.raises(ValueError, match=message):
        draft_targets(row, row, row, anchors, valid, block_size=2)


def test_tensors_of_another_stream_are_refused():
    with pytest.raises(ValueError, match=r"one stream of shape \(1, T\).*'position_ids': \(1, 3\)"):
        draft_targets(
            as_row([1, 2]), as_row([1, 0]), as_row([0, 1, 2]), torch.tensor([0]), torch.tensor([True]), block_size=2
        )
    with pytest.raises(ValueError, match=r"steps must be an integer of at least 1, got 0"):
        targets_ahead(as_row([1]), as_row([0]), 0)


@pytest.mark.parametrize(
    ("hidden", "weight"), [((1, 5, 3), (4, 3)), ((1, 6, 3), (4, 2)), ((2, 3, 3), (4, 3)), ((6, 3), (4, 3))]
)
def test_states_that_fit_neither_targets_nor_weight_are_refused(hidden, weight):
    targets = DraftTargets(torch.zeros(2, 3).long(), torch.ones(2, 3), torch.zeros(6).long())
    with pytest.raises(ValueError, match=r"hidden must be \(1, 6, H\) for targets of \(2, 3\) and weight \(V, H\)"):
        draft_loss(torch.zeros(hidden), torch.zeros(weight), targets, as_row([1, 2]))

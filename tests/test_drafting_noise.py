"""Noise on states: bounded, uniform, tied to the token, and never on padding."""

import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.drafting import add_noise, noise

CHANNELS = 6


def rows_of(stream, keys, width, side):
    """The documents of a stream as padded rows: where each slot's token lies in the stream, ids and keys."""
    rows = []
    for document in range(len(stream["lengths"])):
        slots = [slot for slot, owner in enumerate(stream["document_ids"]) if owner == document]
        empty = [None] * (width - len(slots))
        rows.append(slots + empty if side == "right" else empty + slots)
    ids = [[-1 if slot is None else row for slot in slots] for row, slots in enumerate(rows)]
    document_keys = [[-1 if slot is None else keys[row] for slot in slots] for row, slots in enumerate(rows)]
    return rows, torch.tensor(ids, dtype=torch.int64), torch.tensor(document_keys, dtype=torch.int64)


@given(strategies.draft_streams(), st.floats(0, 3), st.integers(0, 2**40))
def test_noise_stays_within_its_bound_and_off_the_padding(stream, scale, key):
    ids = torch.tensor([stream["document_ids"]])
    states = torch.full((*ids.shape, CHANNELS), torch.nan, dtype=torch.float64)
    states[ids >= 0] = 0
    noisy = add_noise(states, scale=scale, document_ids=ids, key=key)
    assert (noisy[ids >= 0].abs() <= scale * (1 + 1e-6)).all()
    assert noisy[ids < 0].isnan().all(), "padding was touched"


@given(strategies.draft_streams(), st.sampled_from(["right", "left"]), st.integers(0, 3), st.data())
def test_noise_before_packing_is_the_noise_after(stream, side, extra, data):
    number = st.integers(-(2**63), 2**63 - 1)
    keys = data.draw(st.lists(number, min_size=len(stream["lengths"]), max_size=len(stream["lengths"])))
    if not stream["lengths"]:
        return
    ids = torch.tensor([stream["document_ids"]])
    document_keys = torch.tensor([[keys[document] if document >= 0 else -1 for document in stream["document_ids"]]])
    packed = add_noise(torch.zeros(*ids.shape, CHANNELS), document_ids=ids, document_keys=document_keys, key=7)
    rows, row_ids, row_keys = rows_of(stream, keys, max(stream["lengths"]) + extra, side)
    padded = add_noise(torch.zeros(*row_ids.shape, CHANNELS), document_ids=row_ids, document_keys=row_keys, key=7)
    for row, slots in enumerate(rows):
        for column, slot in enumerate(slots):
            if slot is not None:
                assert torch.equal(padded[row, column], packed[0, slot])


def test_noise_is_uniform_and_uncorrelated_between_tokens_channels_and_keys():
    ids = torch.arange(4).repeat_interleave(64)[None]
    zeros = torch.zeros(1, 256, 128)
    one, other = (add_noise(zeros, scale=1.0, document_ids=ids, key=key)[0] for key in range(2))
    counts = torch.histc(one, bins=64, min=-1, max=1)
    expected = one.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 104  # 0.1 % of uniform draws of 63 degrees lie above
    assert one.unique().numel() > 0.99 * one.numel()
    neighbours = [(one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1])]
    for left, right in neighbours:
        assert torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1].abs() < 0.02


def test_noise_made_in_parts_is_the_noise_made_at_once(monkeypatch):
    ids = torch.arange(5).repeat_interleave(7)[None]
    whole = add_noise(torch.zeros(1, 35, CHANNELS), document_ids=ids)
    monkeypatch.setattr(noise, "_VALUES_AT_A_TIME", 4 * CHANNELS)
    assert torch.equal(add_noise(torch.zeros(1, 35, CHANNELS), document_ids=ids), whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_noise_keeps_the_dtype_and_passes_gradients_through(dtype):
    states = torch.zeros(1, 3, 2, dtype=dtype, requires_grad=True)
    noisy = add_noise(states, document_ids=torch.tensor([[0, 0, -1]]))
    assert noisy.dtype == dtype
    noisy.sum().backward()
    assert torch.equal(states.grad, torch.ones_like(states))


@pytest.mark.parametrize(
    ("states", "ids", "options", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(1, 3).long(), {}, r"hidden_states must be \(R, S, channels\).*got \(3, 2\)"),
        (torch.zeros(1, 3, 2), torch.zeros(1, 4).long(), {}, r"document_ids and document_keys \(R, S\).*\(1, 4\)"),
        (torch.zeros(1, 3, 2).long(), torch.zeros(1, 3).long(), {}, r"must be floating, got torch.int64"),
        (torch.zeros(1, 3, 2), torch.zeros(1, 3).long(), {"scale": -0.1}, r"scale must not be negative, got -0.1"),
    ],
)
def test_a_wrong_argument_is_refused(states, ids, options, message):
    with pytest.raises(ValueError, match=message):
        add_noise(states, document_ids=ids, **options)

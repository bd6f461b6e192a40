"""From padded rows to one stream: the collator's own stream, with the states of its tokens."""

import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.batches import Column, PackedBatch, PackingCollator, StaticBuffers
from packdata.drafting import document_remaining, draft_targets, pack_hidden_states, select_anchors

WIDTH = 3


def features_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1, 99, (length,), generator=generator),
            "completion_mask": torch.randint(2, (length,), generator=generator),
        }
        for length in lengths
    ]


def padded_batch(features, *, side="right", extra=0):
    """A batch of rows, its padding on the given side."""
    longest = max((len(feature["input_ids"]) for feature in features), default=0)
    batch = PackingCollator(max(longest + extra, 1), layout="rows")(features)
    if side == "right":
        return batch
    moved = {}
    for key in ("input_ids", "targets", "position_ids", "document_ids"):
        rows = [
            torch.cat([row[ids < 0], row[ids >= 0]]) for row, ids in zip(batch[key], batch.document_ids, strict=True)
        ]
        moved[key] = torch.stack(rows)
    return PackedBatch(batch | moved)


def states_of(batch, *, padding=torch.nan):
    """States that say which token they belong to; the padding's are poison."""
    tokens = torch.arange(batch.input_ids.numel(), dtype=torch.float64).view(batch.input_ids.shape)
    states = torch.stack([batch.input_ids.double(), batch.position_ids.double(), tokens], -1)
    return torch.where((batch.document_ids >= 0)[..., None], states, padding)


def assert_same_batch(found, expected, *, but=()):
    assert found.keys() - set(but) == expected.keys()
    for key, value in expected.items():
        same = torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value
        assert same, (key, found[key], value)


lengths_of_rows = strategies.document_lengths(budget=9, max_size=6)


@given(lengths_of_rows, st.sampled_from(["right", "left"]), st.integers(0, 3), st.none() | st.integers(0, 700))
def test_the_stream_is_the_one_that_the_collator_makes_of_the_same_documents(lengths, side, extra, room):
    features = features_of(lengths)
    batch = padded_batch(features, side=side, extra=extra)
    pad_to = None if room is None else max(sum(lengths) + room, 1)
    found = pack_hidden_states(states_of(batch), batch, pad_to=pad_to)
    assert_same_batch(found, PackingCollator(pad_to)(features), but=["hidden_states"])


@given(lengths_of_rows, st.sampled_from(["right", "left"]), st.integers(0, 3), st.integers(0, 20))
def test_states_travel_with_their_tokens_and_poison_stays_behind(lengths, side, extra, room):
    batch = padded_batch(features_of(lengths), side=side, extra=extra)
    states = states_of(batch).requires_grad_()
    stream = pack_hidden_states(states, batch, pad_to=max(sum(lengths) + room, 1))
    hidden = stream["hidden_states"]
    real = stream.document_ids >= 0
    assert not hidden[~real].any(), "a slot past the tokens is not zero"
    assert torch.equal(hidden[real], states[batch.document_ids >= 0])
    assert torch.equal(hidden[real][:, 0], stream.input_ids[real].double())
    hidden.sum().backward()
    assert torch.equal(states.grad.isnan(), torch.zeros_like(states).bool())
    assert torch.equal(states.grad[..., 0] == 1, batch.document_ids >= 0)


@given(lengths_of_rows, lengths_of_rows)
def test_buffers_take_the_stream_at_constant_addresses(first, second):
    columns = {"hidden_states": Column(per="token", dtype=torch.float64, tail=(WIDTH,))}
    buffers = StaticBuffers(60, 7, columns=columns)
    addresses = {key: value.data_ptr() for key, value in buffers.batch.items() if isinstance(value, torch.Tensor)}
    for lengths in (first, second):
        batch = padded_batch(features_of(lengths))
        found = pack_hidden_states(states_of(batch), batch, out=buffers)
        expected = PackingCollator(60, max_documents=7)(features_of(lengths))
        assert_same_batch(found, expected, but=["hidden_states"])
        assert {key: found[key].data_ptr() for key in addresses} == addresses
        fresh = pack_hidden_states(states_of(batch), batch, pad_to=60)
        assert torch.equal(found["hidden_states"], fresh["hidden_states"])


@given(lengths_of_rows, st.integers(0, 40), st.floats(-1e30, 1e30))
def test_neither_what_padding_holds_nor_how_much_there_is_changes_anything_but_indices(lengths, room, poison):
    batch = padded_batch(features_of(lengths))
    tight, roomy = (
        pack_hidden_states(states_of(batch, padding=padding), batch, pad_to=max(sum(lengths) + more, 1))
        for padding, more in ((torch.nan, 0), (poison, room))
    )
    drawn = []
    for stream in (tight, roomy):
        remaining = document_remaining(stream.cu_seqlens, stream.document_ids)
        anchors, valid = select_anchors(stream.labels, remaining, num_anchors=5, block_size=3, key=3)
        targets = draft_targets(stream.labels, remaining, stream.position_ids, anchors, valid, block_size=3)
        drawn.append((anchors, valid, targets.label_weight, targets.label_index * (targets.label_weight > 0)))
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
    used = sum(lengths)
    assert torch.equal(tight["hidden_states"][:, :used], roomy["hidden_states"][:, :used])
    assert not roomy["hidden_states"][:, used:].any()


def test_packed_rows_and_further_columns_travel_too():
    features = [{"input_ids": [1, 2, 3], "seq_lengths": [2, 1], "score": [7.0, 8.0, 9.0]}]
    features += [{"input_ids": [4], "seq_lengths": [1], "score": [6.0]}]
    columns = {"score": Column(per="token", dtype=torch.float32, pad=0.0)}
    batch = PackingCollator(layout="rows", columns=columns)(features)
    stream = pack_hidden_states(states_of(batch), batch, pad_to=6)
    assert stream["score"].tolist() == [[7, 8, 9, 6, 0, 0]]
    assert stream.lengths == (2, 1, 1)
    assert stream.cu_seqlens.tolist() == [0, 2, 3, 4, 6]


def test_last_hidden_says_which_norm_and_the_two_are_not_mixed():
    batch = padded_batch(features_of([2, 3]))
    columns = {key: Column(per="token", dtype=torch.float64, tail=(WIDTH,)) for key in ("hidden_states", "last_hidden")}
    buffers = StaticBuffers(8, 4, columns=columns)
    states = states_of(batch)

    def pack(norm):
        return pack_hidden_states(states, batch, out=buffers, last_hidden=states, last_hidden_norm=norm)

    for _ in range(2):
        stream = pack("pre_norm")
        assert stream["last_hidden_norm"] == "pre_norm"
        assert torch.equal(stream["last_hidden"], stream["hidden_states"])
    with pytest.raises(ValueError, match=r"out holds pre_norm states as last_hidden, got post_norm.*not be mixed"):
        pack("post_norm")


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 4, 3), {}, r"states must be \(R, S, width\) of the batch.*\(2, 3\), got \(2, 4, 3\)"),
        ((3, 2, 3), {}, r"states must be \(R, S, width\) of the batch.*\(2, 3\), got \(3, 2, 3\)"),
        ((2, 3), {}, r"states must be \(R, S, width\) of the batch.*got \(2, 3\)"),
        ((2, 3, 3), {"pad_to": 4}, r"the batch holds 5 tokens, over pad_to=4: plan smaller batches or raise pad_to"),
        ((2, 3, 3), {"out": StaticBuffers(4, 2)}, r"the batch holds 5 tokens, over pad_to=4"),
        ((2, 3, 3), {"out": StaticBuffers(9, 2), "pad_to": 8}, r"pad_to must be that of out, 9, or None, got 8"),
        ((2, 3, 3), {"last_hidden": torch.zeros(2, 3, 3)}, r"last_hidden goes with last_hidden_norm=.*None with"),
        ((2, 3, 3), {"last_hidden_norm": "pre_norm"}, r"got 'pre_norm' without last_hidden"),
        ((2, 3, 3), {"pad_to": 9, "padding_segment": -2}, r"padding_segment must be an integer of at least 1, got -2"),
        ((2, 3, 3), {"last_hidden": torch.zeros(2, 3, 3), "last_hidden_norm": "both"}, r"got 'both' with last_hidden"),
        (
            (2, 3, 3),
            {"last_hidden": torch.zeros(2, 2, 3), "last_hidden_norm": "pre_norm"},
            r"last_hidden must be \(R, S, width\)",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        pack_hidden_states(torch.zeros(shape), padded_batch(features_of([3, 2])), **options)


def test_alignment_slots_stay_behind():
    features = features_of([3, 5])
    batch = PackingCollator(layout="rows", align=4)(features)
    found = pack_hidden_states(states_of(batch), batch, pad_to=9)
    assert_same_batch(found, PackingCollator(9)(features), but=["hidden_states"])


def test_a_batch_whose_documents_see_each_other_is_refused():
    batch = PackingCollator(layout="rows", cross_document_attention=True)(features_of([3, 2]))
    with pytest.raises(ValueError, match=r"the batch was made with cross_document_attention"):
        pack_hidden_states(states_of(batch), batch)

"""One packed pass of a drafter is the same as one pass per document, and as one per block: loss and all gradients."""

import oracles
import pytest
import torch
from benchmark_drafting import packed_loss, per_document_loss
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import PackingCollator
from packdata.drafting import BlockDrafter, DrafterGeometry, StaticBlocks, add_noise

WIDTH, CAPTURED, VOCABULARY = 8, 2, 11
GEOMETRY = DrafterGeometry(
    hidden_size=WIDTH, captured=CAPTURED, layers=2, heads=3, kv_heads=1, head_dim=6, intermediate_size=12
)


def drafter_of(seed=0):
    torch.manual_seed(seed)
    drafter = BlockDrafter(GEOMETRY).double()
    return drafter, torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)


def stream_of(lengths, pad_to, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = [
        {
            "input_ids": torch.randint(VOCABULARY, (length,), generator=generator),
            "completion_mask": (torch.rand(length, generator=generator) < 0.8).int(),
        }
        for length in lengths
    ]
    stream = PackingCollator(pad_to)(features)
    hidden = torch.randn(1, pad_to, CAPTURED * WIDTH, dtype=torch.float64, generator=generator)
    stream["hidden_states"] = hidden.requires_grad_()
    return stream


def loss_and_gradients(total, drafter, embedding, stream):
    inputs = [*drafter.parameters(), embedding, stream["hidden_states"]]
    return total.detach(), torch.autograd.grad(total, inputs, materialize_grads=True)


def assert_equal_to(reference, found, tolerance=1e-12):
    for expected, value in zip([reference[0], *reference[1]], [found[0], *found[1]], strict=True):
        assert (value - expected).abs().max() <= tolerance * max(1.0, expected.abs().max().item())


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 10), max_size=5),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 5),
    st.integers(0, 99),
    st.sampled_from(["dense", "windows"]),
)
def test_the_packed_pass_equals_one_pass_per_document_and_one_per_block(lengths, anchors, room, block_size, key, mask):
    stream = stream_of(lengths, max(sum(lengths) + room, 1), seed=key)
    drafter, embedding = drafter_of()
    longest = max(lengths, default=0)  # a window as long as that hides nothing
    blocks = StaticBlocks(stream, num_anchors=anchors, block_size=block_size, mask=mask, window=longest, decay=2.0)
    blocks.draw(key)
    chosen = blocks.anchors[blocks.anchor_valid]
    packed = packed_loss(drafter, embedding, stream, blocks)
    looped = per_document_loss(drafter, embedding, stream, chosen, block_size=block_size, decay=2.0)
    labels = oracles.draft_labels(
        stream.document_ids[0].tolist(),
        stream.labels[0].tolist(),
        anchors=chosen.tolist(),
        anchor_valid=[True] * len(chosen),
        block_size=block_size,
        decay=2.0,
    )
    # The library's weights are float32: the oracle takes them as they are, to leave only the passes to be compared.
    by_slot = {
        (chosen[block].item(), place): (slot, blocks.targets.label_weight[blocks.anchor_valid][block, place].item())
        for (block, place), (slot, _) in labels.items()
    }
    blockwise = oracles.draft_loss_block_by_block(drafter, embedding, stream, by_slot, block_size)
    found = loss_and_gradients(packed.total, drafter, embedding, stream)
    assert_equal_to(loss_and_gradients(blockwise, drafter, embedding, stream), found)
    if len(chosen):
        assert_equal_to(loss_and_gradients(looped.total, drafter, embedding, stream), found)
        assert packed.count.item() == pytest.approx(float(looped.count), rel=1e-6)


def test_capacity_padding_and_the_order_of_documents_do_not_change_the_loss():
    lengths = [7, 1, 12, 5]
    one = stream_of(lengths, 25)
    drafter, embedding = drafter_of()
    pieces = [tensor.detach() for tensor in one.unpack(one["hidden_states"])]
    ids, labels = one.unpack(one.input_ids), one.unpack(one.labels)
    order = [2, 0, 3, 1]
    other = PackingCollator(64)([{"input_ids": ids[place], "labels": labels[place]} for place in order])
    other["hidden_states"] = torch.zeros(1, 64, CAPTURED * WIDTH, dtype=torch.float64)
    other["hidden_states"][:, :25] = torch.cat([pieces[place] for place in order])[None]
    other["hidden_states"][:, 25:] = 1e3  # what padding holds does not matter, as long as it is finite
    keys = torch.tensor(order)[other.document_ids.clamp(min=0)]
    losses = []
    for stream, document_keys, anchors in ((one, one.document_ids, 6), (other, keys, 6), (other, keys, 6)):
        stream = type(stream)(stream)
        stream["hidden_states"] = add_noise(
            stream["hidden_states"].detach(), document_ids=stream.document_ids, document_keys=document_keys, key=5
        )
        blocks = StaticBlocks(stream, num_anchors=anchors, block_size=4, mask="dense")
        blocks.draw(5, document_keys=document_keys)
        losses.append(packed_loss(drafter, embedding, stream, blocks).total.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_no_candidate_still_gives_every_parameter_a_zero_gradient():  # D5
    stream = stream_of([1, 1], 6)
    drafter, embedding = drafter_of()
    blocks = StaticBlocks(stream, num_anchors=3, block_size=4, mask="dense")
    assert not blocks.anchor_valid.any()
    loss = packed_loss(drafter, embedding, stream, blocks)
    loss.total.backward()
    assert (loss.total.item(), loss.count.item()) == (0, 0)
    for name, parameter in [*drafter.named_parameters(), ("embedding", embedding)]:
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_flex_attention_gives_the_same_states():  # forward only: it has no backward on a CPU
    stream = stream_of([7, 1, 12, 5], 30)
    stream["hidden_states"] = stream["hidden_states"].float()
    drafter, embedding = drafter_of()
    drafter, anchors = drafter.float(), embedding.float()[:6]
    states = []
    for mask in ("flex", "windows", "dense"):
        blocks = StaticBlocks(stream, num_anchors=6, block_size=4, mask=mask, window=12)
        positions = (stream.position_ids, anchors, blocks.targets.slot_positions)
        states.append(drafter(stream["hidden_states"], *positions, blocks.mask))
    torch.testing.assert_close(states[0], states[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[1], states[2], rtol=1e-4, atol=1e-5)


def test_the_drafters_geometry_is_its_own():
    drafter, _ = drafter_of()
    assert GEOMETRY.heads * GEOMETRY.head_dim != WIDTH
    stream = stream_of([5, 6], 12)
    mask = torch.ones(1, 1, 4, 16, dtype=torch.bool)
    states = drafter(
        stream["hidden_states"], stream.position_ids, torch.zeros(2, WIDTH).double(), torch.arange(4), mask
    )
    assert states.shape == (1, 4, WIDTH)
    with pytest.raises(ValueError, match=r"kv_heads must divide heads and head_dim must be even, got 2, 3 and 6"):
        DrafterGeometry(hidden_size=8, captured=1, heads=3, kv_heads=2, head_dim=6)
    with pytest.raises(ValueError, match=r"kv_heads must be an integer of at least 1, got 0"):
        DrafterGeometry(hidden_size=8, captured=1, kv_heads=0)

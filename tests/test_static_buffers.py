from functools import partial

import pytest
import strategies
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import Column, PackedBatch, PackingCollator, StaticBuffers

STATES = {"hidden_states": Column(per="token", dtype=torch.float32, tail=(3,))}


def addresses(batch):
    return {key: value.data_ptr() for key, value in batch.items() if isinstance(value, torch.Tensor)}


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key], key


@st.composite
def fillings(draw):
    """Options that collators and buffers share, those of each collator, and its features."""
    options = {"padding_segment": draw(st.sampled_from([1, 3, 512])), "position_offset": 2}
    each = {"layout": draw(st.sampled_from(["stream", "rows"])), "align": draw(st.sampled_from([1, 2]))}
    batches = []
    for _ in range(3):
        features = draw(strategies.plain_features(packed=draw(st.booleans()), supervision=["labels"]))
        bare = [{k: v for k, v in f.items() if k in ("input_ids", "labels", "seq_lengths")} for f in features]
        size = draw(
            st.sampled_from([{}, {"pad_to_multiple_of": 4}, {"pad_to": 96}, {"pad_to": 96, "max_documents": 15}])
        )
        batches.append((each | size, bare))
    return options, batches


@settings(max_examples=60)
@given(fillings(), st.sampled_from([96, 100]))
def test_any_sequence_of_batches_leaves_no_trace_and_never_moves(filling, width):
    options, specs = filling
    batches = [PackingCollator(**options, **each)(features) for each, features in specs]
    make = partial(StaticBuffers, width, 15, rows=max(len(batch.input_ids) for batch in batches), **options)
    buffers = make()
    fixed = addresses(buffers.batch)
    for batch in batches:
        held = buffers.copy_(batch)
        assert addresses(held) == fixed
        same(held, make().copy_(batch))
        assert_holds(held, batch)


def assert_holds(held, batch):
    rows, width = batch.input_ids.shape
    for key in ("input_ids", "targets", "document_ids", "position_ids"):
        assert torch.equal(held[key][:rows, :width], batch[key])
    inside = torch.zeros_like(held.input_ids, dtype=torch.bool)
    inside[:rows, :width] = True
    assert (held.targets[~inside] == -100).all()
    assert (held.document_ids[~inside] == -1).all()
    assert (held.input_ids[~inside] == 0).all()
    steps = held.cu_seqlens.diff()
    filled = int((steps > 0).sum())
    assert (steps[filled:] == 0).all()  # repeats stand at the very end
    assert held.cu_seqlens[-1] == held.input_ids.numel()
    slots = torch.arange(held.input_ids.numel()).view_as(held.input_ids)
    assert torch.equal(held.position_ids, slots - held.cu_seqlens[held.segment_ids] + 2)
    assert (held.lengths, held.num_targets) == (batch.lengths, batch.num_targets)
    for part, document in zip(held.unpack(held.input_ids), batch.unpack(batch.input_ids), strict=True):
        assert torch.equal(part, document)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from([1, 4, 512]))
def test_buffers_hold_what_a_collator_of_that_shape_makes(lengths, padding_segment):
    documents = [[7] * length for length in lengths]
    shape = {"pad_to": 40, "max_documents": 6, "padding_segment": padding_segment}
    held = StaticBuffers(**shape).copy_(PackingCollator(padding_segment=padding_segment)(documents))
    expected = PackingCollator(**shape)(documents)
    same(held, expected)


def test_a_shorter_batch_leaves_nothing_of_a_longer_one():  # M2
    buffers, collate = StaticBuffers(8, 4, pad_token_id=9), PackingCollator()
    first = addresses(buffers.copy_(collate([[1] * 8])))
    held = buffers.copy_(collate([[5, 6]]))
    assert addresses(held) == first
    assert held.input_ids.tolist() == [[5, 6, 9, 9, 9, 9, 9, 9]]
    assert held.targets.tolist() == [[6] + [-100] * 7]
    assert held.document_ids.tolist() == [[0, 0] + [-1] * 6]
    assert held.cu_seqlens.tolist() == [0, 2, 8, 8, 8, 8]
    assert held.max_seqlen == 8
    assert buffers.batch is held


def test_extra_columns_are_held_and_cleared():
    buffers = StaticBuffers(6, 2, columns=STATES)
    for length in (5, 2):
        batch = PackingCollator()([[1] * length])
        batch["hidden_states"] = torch.ones(1, length, 3, dtype=torch.bfloat16, requires_grad=True)
        held = buffers.copy_(batch)["hidden_states"]
        assert held.shape == (1, 6, 3)
        assert held.dtype == torch.float32
        assert held.sum() == length * 3
        assert not held[:, length:].any()


def test_features_without_a_token_have_no_vectors():
    collate = PackingCollator(columns={"hidden_states": Column(per="token", dtype=torch.float16, tail=(3,))})
    for features in ([], [{"input_ids": [], "hidden_states": []}]):
        assert collate(features)["hidden_states"].shape == (1, 1, 3)
    batch = collate([{"input_ids": [], "hidden_states": []}, {"input_ids": [1], "hidden_states": [[1, 2, 3]]}])
    assert batch["hidden_states"].tolist() == [[[1, 2, 3]]]


def test_a_compiled_consumer_sees_one_shape():
    buffers, counter = StaticBuffers(16, 5), torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def consume(batch):
        return batch["input_ids"].sum() + batch["cu_seqlens"].sum()

    for lengths in ([3, 2], [7], [1, 1, 1, 1], []):
        held = buffers.copy_(PackingCollator()([[1] * length for length in lengths]))
        assert consume(dict(held)) == sum(lengths) + held.cu_seqlens.sum()
    assert counter.frame_count == 1


def plain(length=2, **changes):
    return PackedBatch(PackingCollator()([[1] * length]) | changes)


MISFITS = [
    (plain(9), "9 slots a row, over the 8 of buffers with rows=1, pad_to=8"),
    (PackingCollator()([[1], [1], [1]]), "the batch has 3 documents, over the 2"),
    (PackingCollator(layout="rows")([[1], [1]]), "the batch has 2 rows, over the 1"),
    (plain(7), "the batch has 7 slots in a segment, over the 6"),
    (plain(other=torch.ones(1, 2)), r"has columns \['other'\] that the buffers have not"),
    (plain(hidden_states=torch.ones(1, 2, 4)), r"hidden_states must hold torch.float32 of shape \(3,\), got .* \(4,\)"),
    (plain(hidden_states=torch.ones(1, 2, 3, dtype=torch.complex64)), "got torch.complex64"),
    (plain(depth=torch.ones(1, 2, dtype=torch.int64)), "depth must hold torch.int8 .* got torch.int64"),
    (plain(cu_seqlens=torch.tensor([0, 1, 1, 2])), None),
    (PackingCollator(8, padding_segment=1)([[1]]), "the batch has up to 8 segments, over the 3 that max_documents=2"),
]


@pytest.mark.parametrize(("batch", "message"), MISFITS)
def test_what_does_not_fit_is_refused(batch, message):
    depth = {"depth": Column(per="token", dtype=torch.int8)}
    buffers = StaticBuffers(8, 2, max_seqlen=6, columns=STATES | depth)
    shape = batch.input_ids.shape
    batch = PackedBatch({"hidden_states": torch.ones(*shape, 3), "depth": torch.ones(shape, dtype=torch.bool)} | batch)
    if message is None:
        assert buffers.copy_(batch).cu_seqlens.tolist() == [0, 1, 2, 8]
        return
    with pytest.raises(ValueError, match=message):
        buffers.copy_(batch)


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match=r"the batch lacks \['hidden_states'\]"):
        StaticBuffers(8, 2, columns=STATES).copy_(PackingCollator()([[1]]))


@pytest.mark.gpu
def test_a_batch_is_copied_to_the_device_without_waiting():
    buffers = StaticBuffers(64, 8, device="cuda")
    staging = StaticBuffers(64, 8, pin_memory=True)
    batches = [staging.copy_(PackingCollator()([[1] * length] * 2)).copy() for length in (3,)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            held = buffers.copy_(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same(held.to("cpu"), batches[-1])


@pytest.mark.parametrize("wrong", [None, -1, 1.5, True])
@pytest.mark.parametrize("name", ["pad_to", "max_documents", "rows", "pad_token_id", "position_offset"])
def test_numbers_that_make_no_buffers_are_refused(name, wrong):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least [01], got {wrong!r}"):
        StaticBuffers(**{"pad_to": 8, "max_documents": 2} | {name: wrong})

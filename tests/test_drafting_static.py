"""Fixed shapes, fixed addresses, no look at the device: what a CUDA graph needs, proved on a CPU."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import Qwen3Config, Qwen3ForCausalLM

from packdata.attention.static import refresh_block_mask
from packdata.batches import Column, PackedBatch, PackingCollator, StaticBuffers, to_transformers
from packdata.drafting import (
    AnchorWindows,
    BlockDrafter,
    DrafterGeometry,
    DraftTargets,
    HiddenStateCapture,
    StaticBlocks,
    add_noise,
    anchor_block_mask,
    anchor_dense_mask,
    document_remaining,
    draft_loss,
    draft_targets,
    pack_hidden_states,
    select_anchors,
    targets_ahead,
)
from packdata.samplers import LengthBucketBatchSampler

WIDTH, VOCABULARY, BUDGET, ANCHORS, BLOCK = 16, 32, 192, 8, 4
GEOMETRY = DrafterGeometry(
    hidden_size=WIDTH, captured=2, layers=2, heads=3, kv_heads=1, head_dim=6, intermediate_size=24
)
# torch's own, where its compiler meets a custom gradient
pytestmark = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
DATA_DEPENDENT = {"nonzero", "_local_scalar_dense", "masked_select", "item", "unique", "unique2", "equal", "bincount"}


def every_part(input_ids, labels, position_ids, document_ids, cu_seqlens, hidden_states, embedding, states, key):
    """All of drafting that happens on the device, in one go."""
    remaining = document_remaining(cu_seqlens, document_ids)
    anchors, valid = select_anchors(
        labels, remaining, num_anchors=ANCHORS, block_size=BLOCK, tail="exclude", document_ids=document_ids, key=key
    )
    targets = draft_targets(labels, remaining, position_ids, anchors, valid, block_size=BLOCK, decay=3.0)
    mask = anchor_dense_mask(document_ids, anchors, valid, block_size=BLOCK, window=9)
    tables = anchor_block_mask(document_ids, anchors, valid, block_size=BLOCK, block_causal=True)
    noisy = add_noise(hidden_states, document_ids=document_ids, key=key)
    loss = draft_loss(states, embedding, targets, input_ids)
    ahead = targets_ahead(labels, remaining, 3)
    return (
        anchors,
        valid,
        *targets,
        mask,
        tables.kv_indices,
        tables.full_q_indices,
        noisy,
        loss.total,
        loss.count,
        ahead,
    )


def arguments_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]
    batch = PackingCollator(BUDGET, max_documents=20)(documents)
    hidden = torch.randn(1, BUDGET, 2 * WIDTH, generator=generator)
    embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
    states = torch.randn(1, ANCHORS * BLOCK, WIDTH, generator=generator)
    tensors = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids, batch.cu_seqlens)
    return (*tensors, hidden, embedding, states, torch.tensor(seed))


def test_no_op_of_the_trace_depends_on_values():
    graph = make_fx(every_part, tracing_mode="fake")(*arguments_of([30, 50, 7]))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    used = {target.overloadpacket.__name__ for target in targets if isinstance(target, torch._ops.OpOverload)}
    assert len(used) > 20
    assert used.isdisjoint(DATA_DEPENDENT), used & DATA_DEPENDENT


def test_everything_runs_on_tensors_without_values():
    arguments = arguments_of([30, 50, 7])
    real = every_part(*arguments)
    with FakeTensorMode() as mode:  # raises where an op would read a value
        fake = every_part(*map(mode.from_tensor, arguments))
    assert [(value.shape, value.dtype) for value in fake] == [(value.shape, value.dtype) for value in real]


@pytest.mark.parametrize("lengths", [[], [1], [BUDGET], [BLOCK] * 20, [1, 0, 2, 100]], ids=str)
def test_shapes_and_dtypes_are_the_same_for_any_input(lengths):
    expected = every_part(*arguments_of([30, 50, 7]))
    found = every_part(*arguments_of(lengths))
    assert [(value.shape, value.dtype) for value in found] == [(value.shape, value.dtype) for value in expected]


def test_compiled_is_eager_with_one_compilation():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(every_part, backend=counter, fullgraph=True)
    for seed, lengths in enumerate([[30, 50, 7], [], [BUDGET], [3] * 20]):
        arguments = arguments_of(lengths, seed)
        for found, expected in zip(compiled(*arguments), every_part(*arguments), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1


def addresses_of(batch, blocks):
    mask = blocks.mask
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    tensors |= {"anchors": blocks.anchors, "valid": blocks.anchor_valid, **blocks.targets._asdict()}
    if isinstance(mask, torch.Tensor):
        tensors["mask"] = mask
    elif isinstance(mask, AnchorWindows):
        tensors |= mask._asdict()
    else:
        sides = [f"{kind}{side}" for kind in ("", "full_") for side in ("kv", "q")]
        tensors |= {
            f"{side}_{what}": getattr(mask, f"{side}_{what}") for side in sides for what in ("num_blocks", "indices")
        }
        tensors |= {
            f"captured {place}": cell.cell_contents
            for place, cell in enumerate(mask.mask_mod.__closure__)
            if isinstance(cell.cell_contents, torch.Tensor)
        }
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def test_fifty_bucketed_batches_compile_once_and_stay_where_they_are():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 60, (420,), generator=generator)
    documents = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths.tolist()]
    sampler = LengthBucketBatchSampler(lengths, BUDGET, boundaries=(8, 16, 32, 64), padded=True)
    collate = PackingCollator(layout="rows")
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    target, drafter = Qwen3ForCausalLM(config).eval(), BlockDrafter(GEOMETRY)
    embedding = target.get_input_embeddings().weight.detach()
    columns = {"hidden_states": Column(per="token", dtype=torch.float32, tail=(2 * WIDTH,))}
    buffers = StaticBuffers(BUDGET, BUDGET // 2, columns=columns)
    stream, key = buffers.batch, torch.zeros((), dtype=torch.int64)
    blocks = StaticBlocks(stream, num_anchors=ANCHORS, block_size=BLOCK, mask="dense", decay=4.0)
    tables = StaticBlocks(stream, num_anchors=ANCHORS, block_size=BLOCK, mask="flex", decay=4.0)
    windows = StaticBlocks(stream, num_anchors=ANCHORS, block_size=BLOCK, mask="windows", window=59)

    def step(hidden_states, document_ids, position_ids, input_ids, anchors, index, weight, positions, mask, key):
        noisy = add_noise(hidden_states, document_ids=document_ids, key=key)
        states = drafter(noisy, position_ids, embedding[input_ids[0, anchors]], positions, mask)
        return draft_loss(states, embedding, DraftTargets(index, weight, positions), input_ids).total

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    found, totals, batches = None, [], 0
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for numbers in sampler:
            rows = collate([documents[number] for number in numbers])
            with torch.no_grad(), HiddenStateCapture(target, [0, 1]) as capture:
                target(**to_transformers(rows))
            pack_hidden_states(capture.hidden_states, rows, out=buffers)
            key.fill_(batches)
            for some in (blocks, tables, windows):
                some.draw(key)
            addresses = [addresses_of(stream, some) for some in (blocks, tables, windows)]
            assert found in (None, addresses)
            found = addresses
            tensors = (stream["hidden_states"], stream.document_ids, stream.position_ids, stream.input_ids)
            total = compiled(*tensors, blocks.anchors, *blocks.targets, blocks.mask, key)
            total.backward()
            totals.append(total.item())
            batches += 1
            if batches == 50:
                assert counter.frame_count == 1
                assert len(set(totals)) == 50
                return
    raise AssertionError(f"only {batches} batches")


def test_a_drawn_mask_is_the_mask_of_the_new_stream():
    stream = PackedBatch(PackingCollator(300, max_documents=9)([range(100), range(150)]))
    blocks = StaticBlocks(stream, num_anchors=5, block_size=8, mask="flex")
    fresh = PackingCollator(300, max_documents=9)([range(20)] * 9)
    for name in ("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens"):
        stream[name].copy_(fresh[name])
    blocks.draw(4)
    expected = anchor_block_mask(fresh.document_ids, blocks.anchors, blocks.anchor_valid, block_size=8)
    assert torch.equal(blocks.mask.to_dense(), expected.to_dense())
    refresh_block_mask(expected, blocks.mask)
    with pytest.raises(ValueError, match=r"mask must be one of 'flex', 'windows', 'dense', got 'sdpa'"):
        StaticBlocks(stream, num_anchors=5, block_size=8, mask="sdpa")
    with pytest.raises(ValueError, match=r'mask="windows" needs a window'):
        StaticBlocks(stream, num_anchors=5, block_size=8, mask="windows")

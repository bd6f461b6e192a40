"""An index made once: the same rows as the operator's, with sizes that the host knows beforehand."""

import hypothesis.strategies as st
import pytest
import strategies
import torch
from hypothesis import given
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from packdata.batches import PackingCollator
from packdata.kernels import NativePackOp, PackIndex


@given(mask=strategies.masks(), tail=st.sampled_from([(), (3,), (2, 0)]), room=st.integers(0, 3))
def test_every_kind_of_index_gives_the_rows_of_the_mask(mask, tail, room):
    x = torch.randn(*mask.shape, *tail)
    count = int(mask.sum())
    expected, cu_seqlens = NativePackOp()(x, mask)
    for index in (
        PackIndex.from_mask(mask),
        PackIndex.from_mask(mask, count=count),
        PackIndex.from_mask(mask, capacity=count + room),
        PackIndex.from_mask(mask, count=count, capacity=count + room),
    ):
        index.check()
        packed = index.pack(x)
        assert packed.shape == (index.size, *tail)
        assert index.count == count
        assert torch.equal(packed[:count], expected)
        assert not packed[count:].any()
        assert torch.equal(index.cu_seqlens, cu_seqlens)
        assert torch.equal(index.unpack(packed), NativePackOp().unpack(expected, mask))


@pytest.mark.parametrize(
    ("active", "rows", "overflow"), [(4, 4, False), (6, 6, False), (7, 6, True)], ids=lambda value: str(value)
)
def test_a_capacity_is_a_fixed_size_and_never_silent(active, rows, overflow):  # L7
    mask = torch.zeros(1, 8)
    mask[0, 8 - active :] = 1
    x = torch.arange(1.0, 17.0).reshape(1, 8, 2)
    index = PackIndex.from_mask(mask, capacity=6)
    packed = index.pack(x)
    assert packed.shape == (6, 2)
    assert torch.equal(packed[:rows], x[0, 8 - active :][:6])
    assert not packed[rows:].any()
    assert int(index.count) == active
    assert bool(index.overflow) is overflow
    assert index.cu_seqlens.tolist() == [0, rows]
    if overflow:
        with pytest.raises(ValueError, match=r"7 active slots, which do not fit the 6 rows.*larger capacity"):
            index.check()
    else:
        index.check()


def test_rows_left_over_take_no_gradient_and_leave_nothing_behind():
    mask = torch.tensor([[0, 1, 0], [1, 0, 0]])
    index = PackIndex.from_mask(mask, capacity=4)
    x = torch.full((2, 3, 2), torch.inf).masked_fill(mask[..., None] != 0, 1.0).requires_grad_()
    packed = index.pack(x)
    packed.backward(torch.ones_like(packed))
    assert torch.equal(x.grad, mask[..., None].expand(2, 3, 2).float())
    rows = torch.tensor([1.0, 2.0, torch.nan, torch.nan], requires_grad=True)
    dense = index.unpack(rows)
    assert dense.tolist() == [[0, 1, 0], [2, 0, 0]]
    dense.backward(torch.ones_like(dense))
    assert rows.grad.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)], ids=str)
def test_a_capacity_serves_every_dtype_and_nothing_at_all(dtype, shape):
    x = torch.ones(shape).to(dtype)
    index = PackIndex.from_mask(torch.ones(shape), capacity=8)
    packed = index.pack(x)
    assert packed.dtype == dtype
    assert packed.to(torch.complex64).real.tolist() == [1.0] * x.numel() + [0.0] * (8 - x.numel())
    assert index.unpack(packed).shape == shape


def test_a_float8_gradient_survives_rows_left_over():
    x = torch.ones(1, 3).to(torch.float8_e4m3fn).requires_grad_()
    packed = PackIndex.from_mask(torch.tensor([[1, 0, 1]]), capacity=5).pack(x)
    packed.backward(torch.full((5,), 2.0).to(torch.float8_e4m3fn))
    assert x.grad.float().tolist() == [[2, 0, 2]]


@pytest.mark.parametrize("capacity", [0, 3])
def test_derivatives_with_a_capacity(capacity):
    index = PackIndex.from_mask(torch.tensor([[1, 0, 1], [0, 0, 0]]), capacity=capacity)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: index.unpack(index.pack(x).sin()), x)
    assert torch.autograd.gradgradcheck(lambda x: index.unpack(index.pack(x).sin()), x)


def test_a_batch_knows_its_count():
    features = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [-100, 5]}]
    batch = PackingCollator(pad_to=8)(features)
    index = PackIndex.from_batch(batch)
    assert index.count == batch.num_targets == 3
    assert index.pack(batch.targets).tolist() == [2, 3, 5]
    assert index.pack(batch.document_ids).tolist() == [0, 0, 1]
    assert PackIndex.from_batch(batch, capacity=4).pack(batch.targets).tolist() == [2, 3, 5, 0]
    assert PackIndex.from_batch(PackingCollator(pad_to=8)([])).pack(batch.targets).tolist() == []


def test_one_graph_without_unknown_sizes_serves_every_mask():
    def packed(x, mask):
        index = PackIndex.from_mask(mask, capacity=6)
        return index.unpack(index.pack(x).sin()), index.overflow, index.cu_seqlens

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(packed, fullgraph=True, dynamic=False, backend=counter)
    for active in (4, 6, 7, 0, 8):
        x = torch.randn(2, 4, 3, requires_grad=True)
        mask = (torch.arange(8) < active).reshape(2, 4)
        for ours, eager in zip(compiled(x, mask), packed(x, mask), strict=True):
            assert torch.equal(ours, eager)
        ours, eager = (torch.autograd.grad(f(x, mask)[0].sum(), x)[0] for f in (compiled, packed))
        assert torch.equal(ours, eager)
    assert counter.frame_count == 1


@pytest.mark.parametrize("size", [{"count": 5}, {"capacity": 5}], ids=str)
def test_a_given_size_needs_no_symbols(size):
    with FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=False)):
        index = PackIndex.from_mask(torch.ones(3, 4), **size)
        packed = index.pack(torch.ones(3, 4, 2))
        assert packed.shape == (5, 2)
        assert index.unpack(packed).shape == (3, 4, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [{"count": 4}, {"capacity": 6}], ids=str)
def test_a_given_size_never_waits_for_the_device(size):
    mask, x = torch.arange(8, device="cuda").reshape(2, 4) % 2, torch.ones(2, 4, 3, device="cuda", requires_grad=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        index = PackIndex.from_mask(mask, **size)
        index.unpack(index.pack(x)).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    index.check()
    assert torch.equal(x.grad[..., 0], mask.float())


@pytest.mark.parametrize(
    ("mask", "size", "message"),
    [
        (torch.ones(3), {}, "mask must be 2-dimensional"),
        (torch.ones(1, 3), {"count": 2}, "count must be the number of active slots of the mask, 3, got 2"),
        (torch.ones(1, 3), {"count": 4}, "count must be the number of active slots of the mask, 3, got 4"),
        (torch.ones(1, 3), {"count": -1}, "count must not be negative, got -1"),
        (torch.ones(1, 3), {"capacity": -1}, "capacity must not be negative, got -1"),
    ],
)
def test_a_size_that_cannot_be_is_refused(mask, size, message):
    with pytest.raises(ValueError, match=message):
        PackIndex.from_mask(mask, **size)


def test_a_wrong_count_beside_a_capacity_is_flagged():
    index = PackIndex.from_mask(torch.ones(1, 3), count=2, capacity=4)
    with pytest.raises(ValueError, match="3 active slots, which do not fit"):
        index.check()


def test_tensors_that_do_not_fit_are_refused():
    index = PackIndex.from_mask(torch.ones(2, 3), capacity=4)
    with pytest.raises(ValueError, match="first two dimensions"):
        index.pack(torch.ones(3, 2))
    with pytest.raises(ValueError, match="one row per active slot of the mask, 4, got 3"):
        index.unpack(torch.ones(3))

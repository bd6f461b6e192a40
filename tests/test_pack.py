"""The pack operator against boolean indexing, bit for bit, and in every mode that torch runs it in."""

import hypothesis.strategies as st
import oracles
import pytest
import strategies
import torch
from hypothesis import given, settings
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from packdata.batches import PackingCollator
from packdata.kernels import NativePackOp
from packdata.kernels.registry import kernel_registry

pack = kernel_registry.get_op("pack")

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
RARE = (torch.complex32, torch.float4_e2m1fn_x2, torch.bits8, torch.bits16, torch.uint4, torch.int2)
DTYPES = (torch.bool, *INTEGERS, *UNSIGNED, *FLOAT8, *FLOATS, *RARE)
TAILS = [(), (3,), (2, 3), (0,), (2, 0)]
AS_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    # forward mode and inductor load parts of torch that use what torch has deprecated
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]


def random_bytes(shape, dtype, seed=0):
    """Every bit pattern may come up: NaN, infinities, negative zero."""
    width = dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*shape, width), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return raw[..., 0] > 127
    return raw.view(dtype).reshape(shape)


def bits(x):
    return x.contiguous().view(AS_BYTES[x.element_size()]) if x.numel() else x.shape


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or torch.equal(bits(a), bits(b)))


def by_indexing(x, mask):
    """``x[mask]``, through integers for the dtypes that boolean indexing lacks."""
    return (
        x.contiguous().view(AS_BYTES[x.element_size()]).reshape(x.shape + (() if x.element_size() < 16 else (2,)))[mask]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40)
@given(mask=strategies.masks(), tail=st.sampled_from(TAILS), seed=st.integers(0, 99))
def test_packed_rows_are_those_of_boolean_indexing_bit_for_bit(dtype, mask, tail, seed):
    x = random_bytes((*mask.shape, *tail), dtype, seed)
    packed, cu_seqlens = pack(x, mask)
    _, offsets = oracles.pack(torch.zeros(mask.shape), mask)
    assert packed.dtype == dtype
    assert packed.shape == (offsets[-1], *tail)
    assert torch.equal(by_indexing(packed, torch.ones(len(packed), dtype=torch.bool)), by_indexing(x, mask))
    assert cu_seqlens.dtype == torch.int64
    assert cu_seqlens.tolist() == offsets
    dense = pack.unpack(packed, mask, tail_shape=tail)
    assert dense.shape == x.shape
    assert same_bits(pack(dense, mask)[0], packed)
    assert not by_indexing(dense, ~mask).any()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex32, *FLOAT8[:4]], ids=str)
@settings(max_examples=40)
@given(mask=strategies.masks(), tail=st.sampled_from(TAILS), seed=st.integers(0, 99))
def test_gradients_are_those_of_boolean_indexing_bit_for_bit(dtype, mask, tail, seed):
    x = random_bytes((*mask.shape, *tail), dtype, seed)
    ours, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
    upstream = torch.randn((int(mask.sum()), *tail)).to(dtype)
    pack(ours, mask)[0].backward(upstream)
    reference[mask].backward(upstream)
    assert same_bits(ours.grad, reference.grad)
    rows = upstream.clone().requires_grad_()
    pack.unpack(rows, mask).backward(x)
    assert same_bits(rows.grad, x[mask])


MASKS = {
    "some": torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]),
    "all": torch.ones(3, 4, dtype=torch.int64),
    "none": torch.zeros(3, 4, dtype=torch.int64),
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


@each_mask
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *UNSIGNED, *FLOAT8[:4], *FLOATS], ids=str)
def test_what_is_not_zero_is_active(mask, dtype):
    x = torch.randn(3, 4, 2)
    for numbers in (mask, mask * 2):  # a {0, 2} mask counts slots, not what stands in them
        packed, cu_seqlens = pack(x, numbers.to(dtype))
        assert torch.equal(packed, x[mask.bool()])
        assert cu_seqlens.tolist() == oracles.pack(x, mask)[1]


def test_a_mask_of_any_sign_and_size_is_active():
    mask = torch.tensor([[-1.0, 0.0, 1e-30, -0.0, float("nan"), float("inf")]])
    assert pack(torch.arange(6)[None], mask)[0].tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize(
    ("rows", "mask", "kept"),
    [
        pytest.param(4, [[0, 1, 1, 0]], [1, 2], id="K8"),  # 0/1 are no row numbers
        pytest.param(5, [[1, 0, 1, 1, 0]], [0, 2, 3], id="L1"),  # a mask with a hole is no prefix
        pytest.param(12, [[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]], [2, 3, 7, 8, 9, 10], id="L9"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32], ids=str)
def test_rows_are_kept_by_mask(rows, mask, kept, dtype):
    mask = torch.tensor(mask, dtype=dtype)
    x = torch.arange(1.0, rows + 1).reshape(*mask.shape, 1)
    packed, _ = pack(x, mask)
    assert (packed.flatten() - 1).tolist() == kept
    back = pack.unpack(packed, mask).flatten()
    assert back.nonzero().flatten().tolist() == kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_empty_selection_stays_in_the_graph(dtype):  # L3
    x = torch.randn(2, 4, 3, dtype=dtype, requires_grad=True)
    packed, cu_seqlens = pack(x, torch.zeros(2, 4))
    assert packed.shape == (0, 3)
    assert cu_seqlens.tolist() == [0, 0, 0]
    dense = pack.unpack(packed, torch.zeros(2, 4))
    assert torch.equal(dense, torch.zeros(2, 4, 3, dtype=dtype))
    dense.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_strides_do_not_matter():  # L5
    mask = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]]).repeat_interleave(2, 1)[:, ::2]
    x = torch.randn(2, 4, 6).transpose(0, 1)[..., ::2]
    transposed_mask = mask.t().contiguous().t()
    assert not x.is_contiguous()
    assert not transposed_mask.is_contiguous()
    for some in (mask, transposed_mask, mask * 0, mask * 0 + 1):
        packed, _ = pack(x, some)
        assert packed.is_contiguous()
        assert torch.equal(packed, x.contiguous()[some.bool()])
        wide = torch.randn(len(packed), 6)[:, ::2]
        assert torch.equal(pack.unpack(wide, some)[some.bool()], wide)


def test_expanded_input_gives_a_gradient_of_its_own_shape():
    x = torch.randn(1, 4, 3, requires_grad=True)
    packed, _ = pack(x.expand(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1]]))
    packed.sum().backward()
    assert x.grad[0, :, 0].tolist() == [2, 1, 0, 1]


@each_mask
def test_results_are_copies(mask):
    x = torch.randn(3, 4, 2)
    packed, _ = pack(x, mask)
    before = packed.clone()
    x.zero_()
    assert torch.equal(packed, before)
    dense = pack.unpack(packed, mask)
    packed.add_(1)
    assert torch.equal(dense[mask.bool()], before)


def test_cu_seqlens_as_int32_on_request():
    _, cu_seqlens = pack(torch.zeros(2, 3), torch.ones(2, 3), cu_seqlens_dtype=torch.int32)
    assert cu_seqlens.dtype == torch.int32
    assert cu_seqlens.tolist() == [0, 3, 6]


def test_the_positions_that_predict_completion_tokens_are_packed():  # L10
    feature = {"input_ids": [1, 2, 3, 4], "completion_mask": [0, 0, 1, 1]}
    batch = PackingCollator()([feature])
    positions, _ = pack(batch.position_ids, batch.loss_mask)
    assert positions.tolist() == [1, 2]
    assert pack(batch.targets, batch.loss_mask)[0].tolist() == [3, 4]


# --- every mode of torch


def round_trip(x, mask):
    packed, cu_seqlens = pack(x, mask)
    return pack.unpack(packed.sin(), mask), cu_seqlens


@each_mask
def test_derivatives_of_every_order_and_mode(mask):
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(int(mask.sum()), 2, dtype=torch.float64, requires_grad=True)
    for function, argument in (
        (lambda x: pack(x, mask)[0], x),
        (lambda rows: pack.unpack(rows, mask), rows),
        (lambda x: round_trip(x, mask)[0], x),
    ):
        assert torch.autograd.gradcheck(function, argument, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, argument, check_fwd_over_rev=True)


@each_mask
def test_functional_transforms(mask):
    x = torch.randn(5, 3, 4, 2)
    active = mask.bool()[..., None]
    total = lambda x: round_trip(x, mask)[0].sum()  # noqa: E731
    expected = torch.where(active, x.cos(), 0.0)
    assert torch.equal(torch.vmap(lambda x: round_trip(x, mask)[0])(x), torch.where(active, x.sin(), 0.0))
    assert torch.equal(torch.func.grad(total)(x[0]), expected[0])
    assert torch.equal(torch.vmap(torch.func.grad(total))(x), expected)
    assert torch.equal(torch.func.jvp(lambda x: round_trip(x, mask)[0], (x[0],), (x[1],))[1], expected[0] * x[1])
    hessian = torch.func.hessian(total)(x[0]).reshape(24, 24)
    torch.testing.assert_close(hessian, torch.diag(torch.where(active, -x[0].sin(), 0.0).flatten()))


def test_a_batch_of_masks_has_no_common_size():
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(lambda mask: pack(torch.zeros(2, 3), mask)[0])(torch.ones(4, 2, 3))


@pytest.mark.parametrize(
    ("backend", "tail"), [("aot_eager", ()), ("aot_eager", (5,)), ("aot_eager", (2, 3)), ("inductor", (5,))], ids=str
)
def test_one_dynamic_graph_serves_every_mask(backend, tail):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(round_trip, fullgraph=True, backend=counter)
    for mask in [*MASKS.values()] * 2:
        x = torch.randn(3, 4, *tail, requires_grad=True)
        dense, cu_seqlens = compiled(x, mask)
        expected, offsets = round_trip(x, mask)
        torch.testing.assert_close(dense, expected)
        assert torch.equal(cu_seqlens, offsets)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (dense, expected)))
    assert counter.frame_count == 1


def test_fake_tensors_have_an_unknown_number_of_rows():
    with FakeTensorMode(shape_env=ShapeEnv()):
        x, mask = torch.randn(3, 4, 2, requires_grad=True), torch.ones(3, 4)
        packed, cu_seqlens = pack(x, mask)
        assert not isinstance(packed.shape[0], int)
        assert packed.shape[1:] == (2,)
        assert cu_seqlens.shape == (4,)
        dense = pack.unpack(packed, mask)
        dense.sum().backward()
        assert x.grad.shape == dense.shape == (3, 4, 2)


def test_an_exported_program_takes_every_mask():
    class Packed(torch.nn.Module):
        def forward(self, x, mask):
            return round_trip(x, mask)

    x = torch.randn(3, 4, 2)
    program = torch.export.export(Packed(), (x, MASKS["some"])).module()
    for mask in MASKS.values():
        assert torch.equal(program(x, mask)[0], round_trip(x, mask)[0])


def test_autocast_leaves_the_dtype_alone():  # L4
    x, mask = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[1, 0, 1], [0, 1, 0]])
    linear = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        packed, _ = pack(x, mask)
        assert packed.dtype == torch.float32
        dense = pack.unpack(linear(packed), mask)
        assert dense.dtype == torch.bfloat16
        assert torch.equal(dense, torch.where(mask[..., None] != 0, linear(x), 0.0))
    dense.float().sum().backward()
    assert x.grad.dtype == torch.float32


# --- bad input


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(2, 3, 4), torch.ones(6), r"mask must be 2-dimensional, \(B, S\), got shape \(6,\)"),
        (torch.zeros(2, 3, 4), torch.ones(2, 3, 4), "mask must be 2-dimensional"),
        (torch.zeros(2, 3, 4), torch.ones(3, 2), r"first two dimensions of x \(2, 3, 4\), got \(3, 2\)"),
        (torch.zeros(6), torch.ones(2, 3), "first two dimensions of x"),
        (torch.zeros(2, 3, device="meta"), torch.ones(2, 3), "mask must be on the device of x meta, got cpu"),
        ([[1, 2, 3]], torch.ones(1, 3), "x must be a tensor, got list: torch.as_tensor makes one"),
        (torch.zeros(1, 3), [[1, 0, 1]], "mask must be a tensor, got list: torch.as_tensor makes one"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(x, mask, message):
    with pytest.raises(ValueError, match=message):
        pack(x, mask)


@pytest.mark.parametrize(
    ("packed", "mask", "tail", "message"),
    [
        (
            torch.zeros(2, 4),
            torch.tensor([[1, 0, 1], [0, 1, 0]]),
            None,
            "one row per active slot of the mask, 3, got 2",
        ),
        (
            torch.zeros(4, 4),
            torch.tensor([[1, 0, 1], [0, 1, 0]]),
            None,
            "one row per active slot of the mask, 3, got 4",
        ),
        (torch.zeros(1, 4), torch.zeros(2, 3), None, "one row per active slot of the mask, 0, got 1"),
        (torch.zeros(7, 4), torch.ones(2, 3), None, "one row per active slot of the mask, 6, got 7"),
        (torch.zeros(3, 4), torch.tensor([[1, 0, 1], [0, 1, 0]]), (5,), r"tail_shape must be .*\(4,\), got \(5,\)"),
        (torch.zeros(3, 4), torch.tensor([[1, 0, 1], [0, 1, 0]]), (), r"tail_shape must be .*\(4,\), got \(\)"),
        (torch.zeros(()), torch.ones(1, 1), None, "packed must have rows"),
        (torch.zeros(3, 4), torch.ones(3), None, "mask must be 2-dimensional"),
        (torch.zeros(6, device="meta"), torch.ones(2, 3), None, "device of packed meta, got cpu"),
    ],
)
def test_packed_rows_that_do_not_fit_are_refused(packed, mask, tail, message):
    with pytest.raises(ValueError, match=message):
        pack.unpack(packed, mask, tail_shape=tail)


def test_a_packed_size_that_does_not_fit_is_refused_in_compiled_code_too():
    compiled = torch.compile(lambda packed, mask: pack.unpack(packed, mask), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.ones(4), MASKS["some"]), MASKS["some"].float())
    with pytest.raises((IndexError, RuntimeError), match=r"Number of indices \(12\)|u0"):
        compiled(torch.ones(4), MASKS["all"])


def test_cu_seqlens_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match=r"cu_seqlens_dtype must be torch.int64 or torch.int32, got torch.int16"):
        NativePackOp()(torch.zeros(1, 1), torch.ones(1, 1), cu_seqlens_dtype=torch.int16)

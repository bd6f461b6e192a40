"""The summed loss and its gradients against dense logits in float64."""

import hypothesis.strategies as st
import oracles
import pytest
import torch
from hypothesis import given, settings
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import embedding

from packdata.kernels import linear_cross_entropy
from packdata.losses import loss_scale

PLAIN = {}
EVERYTHING = {"softcap": 5.0, "temperature": 0.7, "z_loss": 1e-2}
OPTIONS = [PLAIN, {"softcap": 2.0}, {"temperature": 1.7}, {"z_loss": 0.1}, EVERYTHING]
OUTSIDE = r"targets must be tokens from 0 to 8, or -100 where there is none, got {} at \(0, 1\)"


def problem(*, shape=(3, 20), hidden=32, vocabulary=50, density=0.5, dtype=torch.float32, seed=0):
    """Tensors that ask for gradients, by name, in ``dtype``; and targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, vocabulary, shape, generator=generator)
    targets[torch.rand(shape, generator=generator) >= density] = -100
    tensors = {
        "hidden": torch.randn(*shape, hidden, generator=generator),
        "weight": torch.randn(vocabulary, hidden, generator=generator) / 2,
        "bias": torch.randn(vocabulary, generator=generator),
        "weights": torch.rand(shape, generator=generator),
    }
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}, targets


def loss_and_gradients(function, tensors, targets, **options):
    """The sum and its gradients by name, for an incoming gradient that is no power of two."""
    own = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    total = function(
        own["hidden"], own["weight"], targets, **{k: own[k] for k in ("bias", "weights") if k in own}, **options
    )
    (total * 0.37).backward()
    return {"total": total.detach()} | {name: tensor.grad for name, tensor in own.items()}


def ours(*arguments, **options):
    return linear_cross_entropy(*arguments, **options).total


def dense(*arguments, **options):
    return oracles.dense_head(*arguments, **options)[0]


def exact(tensors, targets, **options):
    return loss_and_gradients(
        dense, {k: v.double() for k, v in tensors.items()}, targets, dtype=torch.float64, **options
    )


def errors(results, reference):
    return {k: float((results[k].double() - reference[k]).norm() / reference[k].norm()) for k in reference}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("budget", [2**28, 50 * 8 * 3], ids=["one-chunk", "small-chunks"])
def test_float32_is_within_a_millionth_of_dense_float64(options, budget):
    tensors, targets = problem()
    results = loss_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options)
    assert max(errors(results, exact(tensors, targets, **options)).values()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("budget", [2**28, 50 * 12 * 2], ids=["one-chunk", "small-chunks"])
@pytest.mark.parametrize("options", [PLAIN, EVERYTHING], ids=str)
def test_low_precision_is_no_worse_than_dense_logits_with_a_float32_loss(dtype, budget, options):
    tensors, targets = problem(dtype=dtype)
    tensors["weights"] = tensors["weights"].float()
    reference = exact(tensors, targets, **options)
    mine = errors(loss_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options), reference)
    theirs = errors(loss_and_gradients(dense, tensors, targets, **options), reference)
    assert all(mine[name] <= theirs[name] for name in reference), (mine, theirs)


def test_many_small_chunks_are_as_good_as_one_at_a_size_that_shows():
    """A sum in bfloat16, or means of chunks, would be off by far: a true mean of 9.72 became 7.09 elsewhere."""
    tensors, targets = problem(shape=(1, 4096), hidden=16, vocabulary=64, density=1.0, dtype=torch.bfloat16)
    tensors = {name: tensors[name] for name in ("hidden", "weight")}
    reference = exact(tensors, targets)
    for budget in (64 * 6 * 16, 2**28):
        results = loss_and_gradients(ours, tensors, targets, max_logits_bytes=budget)
        found = errors(results, reference)
        assert found["total"] < 1e-6
        assert max(found.values()) < 4e-3  # half a unit in the last place of bfloat16


@settings(max_examples=60)
@given(
    rows=st.integers(0, 4),
    slots=st.integers(0, 5),
    vocabulary=st.integers(1, 7),
    density=st.sampled_from([0.0, 0.5, 1.0]),
    chunk=st.integers(1, 9),
    options=st.sampled_from(OPTIONS),
    wanted=st.sets(st.sampled_from(["bias", "weights"])),
    seed=st.integers(0, 99),
)
def test_every_shape_and_chunk_equals_dense_logits(rows, slots, vocabulary, density, chunk, options, wanted, seed):
    tensors, targets = problem(
        shape=(rows, slots), hidden=3, vocabulary=vocabulary, density=density, dtype=torch.float64, seed=seed
    )
    tensors = {name: tensor for name, tensor in tensors.items() if name in wanted | {"hidden", "weight"}}
    budget = chunk * vocabulary * 16
    results = loss_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options)
    for name, reference in exact(tensors, targets, **options).items():
        torch.testing.assert_close(results[name], reference, rtol=1e-10, atol=1e-12)


def test_gradients_equal_finite_differences():
    tensors, targets = problem(shape=(2, 4), hidden=3, vocabulary=5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda hidden, weight, bias, weights: ours(
            hidden, weight, targets, bias=bias, weights=weights, max_logits_bytes=5 * 16, **EVERYTHING
        ),
        tuple(tensors.values()),
    )


def test_a_second_derivative_raises_and_is_never_incomplete():
    tensors, targets = problem()
    total = ours(tensors["hidden"], tensors["weight"], targets)
    (gradient,) = torch.autograd.grad(total, tensors["hidden"], create_graph=True)
    penalty = gradient.square().sum() + tensors["hidden"].square().sum()
    with pytest.raises(RuntimeError, match="no second derivative: compute the logits"):
        penalty.backward()


def test_the_graph_can_be_used_twice():
    tensors, targets = problem()
    total = ours(tensors["hidden"], tensors["weight"], targets)
    first = torch.autograd.grad(total, tensors["weight"], retain_graph=True)[0].clone()
    assert torch.equal(torch.autograd.grad(3 * total, tensors["weight"])[0], 3 * first)


def test_functional_transforms_raise():
    tensors, targets = problem()
    hidden, weight = tensors["hidden"].detach(), tensors["weight"].detach()
    for transform, argument in ((torch.func.grad, weight), (torch.vmap, weight[None])):
        with pytest.raises(RuntimeError, match="functorch"):
            transform(lambda weight: ours(hidden, weight, targets))(argument)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (2, 0)], ids=str)
def test_without_a_target_the_head_has_a_zero_gradient(dtype, shape):  # D5
    head = torch.nn.Linear(4, 8, dtype=dtype)
    hidden = torch.full((*shape, 4), torch.nan, dtype=dtype, requires_grad=True)
    loss = linear_cross_entropy(hidden, head.weight, torch.full(shape, -100), bias=head.bias)
    assert loss.total.requires_grad
    assert loss.count == 0
    (loss.total * loss_scale(loss.count, averaged_over=2)).backward()
    assert loss.total == 0
    for tensor in (head.weight, head.bias, hidden):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_rows_without_a_target_do_not_leak():
    tensors, targets = problem()
    spoilt = tensors["hidden"].detach().masked_fill((targets == -100)[..., None], torch.nan)
    clean = loss_and_gradients(ours, tensors, targets)
    dirty = loss_and_gradients(ours, tensors | {"hidden": spoilt}, targets)
    assert all(torch.equal(clean[name], dirty[name]) for name in clean)


def test_extreme_and_masked_logits_stay_finite():
    hidden, weight = torch.tensor([[3e4, 0.0], [-3e4, 0.0]]), torch.eye(2)
    bias = torch.tensor([0.0, -torch.inf], requires_grad=True)  # the second token cannot come up
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 0]), bias=bias)
    loss.total.backward()
    assert loss.total == 0
    assert bias.grad.tolist() == [0, 0]


def test_a_weight_tied_to_the_embedding_collects_both_gradients():
    ids, targets = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 3, 4, -100]])
    tied = [torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2)]
    for weight, function in zip(tied, (ours, dense), strict=True):
        function(embedding(ids, weight), weight, targets).backward()
    torch.testing.assert_close(tied[0].grad, tied[1].grad)


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_rounds_operands_and_keeps_float32_gradients_of_parameters(hidden_dtype):
    tensors, targets = problem()
    hidden = tensors["hidden"].to(hidden_dtype)
    with torch.autocast("cpu", torch.bfloat16):
        results = loss_and_gradients(ours, tensors | {"hidden": hidden}, targets)
    rounded = {k: v.bfloat16().float() if k in ("hidden", "weight") else v for k, v in tensors.items()}
    reference = exact(rounded, targets)
    assert results["total"].dtype == results["weight"].dtype == torch.float32
    assert results["hidden"].dtype == hidden_dtype
    found = errors(results, reference)
    assert found["total"] < 1e-6
    assert found["weight"] < 1e-6
    assert found["hidden"] < 4e-3


def test_operands_of_two_dtypes_meet_in_the_wider():
    tensors, targets = problem()
    hidden = tensors["hidden"].bfloat16()
    total = ours(hidden, tensors["weight"], targets)
    assert torch.equal(total, ours(hidden.float(), tensors["weight"], targets))


def test_strides_do_not_matter():  # L5
    tensors, targets = problem()
    hidden = tensors["hidden"].detach().transpose(0, 1)
    weight = tensors["weight"].detach().t().contiguous().t()
    every_second = torch.stack([targets, targets], -1).flatten(1)[:, ::2].t()
    assert not every_second.is_contiguous()
    torch.testing.assert_close(ours(hidden, weight, every_second), ours(tensors["hidden"], weight, targets))


def test_only_what_needs_a_gradient_gets_one():
    tensors, targets = problem()
    weight = tensors["weight"].detach()
    ours(tensors["hidden"], weight, targets).backward()
    assert weight.grad is None
    with torch.no_grad():
        assert not ours(tensors["hidden"], tensors["weight"], targets).requires_grad


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.uint16], ids=str)
def test_targets_of_any_integer_dtype(dtype):
    tensors, targets = problem(density=1.0, vocabulary=200)
    targets[0, 0] = 156  # -100 as a byte
    arguments = tensors["hidden"], tensors["weight"]
    assert torch.equal(ours(*arguments, targets.to(dtype)), ours(*arguments, targets))


def test_a_known_number_of_targets_changes_nothing():
    tensors, targets = problem()
    arguments = tensors["hidden"], tensors["weight"], targets
    loss = linear_cross_entropy(*arguments, num_targets=int((targets != -100).sum()))
    assert torch.equal(loss.total, ours(*arguments))
    with pytest.raises(ValueError, match="count must be the number of active slots"):
        linear_cross_entropy(*arguments, num_targets=3)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_code_calls_it_as_it_is():
    counter = CompileCounter()
    compiled = torch.compile(lambda *arguments: 2 * ours(*arguments), backend=counter)
    for seed in range(8):
        tensors, targets = problem(seed=seed, density=seed / 8)
        arguments = tensors["hidden"], tensors["weight"]
        wanted = [torch.autograd.grad(f(*arguments, targets), arguments) for f in (compiled, lambda *a: 2 * ours(*a))]
        assert all(torch.equal(*pair) for pair in zip(*wanted, strict=True))
        if seed == 3:
            frames = counter.frame_count
    assert counter.frame_count == frames  # none per number of targets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(3, 4, dtype=torch.int64)}, r"targets must have the shape .*\(2, 3\), got \(3, 4\)"),
        ({"targets": torch.zeros(2, 3)}, "targets must be integers, got torch.float32"),
        ({"targets": [[1, 1, 1], [1, 1, 1]]}, "targets must be a tensor, got list: torch.as_tensor makes one"),
        ({"targets": torch.tensor([[0, 9, 1], [1, 1, 1]])}, OUTSIDE.format(9)),
        ({"targets": torch.tensor([[0, -1, 1], [1, 1, 1]])}, OUTSIDE.format(-1)),
        ({"weight": torch.zeros(9, 5)}, r"hidden must have shape \(..., H\) .* got \(2, 3, 4\) and \(9, 5\)"),
        ({"weight": torch.zeros(9, 4, device="meta")}, "weight must be on the device of hidden, cpu, got meta"),
        ({"bias": torch.zeros(8)}, r"bias must have shape \(9,\), got \(8,\)"),
        ({"weights": torch.ones(3)}, r"weights must have the shape of targets, \(2, 3\), got \(3,\)"),
        ({"softcap": 0.0}, "softcap must be positive and finite, or None for none, got 0"),
        ({"softcap": torch.inf}, "softcap must be positive and finite, or None for none, got inf"),
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"max_logits_bytes": 35}, "room for one row of 9 logits, 36 bytes here, got 35"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {
        "hidden": torch.zeros(2, 3, 4),
        "weight": torch.zeros(9, 4),
        "targets": torch.ones(2, 3).long(),
    } | change
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**arguments)

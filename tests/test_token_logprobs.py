"""Log-probabilities, entropies and their gradients against dense logits in float64."""

import hypothesis.strategies as st
import oracles
import pytest
import torch
from hypothesis import given, settings

from packdata.kernels import token_logprobs

PLAIN = {}
EVERYTHING = {"softcap": 5.0, "temperature": 0.7}
OPTIONS = [PLAIN, {"softcap": 2.0}, {"temperature": 1.7}, EVERYTHING]


def problem(*, shape=(3, 20), hidden=32, vocabulary=50, density=0.5, dtype=torch.float32, seed=0):
    """Tensors that ask for gradients, by name, in ``dtype``; and targets."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, vocabulary, shape, generator=generator)
    targets[torch.rand(shape, generator=generator) >= density] = -100
    tensors = {
        "hidden": torch.randn(*shape, hidden, generator=generator),
        "weight": torch.randn(vocabulary, hidden, generator=generator) / 2,
        "bias": torch.randn(vocabulary, generator=generator),
    }
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}, targets


def results_and_gradients(function, tensors, targets, **options):
    """Log-probabilities, entropies, and gradients by name of a sum that weighs every slot differently."""
    own = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    logprobs, entropy = function(own["hidden"], own["weight"], targets, bias=own.get("bias"), **options)
    slots = torch.linspace(-1, 2, targets.numel(), dtype=logprobs.dtype).reshape(targets.shape)
    (logprobs * slots + entropy * slots.flip(-1)).sum().backward()
    results = {"logprobs": logprobs.detach(), "entropy": entropy.detach()}
    return results | {name: tensor.grad for name, tensor in own.items()}


def ours(*arguments, **options):
    return token_logprobs(*arguments, entropy=True, **options)


def dense(*arguments, **options):
    return oracles.dense_head(*arguments, **options)[1:]


def exact(tensors, targets, **options):
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    return results_and_gradients(dense, wide, targets, dtype=torch.float64, **options)


def errors(results, reference):
    return {k: float((results[k].double() - reference[k]).norm() / reference[k].norm()) for k in reference}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("budget", [2**28, 50 * 12 * 3], ids=["one-chunk", "small-chunks"])
def test_float32_is_within_a_millionth_of_dense_float64(options, budget):
    tensors, targets = problem()
    results = results_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options)
    assert max(errors(results, exact(tensors, targets, **options)).values()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("budget", [2**28, 50 * 16 * 2], ids=["one-chunk", "small-chunks"])
@pytest.mark.parametrize("options", [PLAIN, EVERYTHING], ids=str)
def test_low_precision_is_no_worse_than_dense_logits_with_float32_probabilities(dtype, budget, options):
    tensors, targets = problem(dtype=dtype)
    reference = exact(tensors, targets, **options)
    mine = errors(results_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options), reference)
    theirs = errors(results_and_gradients(dense, tensors, targets, **options), reference)
    assert all(mine[name] <= theirs[name] for name in reference), (mine, theirs)


@settings(max_examples=60)
@given(
    rows=st.integers(0, 4),
    slots=st.integers(0, 5),
    vocabulary=st.integers(1, 7),
    density=st.sampled_from([0.0, 0.5, 1.0]),
    chunk=st.integers(1, 9),
    options=st.sampled_from(OPTIONS),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_shape_and_chunk_equals_dense_logits(rows, slots, vocabulary, density, chunk, options, bias, seed):
    tensors, targets = problem(
        shape=(rows, slots), hidden=3, vocabulary=vocabulary, density=density, dtype=torch.float64, seed=seed
    )
    tensors = {name: tensor for name, tensor in tensors.items() if bias or name != "bias"}
    budget = chunk * vocabulary * 24
    results = results_and_gradients(ours, tensors, targets, max_logits_bytes=budget, **options)
    for name, reference in exact(tensors, targets, **options).items():
        torch.testing.assert_close(results[name], reference, rtol=1e-10, atol=1e-12)


def test_gradients_equal_finite_differences():
    tensors, targets = problem(shape=(2, 4), hidden=3, vocabulary=5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda hidden, weight, bias: ours(hidden, weight, targets, bias=bias, max_logits_bytes=5 * 24, **EVERYTHING),
        tuple(tensors.values()),
    )


def test_the_entropy_is_extra():
    tensors, targets = problem()
    alone = token_logprobs(tensors["hidden"], tensors["weight"], targets)
    logprobs, entropy = ours(tensors["hidden"], tensors["weight"], targets)
    assert torch.equal(alone, logprobs)
    assert not alone[targets == -100].any()
    assert not entropy[targets == -100].any()
    for result in (alone, logprobs):
        tensors["hidden"].grad = None
        result.sum().backward()
        torch.testing.assert_close(tensors["hidden"].grad, dense_gradient(tensors, targets), rtol=1e-5, atol=1e-6)


def dense_gradient(tensors, targets):
    hidden = tensors["hidden"].detach().requires_grad_()
    return torch.autograd.grad(dense(hidden, tensors["weight"], targets)[0].sum(), hidden)[0]


def test_a_gradient_that_depends_on_the_result():
    """A policy gradient: the factor of each log-probability comes from the log-probabilities."""
    tensors, targets = problem()
    both = [{name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()} for _ in range(2)]
    for own, function in zip(both, (ours, dense), strict=True):
        logprobs, entropy = function(own["hidden"], own["weight"], targets)
        ratio = (logprobs - logprobs.detach() + 0.1).exp()
        (torch.minimum(ratio * 2, ratio.clamp(0.8, 1.2) * 2) - 0.1 * entropy).sum().backward()
    torch.testing.assert_close(both[0]["hidden"].grad, both[1]["hidden"].grad, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_raises():
    tensors, targets = problem()
    logprobs, _ = ours(tensors["hidden"], tensors["weight"], targets)
    (gradient,) = torch.autograd.grad(logprobs.sum(), tensors["hidden"], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: compute the logits"):
        (gradient.square().sum() + tensors["hidden"].sum()).backward()


def test_the_graph_can_be_used_twice():
    tensors, targets = problem()
    logprobs = token_logprobs(tensors["hidden"], tensors["weight"], targets)
    first, second = (
        torch.autograd.grad(logprobs.sum(), tensors["weight"], retain_graph=retain)[0] for retain in (True, False)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (2, 0)], ids=str)
def test_without_a_target_everything_is_zero(shape):
    hidden = torch.full((*shape, 4), torch.nan, requires_grad=True)
    weight = torch.ones(8, 4, requires_grad=True)
    logprobs, entropy = ours(hidden, weight, torch.full(shape, -100))
    (logprobs.sum() + entropy.sum()).backward()
    for tensor in (logprobs, entropy, hidden.grad, weight.grad):
        assert torch.equal(tensor, torch.zeros_like(tensor))


def test_a_token_that_cannot_come_up_leaves_the_entropy_finite():
    bias = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    logprobs, entropy = ours(torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([0]), bias=bias)
    (logprobs + entropy).sum().backward()
    assert entropy.tolist() == pytest.approx([torch.tensor(2.0).log().item()])
    assert bias.grad.tolist() == pytest.approx([0.5, -0.5, 0.0])


def test_autocast_rounds_operands_and_keeps_float32_results():
    tensors, targets = problem()
    with torch.autocast("cpu", torch.bfloat16):
        results = results_and_gradients(ours, tensors, targets)
    rounded = {k: v.bfloat16().float() if k in ("hidden", "weight") else v for k, v in tensors.items()}
    assert {result.dtype for result in results.values()} == {torch.float32}
    assert max(errors(results, exact(rounded, targets)).values()) < 1e-6


def test_a_frozen_head_gets_no_gradient():
    tensors, targets = problem()
    weight = tensors["weight"].detach()
    token_logprobs(tensors["hidden"], weight, targets).sum().backward()
    assert weight.grad is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.tensor([[0, 9, 1], [1, 1, 1]])}, r"tokens from 0 to 8, or -100 .* got 9 at \(0, 1\)"),
        ({"targets": torch.zeros(2, 4, dtype=torch.int64)}, "targets must have the shape of hidden"),
        ({"temperature": -1.0}, r"temperature must be positive, got -1\.0"),
        ({"max_logits_bytes": 71, "entropy": True}, "room for one row of 9 logits, 72 bytes here, got 71"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"hidden": torch.zeros(2, 3, 4), "weight": torch.zeros(9, 4), "targets": torch.ones(2, 3).long()}
    with pytest.raises(ValueError, match=message):
        token_logprobs(**arguments | change)

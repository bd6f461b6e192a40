"""Cross-entropy from hidden states, with the gradients made in the forward pass.

For one target t with logits x and factor w ::

    loss        = w · (lse − x_t + z · lse²)            lse = log Σ exp x
    d loss/d x  = w · ((1 + 2 · z · lse) · p − [t])     p   = exp(x − lse)

Once a chunk's logits are there, their gradient is one more pass over the same buffer, and its products with the weight
and the hidden states are all that the backward pass needs. So the forward pass makes the gradients of the *sum*, and
the backward pass only multiplies them with the sum's own gradient. The logits are made once; making them again costs
1.3 times the time of dense logits when every slot has a target, where this takes 0.9.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from packdata.kernels.gradients import ProjectionGradients, first_order_only
from packdata.kernels.head import (
    MAX_LOGITS_BYTES,
    Head,
    apply_untraced,
    exponentiate_,
    no_autocast,
    or_nan,
    pack_targets,
)
from packdata.losses import LossSum


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    z_loss: float = 0.0,
    weights: Tensor | None = None,
    num_targets: int | None = None,
    max_logits_bytes: int = MAX_LOGITS_BYTES,
) -> LossSum:
    """Project hidden states on the vocabulary and add up the cross-entropy, never holding all logits.

    Args:
        hidden: Hidden states, floating point, shape ``(..., H)``.
        weight: The ``lm_head``'s weight, shape ``(vocabulary, H)``; may be tied to the embedding.
        targets: The token that each slot must predict (shifted), integers, shape ``(...)``; ``IGNORE_INDEX`` for none.
        bias: Shape ``(vocabulary,)``.
        softcap: Logits become ``softcap * tanh(logits / softcap)``.
        temperature: Logits are then divided by it.
        z_loss: Factor of lse², which keeps the logits from drifting.
        weights: A factor per slot, shape ``(...)``, as ``target_weights`` gives; differentiable.
        num_targets: How many targets there are, where the host knows (``batch.num_targets``): then it never waits for
            the device. A wrong number raises on a CPU and makes the total NaN elsewhere; targets outside the vocabulary
            fail in the kernel there.
        max_logits_bytes: The most bytes for all buffers of the vocabulary's width together.

    Returns:
        The sum Σ weight · (nll + z_loss · lse²) in float32 (float64 from float64), connected to the graph even without
        a target, and the number of targets. A second derivative raises: ``token_logprobs`` has none either.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit, a target is outside the vocabulary, or the budget has no
            room for one row.

    Example:
        >>> hidden, weight = torch.zeros(1, 3, 4), torch.zeros(8, 4)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([[5, -100, 1]]))
        >>> loss.total / loss.count  # log 8
        tensor(2.0794)
    """
    head = Head.of(hidden, weight, softcap=softcap, temperature=temperature, max_logits_bytes=max_logits_bytes)
    index, rows, packed_targets = pack_targets(hidden, weight, targets, bias=bias, num_targets=num_targets)
    factors = None if weights is None else index.pack(_like_targets(weights, targets)).to(head.accumulate)
    total = apply_untraced(
        _SummedCrossEntropy, rows, weight, bias, factors, packed_targets, z_loss, head, torch.is_grad_enabled()
    )
    return LossSum(or_nan(total, index), index.size)


def _like_targets(weights: Tensor, targets: Tensor) -> Tensor:
    if weights.shape != targets.shape:
        raise ValueError(f"weights must have the shape of targets, {tuple(targets.shape)}, got {tuple(weights.shape)}")
    if weights.device != targets.device:
        raise ValueError(f"weights must be on the device of targets, {targets.device}, got {weights.device}")
    return weights.reshape(1, -1)


class _SummedCrossEntropy(torch.autograd.Function):
    """The weighted sum over packed rows; its backward scales what the forward made."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: Tensor | None,
        targets: Tensor,
        z_loss: float,
        head: Head,
        with_graph: bool,
    ) -> Tensor:
        wanted = [with_graph and needed for needed in ctx.needs_input_grad[:3]]
        losses, gradients = _losses_and_gradients(wanted, rows, weight, bias, factors, targets, z_loss, head)
        ctx.save_for_backward(rows, weight, bias, factors, targets, losses)
        ctx.z_loss, ctx.head, ctx.gradients = z_loss, head, gradients
        return losses.sum() if factors is None else (losses * factors).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, factors, targets, losses = ctx.saved_tensors
        made, ctx.gradients = ctx.gradients, None  # handed on and scaled in place: there is no second copy of them
        if made is None:  # the graph was retained, and this is not the first pass
            wanted = ctx.needs_input_grad[:3]
            _, made = _losses_and_gradients(wanted, rows, weight, bias, factors, targets, ctx.z_loss, ctx.head)
        inputs = (rows, weight, bias, factors)
        made = [*made, losses.clone() if ctx.needs_input_grad[3] else None]
        return (
            *(_scaled(x, unit, gradient, inputs) for x, unit in zip(inputs, made, strict=True)),
            None,
            None,
            None,
            None,
        )


def _scaled(x: Tensor | None, unit: Tensor | None, gradient: Tensor, inputs: Sequence[Tensor | None]) -> Tensor | None:
    if x is None or unit is None:
        return None
    with_graph = torch.is_grad_enabled()
    scaled = (unit * gradient if with_graph else unit.mul_(gradient)).to(x.dtype)
    return first_order_only(scaled, *inputs) if with_graph else scaled


def _losses_and_gradients(
    wanted: Sequence[bool],
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factors: Tensor | None,
    targets: Tensor,
    z_loss: float,
    head: Head,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return each row's loss, without its factor, and the gradients of the weighted sum."""
    losses = rows.new_empty(len(rows), dtype=head.accumulate)
    gradients = ProjectionGradients((rows, weight, bias), wanted, head)
    with torch.no_grad(), no_autocast(rows.device):
        operand = head.operand(weight)
        for part in head.chunks(len(rows), len(weight)):
            chunk = head.operand(rows[part])
            wide, slope = head.logits(chunk, operand, bias)
            log_probability, lse, total = exponentiate_(wide, targets[part])
            losses[part] = (z_loss * lse.square() - log_probability)[:, 0]
            if gradients:
                factor = torch.ones_like(lse) if factors is None else factors[part, None]
                wide.mul_(factor * (1 + 2 * z_loss * lse) / total).scatter_add_(1, targets[part, None], -factor)
                gradients.add(head.raw_gradient(wide, slope), part, chunk, operand)
        return losses, gradients.finish()

"""Log-probabilities of the targets, and entropies, from hidden states.

For logits x, p = softmax(x) and a target t ::

    logprob = x_t − lse           d logprob/d x = [t] − p
    entropy = −Σ p log p          d entropy/d x = −p · (log p + entropy)

What multiplies them is not known before the backward pass (in a policy gradient it depends on the log-probabilities
themselves), so that pass makes each chunk's logits a second time rather than keep them all.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

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


@overload
def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropy: Literal[False] = False,
    num_targets: int | None = None,
    max_logits_bytes: int = MAX_LOGITS_BYTES,
) -> Tensor: ...


@overload
def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropy: Literal[True],
    num_targets: int | None = None,
    max_logits_bytes: int = MAX_LOGITS_BYTES,
) -> tuple[Tensor, Tensor]: ...


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropy: bool = False,
    num_targets: int | None = None,
    max_logits_bytes: int = MAX_LOGITS_BYTES,
) -> Tensor | tuple[Tensor, Tensor]:
    """Project hidden states on the vocabulary and return each target's log-probability, never holding all logits.

    Args:
        hidden: Hidden states, floating point, shape ``(..., H)``.
        weight: The ``lm_head``'s weight, shape ``(vocabulary, H)``; may be tied to the embedding.
        targets: The token that each slot must predict (shifted), integers, shape ``(...)``; ``IGNORE_INDEX`` for none.
        bias: Shape ``(vocabulary,)``.
        softcap: Logits become ``softcap * tanh(logits / softcap)``.
        temperature: Logits are then divided by it.
        entropy: Whether to return the entropy of each slot's distribution too.
        num_targets: As for ``linear_cross_entropy``; a wrong number makes the result NaN where it does not raise.
        max_logits_bytes: The most bytes for all buffers of the vocabulary's width together.

    Returns:
        Log-probabilities (nats), float32 (float64 from float64), the shape of ``targets``, 0 where there is none; with
        ``entropy``, also the entropies (nats), alike. Both carry gradients; a second derivative raises.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit, a target is outside the vocabulary, or the budget has no
            room for one row.

    Example:
        >>> token_logprobs(torch.zeros(1, 3, 4), torch.zeros(8, 4), torch.tensor([[5, -100, 1]]))
        tensor([[-2.0794,  0.0000, -2.0794]])
    """
    head = Head.of(hidden, weight, softcap=softcap, temperature=temperature, max_logits_bytes=max_logits_bytes)
    index, rows, packed_targets = pack_targets(hidden, weight, targets, bias=bias, num_targets=num_targets)
    packed = apply_untraced(_LogProbabilities, rows, weight, bias, packed_targets, entropy, head)
    results = index.unpack(or_nan(packed, index)).reshape(*targets.shape, 2)
    return (results[..., 0], results[..., 1]) if entropy else results[..., 0]


class _LogProbabilities(torch.autograd.Function):
    """Log-probability and entropy (0 if not wanted) per packed row, shape ``(rows, 2)``."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, entropy: bool, head: Head
    ) -> Tensor:
        result = rows.new_zeros(len(rows), 2, dtype=head.accumulate)
        sums = rows.new_empty(len(rows), 1, dtype=head.accumulate)
        with no_autocast(rows.device):
            operand = head.operand(weight)
            for part in head.chunks(len(rows), len(weight), more_buffers=entropy):
                wide, _ = head.logits(head.operand(rows[part]), operand, bias)
                result[part, :1], sums[part], total = exponentiate_(wide, targets[part])
                if entropy:
                    result[part, 1] = torch.special.entr(wide.div_(total)).sum(1)
        ctx.save_for_backward(rows, weight, bias, targets, sums, result)
        ctx.entropy, ctx.head = entropy, head
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors[:3]
        wanted = ctx.needs_input_grad[:3]
        with torch.no_grad(), no_autocast(gradient.device):
            made = _gradients(wanted, gradient, ctx.head, ctx.entropy, *ctx.saved_tensors)
        gradients = [
            None if x is None or made_of_x is None else first_order_only(made_of_x.to(x.dtype), gradient, *inputs)
            for x, made_of_x in zip(inputs, made, strict=True)
        ]
        return *gradients, None, None, None


def _gradients(
    wanted: Sequence[bool],
    gradient: Tensor,
    head: Head,
    entropy: bool,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    sums: Tensor,
    result: Tensor,
) -> list[Tensor | None]:
    """Make the logits again, chunk by chunk, and carry the incoming gradient through them."""
    gradients = ProjectionGradients((rows, weight, bias), wanted, head)
    operand = head.operand(weight)
    for part in head.chunks(len(rows), len(weight), more_buffers=entropy):
        chunk = head.operand(rows[part])
        wide, slope = head.logits(chunk, operand, bias)
        of_logprob, of_entropy = gradient[part, :1], gradient[part, 1:]
        wide.sub_(sums[part]).exp_()
        surprise = torch.special.entr(wide).mul_(of_entropy) if entropy else None
        wide.mul_(-of_logprob - of_entropy * result[part, 1:])
        if surprise is not None:
            wide.add_(surprise)
        wide.scatter_add_(1, targets[part, None], of_logprob)
        gradients.add(head.raw_gradient(wide, slope), part, chunk, operand)
    return gradients.finish()

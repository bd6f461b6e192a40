"""A sum of token losses, with the number of targets that it is to be divided by."""

from typing import NamedTuple

import torch
from torch import Tensor


class LossSum(NamedTuple):
    """A sum of token losses and how many targets went into it; adds up with ``+`` and ``sum``.

    A named tuple, so that DDP, FSDP and Accelerate find its tensors where a model returns one.

    Attributes:
        total: The sum, 0-dimensional, float32 (float64 from float64 losses). It has a graph even where nothing was
            summed: its gradients are then zero, so that no rank leaves its backward out.
        count: The number of targets: a Python int, or a 0-dimensional tensor where the host does not know it.

    Example:
        >>> first, second = LossSum(torch.tensor(6.0), 3), LossSum(torch.tensor(4.0), 1)
        >>> total, count = first + second
        >>> total / count
        tensor(2.5000)
    """

    total: Tensor
    count: int | Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody misses here

    def __add__(self, other: object) -> "LossSum":
        if not isinstance(other, LossSum):
            return NotImplemented
        return LossSum(self.total + other.total, self.count + other.count)

    def __radd__(self, other: object) -> "LossSum":
        return self if other == 0 else NotImplemented  # `sum` begins with 0


def masked_sum(token_losses: Tensor, loss_mask: Tensor, weights: Tensor | None = None) -> LossSum:
    """Add up the losses of the slots that predict a target: Σ weightᵢ · lossᵢ over the mask.

    Args:
        token_losses: Loss per slot (nats), any shape, floating point.
        loss_mask: Which slots count, the same shape; bool or numbers, what is not zero is included.
        weights: A factor per slot, the same shape; see ``target_weights``, which also gives the count to divide by.

    Returns:
        The sum and the number of included slots, both on the device; nothing waits for it. What stands in excluded
        slots does not matter, NaN included, and its gradient is zero.

    Raises:
        ValueError: If the shapes or devices differ.

    Example:
        >>> masked_sum(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([True, True, False]))
        LossSum(total=tensor(4.), count=tensor(2))
    """
    _require_like(loss_mask, token_losses, "loss_mask")
    included = loss_mask != 0
    losses = token_losses.to(torch.promote_types(token_losses.dtype, torch.float32))
    kept = torch.where(included, losses, 0.0)
    if weights is not None:
        _require_like(weights, token_losses, "weights")
        kept = kept * torch.where(included, weights.to(losses.dtype), 0.0)
    return LossSum(kept.sum(), included.sum())


def _require_like(given: Tensor, token_losses: Tensor, name: str) -> None:
    if given.shape != token_losses.shape:
        raise ValueError(
            f"{name} must have the shape of token_losses, {tuple(token_losses.shape)}, got {tuple(given.shape)}"
        )
    if given.device != token_losses.device:
        raise ValueError(f"{name} must be on the device of token_losses, {token_losses.device}, got {given.device}")

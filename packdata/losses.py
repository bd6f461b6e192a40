"""Sums and counts; the mean is made once per step.

The loss of a step is ``sum of all included token losses / number of included targets``, over every micro-batch and rank.
A mean per micro-batch or per rank cannot be put right afterwards, so nothing here returns one: losses are sums with
their counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossSum:
    """A sum of token losses with its graph, and how many targets went into it.

    Attributes:
        total: The sum, 0-dimensional, at least float32, connected to the graph even where nothing was summed.
        count: The number of targets, a Python int or a 0-dimensional tensor on the device of ``total``.
    """

    total: Tensor
    count: int | Tensor

    def __add__(self, other: "LossSum") -> "LossSum":
        return LossSum(self.total + other.total, self.count + other.count)

    def __radd__(self, other: int) -> "LossSum":
        if other != 0:
            return NotImplemented
        return self  # `sum(losses)` starts from 0


def masked_sum(token_losses: Tensor, loss_mask: Tensor, weights: Tensor | None = None) -> LossSum:
    """Sum the losses of the slots that hold a target."""
    if token_losses.shape != loss_mask.shape:
        raise ValueError(
            f"loss_mask must have the shape of token_losses {tuple(token_losses.shape)}, got {tuple(loss_mask.shape)}"
        )
    included = loss_mask != 0
    losses = token_losses.to(torch.promote_types(token_losses.dtype, torch.float32))
    kept = torch.where(included, losses, 0)
    if weights is not None:
        kept = kept * torch.where(included, weights, 0)
    return LossSum(kept.sum(), included.sum())


def global_count(counts: int | Tensor | Iterable[int | Tensor], group: dist.ProcessGroup | None = None) -> int | Tensor:
    """Add up the counts of all micro-batches and all ranks."""
    total = counts if isinstance(counts, int | Tensor) else sum(counts)
    if not (dist.is_available() and dist.is_initialized()):
        return total
    reduced = torch.as_tensor(total, dtype=torch.int64).clone()
    dist.all_reduce(reduced, group=group)
    return reduced if isinstance(total, Tensor) else int(reduced)


def loss_scale(count: int | Tensor, *, averaged_over: int, extra_divisor: int = 1) -> float | Tensor:
    """Say what to multiply every micro-batch's sum with before its backward: W·D / max(N, 1)."""
    at_least_one = count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
    return averaged_over * extra_divisor / at_least_one

"""From sums to the mean of the whole step, across micro-batches and ranks.

Let N be the targets of the whole step (all micro-batches of all data- and context-parallel ranks), W the ranks whose
gradients are averaged, and D whatever else the framework divides by. Then ::

    (loss_sum.total * W * D / max(N, 1)).backward()

in every micro-batch of every rank gives the gradient that one process would get from Σ loss / N. Without W it is W
times too small; means per micro-batch or rank give the targets of short ones too much weight.

==================================  ======================================  ====================
framework                           W                                       D
==================================  ======================================  ====================
one process, own loop               1                                       1
all-reduce by hand, summing         1                                       1
DDP                                 its world size                          1
FSDP2 ``fully_shard``               its mesh's size (shard × replicate)     1
Accelerate                          ``accelerator.num_processes``           accumulation steps
DeepSpeed                           the data-parallel world size            accumulation steps
Lightning                           as its strategy (DDP, FSDP)             accumulation steps
==================================  ======================================  ====================

Tensor-parallel ranks hold the same targets: they count once, and are never part of W. For the log, Σ total / N, without
W and D. N must be known before the first backward; where it is not, backward the bare sums and let ``scale_gradients``
multiply with W·D/N before the clipping.
"""

from collections.abc import Iterable
from typing import Any, SupportsInt

import torch
import torch.distributed as dist
from torch import Tensor

from packdata.losses.sums import LossSum


def global_count(counts: SupportsInt | Iterable[SupportsInt], group: dist.ProcessGroup | None = None) -> int | Tensor:
    """Add up the targets of a step: over its micro-batches, then over the ranks.

    Args:
        counts: Targets of this rank: one number, or one per micro-batch; Python ints or tensors.
        group: The data-parallel (and context-parallel) process group; None for all ranks. Every rank of it must call.
            Without ``torch.distributed``, the sum of ``counts``.

    Returns:
        N: a Python int if the counts were host numbers, else a 0-dimensional tensor, for which nothing waits.

    Raises:
        ValueError: If a host number is negative or not whole, or a ``LossSum`` stands in place of its count.

    Example:
        >>> global_count([3, 0, 4])
        7
    """
    total = _total(counts)
    if not (dist.is_available() and dist.is_initialized()):
        return total
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    reduced = total.clone() if isinstance(total, Tensor) else torch.tensor(total, device=device)
    dist.all_reduce(reduced, group=group)
    return reduced if isinstance(total, Tensor) else int(reduced)


def loss_scale(count: int | Tensor, *, averaged_over: int, extra_divisor: int = 1) -> float | Tensor:
    """Return W·D / max(N, 1): what to multiply each micro-batch's sum with before its backward.

    Args:
        count: N, the targets of the whole step (``global_count``).
        averaged_over: W, the ranks whose gradients are averaged.
        extra_divisor: D, what else the framework divides by, such as accumulation steps; see the module's table.

    Raises:
        ValueError: If ``averaged_over`` or ``extra_divisor`` is below 1, or a host ``count`` is negative.

    Example:
        >>> loss_scale(6, averaged_over=2)
        0.3333333333333333
    """
    for name, number in (("averaged_over", averaged_over), ("extra_divisor", extra_divisor)):
        if not number >= 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if isinstance(count, Tensor):
        precise = torch.float32 if count.device.type == "mps" else torch.float64
        return averaged_over * extra_divisor / count.clamp(min=1).to(precise)
    if not count >= 0:
        raise ValueError(f"count must not be negative, got {count}")
    return averaged_over * extra_divisor / max(count, 1)


def scale_gradients(parameters: Tensor | Iterable[Tensor], factor: float | Tensor) -> None:
    """Multiply gradients in place with ``factor``, after the step's last backward and before clipping.

    Args:
        parameters: Tensors with or without a ``grad``, sharded ones included; a repeated (tied) one is scaled once.
        factor: W·D/N, from ``loss_scale``.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> (3 * weight).sum().backward()
        >>> scale_gradients([weight], loss_scale(6, averaged_over=1))
        >>> weight.grad
        tensor([0.5000, 0.5000])
    """
    each = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = {id(parameter.grad): parameter.grad for parameter in each if parameter.grad is not None}
    with torch.no_grad():
        for gradient in gradients.values():
            to_local = getattr(gradient, "to_local", None)  # a DTensor takes no plain tensor as a factor
            (to_local() if to_local else gradient).mul_(factor)


def _total(counts: Any) -> int | Tensor:
    several = isinstance(counts, Iterable) and not isinstance(counts, Tensor | LossSum)
    total: int | Tensor = sum(map(_one_count, counts if several else [counts]))
    return total


def _one_count(count: Any) -> int | Tensor:
    if isinstance(count, Tensor):
        return count.sum()  # int64 from any integers, where adding up uint8 would wrap around
    if isinstance(count, LossSum):
        raise ValueError("counts must be numbers of targets, got a LossSum: give its .count")
    whole = int(count)
    if whole != count or whole < 0:
        raise ValueError(f"counts must be whole numbers of targets, got {count}; sums of weights travel as tensors")
    return whole

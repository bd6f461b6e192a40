"""The ``lm_head``, a few rows at a time: what the loss and the log-probabilities share.

Logits are as wide as the vocabulary, so they, and not the hidden states, fill the memory. Rows without a target are
packed away before the projection, and the others go through it in chunks whose buffers of that width fit a byte budget
together.

Precision: operands have the dtype that ``F.linear`` would compute in (autocast's where that is on), products and
everything after them are float32 (float64 from float64). CUDA multiplies low precision with float32 results; elsewhere
the operands are widened first, which loses nothing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from packdata.kernels.index import PackIndex, require_tensors
from packdata.layout import IGNORE_INDEX

MAX_LOGITS_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How hidden states become logits: projection → softcap → temperature.

    Attributes:
        softcap: Logits become ``softcap * tanh(logits / softcap)``; None to leave them.
        temperature: Logits are then divided by it.
        max_logits_bytes: The most bytes for all buffers of the vocabulary's width together.
        compute: The dtype of the operands.
        accumulate: The dtype of products, sums and gradients.
        device: Where they are.
    """

    softcap: float | None
    temperature: float
    max_logits_bytes: int
    compute: torch.dtype
    device: torch.device
    accumulate: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ValueError(f"softcap must be positive and finite, or None for none, got {self.softcap}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        object.__setattr__(self, "accumulate", torch.promote_types(self.compute, torch.float32))

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, **options: Any) -> "Head":
        """Read dtype and device off the tensors: autocast's dtype where it is on, else the wider of the two."""
        require_tensors(hidden=hidden, weight=weight)
        compute = torch.promote_types(hidden.dtype, weight.dtype)
        if torch.is_autocast_enabled(hidden.device.type) and compute != torch.float64:
            compute = torch.get_autocast_dtype(hidden.device.type)
        return cls(compute=compute, device=hidden.device, **options)

    def operand(self, x: Tensor) -> Tensor:
        """Round to the compute dtype, and widen where the device cannot multiply it with a wide result."""
        rounded = x.to(self.compute)
        return rounded if self.device.type == "cuda" else rounded.to(self.accumulate)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a @ b`` of two operands in the accumulate dtype."""
        if a.dtype == self.accumulate:
            return a @ b
        if torch.version.hip:
            return (a @ b).to(self.accumulate)
        return torch.mm(a, b, out_dtype=self.accumulate)

    def logits(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the logits of some rows, and what the gradient of the softcap multiplies with (None for 1)."""
        logits = self.product(rows, weight.t())
        if bias is not None:
            logits += bias
        slope = None
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_()
            slope = logits.square().neg_().add_(1)
            logits.mul_(self.softcap)
        if self.temperature != 1:
            logits.div_(self.temperature)
        return logits, slope

    def raw_gradient(self, gradient: Tensor, slope: Tensor | None) -> Tensor:
        """Carry a gradient, in place, from the logits back through temperature and softcap to the projection."""
        if self.temperature != 1:
            gradient.div_(self.temperature)
        return gradient if slope is None else gradient.mul_(slope)

    def chunks(self, rows: int, vocabulary: int, more_buffers: int = 0) -> Iterator[slice]:
        """Cut rows so that the logits, and ``more_buffers`` like them, stay within the budget."""
        wide = self.accumulate.itemsize * (1 + (self.softcap is not None) + more_buffers)
        narrow = self.compute.itemsize if self.compute != self.accumulate else 0
        row_bytes = vocabulary * (wide + narrow)
        step = int(self.max_logits_bytes // max(row_bytes, 1))
        if step < 1:
            raise ValueError(
                f"max_logits_bytes must have room for one row of {vocabulary} logits, {row_bytes} bytes here, "
                f"got {self.max_logits_bytes}"
            )
        return (slice(start, start + step) for start in range(0, rows, step))


def no_autocast(device: torch.device) -> torch.autocast:
    """Keep autocast from rounding what was widened on purpose."""
    return torch.autocast(device.type, enabled=False)


def pack_targets(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None, num_targets: int | None
) -> tuple[PackIndex, Tensor, Tensor]:
    """Check the four against each other, and pack the rows that have a target.

    Returns:
        Where they were, all slots in one row; the rows, shape ``(rows, H)``; and their targets, int64.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit, or a target is no token of the vocabulary.
    """
    require_tensors(targets=targets)
    _require_shapes(hidden, weight, targets, bias)
    _require_devices(hidden, weight=weight, targets=targets, bias=bias)
    signed = targets.to(torch.int64).reshape(1, -1)  # uint8 would take 156 for IGNORE_INDEX
    index = PackIndex.from_mask(signed != IGNORE_INDEX, count=num_targets)
    if not index.fixed:  # else looking at the targets would wait for the device, whose kernel asserts
        _require_vocabulary(signed.view(targets.shape), weight.shape[0])
    return index, index.pack(hidden.reshape(1, targets.numel(), hidden.shape[-1])), index.pack(signed)


def _require_shapes(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> None:
    if weight.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            "hidden must have shape (..., H) and weight (vocabulary, H), "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets must have the shape of hidden without its last, {tuple(hidden.shape[:-1])}, "
            f"got {tuple(targets.shape)}"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"targets must be integers, got {targets.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape {tuple(weight.shape[:1])}, got {tuple(bias.shape)}")


def _require_devices(hidden: Tensor, **others: Tensor | None) -> None:
    for name, tensor in others.items():
        if hasattr(tensor, "to_local"):
            raise ValueError(
                f"{name} must be a whole tensor, got a DTensor: call this inside the forward of the module that "
                "fully_shard wraps, where its parameters are gathered"
            )
        if tensor is not None and tensor.device != hidden.device:
            raise ValueError(f"{name} must be on the device of hidden, {hidden.device}, got {tensor.device}")


def _require_vocabulary(targets: Tensor, vocabulary: int) -> None:
    outside = ((targets < 0) & (targets != IGNORE_INDEX)) | (targets >= vocabulary)
    if outside.any():
        where = tuple(outside.nonzero()[0].tolist())
        raise ValueError(
            f"targets must be tokens from 0 to {vocabulary - 1}, or {IGNORE_INDEX} where there is none, "
            f"got {int(targets[where])} at {where}"
        )


def apply_untraced(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Apply a function outside of ``torch.compile``, which would make a graph for every number of chunks."""
    apply: Callable[..., Tensor] = function.apply
    if torch.compiler.is_compiling():
        return torch.compiler.disable(apply)(*arguments)  # type: ignore[no-any-return, no-untyped-call]
    return apply(*arguments)


def or_nan(result: Tensor, index: PackIndex) -> Tensor:
    """Make a result NaN where the number of targets given was wrong and the host has not seen it."""
    return torch.where(torch.as_tensor(index.overflow), torch.nan, result) if index.fixed else result


def exponentiate_(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace logits by exp(logits − max), which no logits make overflow.

    Args:
        logits: Shape ``(rows, vocabulary)``; overwritten.
        targets: int64, shape ``(rows,)``.

    Returns:
        The log-probability of each target, lse = log Σ exp, and the sum of what the logits became; shape ``(rows, 1)``.
    """
    peak = logits.amax(1, keepdim=True)
    chosen = logits.sub_(peak).gather(1, targets[:, None])
    total = logits.exp_().sum(1, keepdim=True)
    log_total = total.log()
    return chosen - log_total, peak + log_total, total

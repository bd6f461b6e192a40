"""Calling a model so that two calls can be compared bit for bit."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from packdata.batches.packed_batch import PackedBatch

_CHUNK = 1024  # slots compared at once: the float32 copies of 1,024 rows of 150,000 logits take 1.2 GB


class Refusal(Exception):  # noqa: N818 - the model's answer, not a fault of the caller
    """The model raised: its own words."""


def move_to_model(batch: PackedBatch, model: Callable[..., Any]) -> PackedBatch:
    """Bring a batch to where the model's parameters lie; a plain callable gets it as it is."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return batch if parameter is None else batch.to(parameter.device)


@contextmanager
def as_in_evaluation(model: Callable[..., Any]) -> Iterator[None]:
    """Switch dropout and gradients off; the model's own modes come back afterwards."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def call(model: Callable[..., Any], kwargs: Mapping[str, Any], batch: PackedBatch) -> Tensor:
    """Call the model with the same random state each time, and read its logits.

    Returns:
        Logits, shape ``(rows, slots, ...)``.

    Raises:
        Refusal: If the model raises.
        ValueError: If what it returns has no logits of the batch's slots.
    """
    devices = [batch.cu_seqlens.device] if batch.cu_seqlens.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        try:
            output = model(**kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise Refusal(f"{type(error).__name__}: {error}") from error
    return _logits(output, batch)


def differences(left: Tensor, right: Tensor) -> Tensor:
    """Largest difference at each slot, float32 ``(rows, slots)``; infinities may be equal, NaN differs from all."""
    pairs = zip(torch.split(left, _CHUNK, dim=1), torch.split(right, _CHUNK, dim=1), strict=True)
    return torch.cat([_differ(*pair) for pair in pairs], dim=1)


def _differ(left: Tensor, right: Tensor) -> Tensor:
    distance = (left.float() - right.float()).abs().masked_fill(left == right, 0.0)
    return distance.nan_to_num(nan=torch.inf, posinf=torch.inf).flatten(2).amax(2)


def _logits(output: Any, batch: PackedBatch) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        output = output if found is None else found
    shape = tuple(batch.input_ids.shape)
    if not isinstance(output, Tensor) or output.ndim < 2 or output.shape[:2] != shape:
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"model must return a tensor of the batch's rows and slots {shape}, or an object with such .logits, "
            f"got {got}"
        )
    return output.unsqueeze(-1)

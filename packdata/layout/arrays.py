"""Arrays as they are given: numpy, CPU tensors or lists; and the same kind given back."""

import sys
from typing import Any, cast

import numpy as np

from .lengths import Array


def as_rows(values: Any, name: str) -> Array:
    """View integers as rows of tokens; a single row may come without its dimension."""
    array = as_integers(values, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (tokens,) or (rows, tokens), got {array.shape}")
    return cast(Array, np.atleast_2d(array))


def as_integers(values: Any, name: str) -> Array:
    """View or convert integers of any shape as a numpy array, never waiting for a device."""
    if is_tensor(values) and values.device.type != "cpu":
        raise ValueError(f"{name} must be on the CPU, got a tensor on {values.device}: reading it would wait for it")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be an array of integers, got {type(values).__name__}: {error}") from None
    if array.dtype.kind not in "iu":
        if array.size == 0:
            return array.astype(np.int64)
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    return array


def run_bounds(rows: Array, changes: Array) -> Array:
    """List where runs begin in the row-major stream, and its end; ``changes[r, i]``: slot i+1 begins a new run."""
    begins = np.ones(rows.shape, bool)
    begins[:, 1:] = changes
    return cast(Array, np.append(np.flatnonzero(begins), rows.size))


def same_kind(given: Any, result: Array) -> Any:
    """Return ``result`` as a tensor if ``given`` was one."""
    if not is_tensor(given):
        return result
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(result))


def is_tensor(values: Any) -> bool:
    """Tell whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")  # a tensor can only come from where torch has been imported
    return torch is not None and isinstance(values, torch.Tensor)

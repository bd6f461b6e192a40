"""Read one column of all features: whatever kind of sequence it is, as numpy arrays.

Arrays and CPU tensors are viewed, lists converted; one `numpy.concatenate` can then write all of them to their slots.
Every error names the feature's index and the key.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from packdata.layout import Array


def read_column(mappings: Sequence[Mapping[str, Any]], key: str, kinds: str, *, dims: int = 1) -> list[Array]:
    """Read one column of all features; ``kinds`` and ``dims`` say which arrays are right."""
    try:
        columns = [mapping[key] for mapping in mappings]
    except KeyError:
        index = next(index for index, mapping in enumerate(mappings) if key not in mapping)
        raise ValueError(missing_message(mappings, index, key)) from None
    if set(map(type, columns)) - {np.ndarray}:
        columns = [as_array(column, index, key) for index, column in enumerate(columns)]
    dtypes = {column.dtype for column in columns}
    if any(dtype.kind not in kinds for dtype in dtypes) or {column.ndim for column in columns} - {dims}:
        columns = _as_wanted(columns, key, kinds, dims)
    if "f" not in kinds and any(_past_int64(dtype) for dtype in dtypes):
        _check_range(columns, key)
    return columns


def _as_wanted(columns: list[Array], key: str, kinds: str, dims: int) -> list[Array]:
    """Let empty lists pass, and refuse all else that is of a wrong kind or shape."""
    for index, column in enumerate(columns):
        if column.dtype.kind not in kinds or column.ndim != dims:
            if column.shape == (0,):  # an empty list: of no kind, and of vectors as well as of numbers
                columns[index] = column.astype(np.int64)
                continue
            wanted = {"iu": "integers", "biu": "booleans or integers"}.get(kinds, "numbers")
            raise ValueError(
                f"feature {index}: {key} must be {dims}-D {wanted}, one value per token, "
                f"got {column.dtype} of shape {column.shape}"
            )
    return columns


def _check_range(columns: list[Array], key: str) -> None:
    """Refuse what int64 cannot hold, which only uint64 has (a file read with another dtype than it was written)."""
    for index, column in enumerate(columns):
        if _past_int64(column.dtype) and column.max(initial=0) >= 2**63:
            raise ValueError(f"feature {index}: {key} must be less than 2**63, got {column.max()}")


def _past_int64(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "u" and dtype.itemsize == 8


def as_array(value: Any, index: int, key: str) -> Array:
    """View or convert one feature's column as a numpy array."""
    if isinstance(value, np.ndarray):
        if np.ma.is_masked(value):
            raise ValueError(f"feature {index}: {key} must be one value per token, got a masked array: fill it")
        return value
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], bool)):
        try:
            return np.frombuffer(array("q", value), np.int64)  # twice as fast as numpy; integers only
        except (TypeError, OverflowError):
            pass
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            # numpy knows no bfloat16 and no float8; float32 holds all of their values
            return cast(Array, (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy())
        return np.asarray(value)
    except (ValueError, TypeError, NotImplementedError) as error:  # ragged, sparse, on a meta device
        raise ValueError(f"feature {index}: {key} must be one value per token: {error}") from None


def missing_message(mappings: Sequence[Mapping[str, Any]], index: int, key: str) -> str:
    """Say which feature lacks a column, what it has, and what usually took the column away."""
    holder = next((other for other, mapping in enumerate(mappings) if key in mapping), None)
    beside = "" if holder is None else f", though feature {holder} has it"
    return (
        f"feature {index} lacks {key!r}{beside}; it has {sorted(mappings[index], key=str)}. If the dataset has the "
        "column, Trainer has stripped it: set remove_unused_columns=False; or Documents does not serve it: name it in "
        "Documents' columns"
    )

"""Read features: whatever kind of sequence a column holds, and where its documents end.

A feature is a mapping with ``input_ids`` and what belongs to them, or the bare token ids. Columns are read feature by
feature into 1-D numpy arrays, without a copy where the feature holds one; every error names the feature and the key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..layout import as_lengths

Array = np.ndarray[Any, np.dtype[Any]]

SUPERVISION = ("labels", "completion_mask", "assistant_masks")
TOKEN_KEYS = ("input_ids", "attention_mask", *SUPERVISION)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Features:
    """Features as columns.

    Attributes:
        mappings: The features themselves.
        input_ids: Each feature's token ids, padding left out.
        slices: Which part of each feature's columns is tokens, or None where there is no padding in any.
        tokens: Tokens of each feature, int64.
        documents: Documents of each feature, int64.
        lengths: Tokens of each document, int64; some may be 0.
        packed: Whether the features said where their documents end.
    """

    mappings: list[Mapping[str, Any]]
    input_ids: list[Array]
    slices: list[slice] | None
    tokens: Array
    documents: Array
    lengths: Array
    packed: bool


def as_array(value: Any, index: int, key: str) -> Array:
    """View or convert one feature's column as a numpy array."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"feature {index}: {key} must be one value per token: {error}") from None
    if array.ndim == 0:
        raise ValueError(f"feature {index}: {key} must be a sequence with one value per token, got {value!r}")
    return array.astype(np.int64) if array.size == 0 and array.dtype.kind == "f" else array


def read_column(features: Sequence[Mapping[str, Any]], key: str) -> list[Array]:
    """Read one column of all features, each a numpy array."""
    try:
        return [as_array(feature[key], index, key) for index, feature in enumerate(features)]
    except KeyError:
        index = next(index for index, feature in enumerate(features) if key not in feature)
        raise ValueError(
            f"feature {index} has no {key!r} (it has {sorted(features[index])}); if the dataset has that column, "
            "Trainer stripped it: set remove_unused_columns=False"
        ) from None


def read_features(
    features: Sequence[Any], *, boundaries: str | Callable[[Any], Any] | None
) -> Features:
    """Read token ids and boundaries."""
    mappings = [feature if isinstance(feature, Mapping) else {"input_ids": feature} for feature in features]
    input_ids = read_column(mappings, "input_ids")
    for index, ids in enumerate(input_ids):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"feature {index}: input_ids must be 1-D integers, got {ids.dtype} of shape {ids.shape}")
    tokens = np.fromiter(map(len, input_ids), np.int64, len(input_ids))
    packed = boundaries is not None or any("seq_lengths" in feature for feature in mappings)
    if not packed:
        documents, lengths = np.ones(len(tokens), np.int64), tokens
    else:
        if callable(boundaries):
            parts = [as_lengths(boundaries(f), name=f"feature {i}: boundaries") for i, f in enumerate(mappings)]
        else:
            parts = [as_lengths(a, name=f"feature {i}: seq_lengths") for i, a in enumerate(read_column(mappings, "seq_lengths"))]
        for index, part in enumerate(parts):
            if part.sum() != tokens[index]:
                raise ValueError(f"feature {index}: seq_lengths add up to {part.sum()}, but input_ids has {tokens[index]} tokens")
        documents = np.fromiter(map(len, parts), np.int64, len(parts))
        lengths = np.concatenate([*parts, []]).astype(np.int64)
    return Features(
        mappings=mappings, input_ids=input_ids, slices=None, tokens=tokens, documents=documents, lengths=lengths, packed=packed
    )

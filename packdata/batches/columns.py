"""`Column`: how a further column travels through the collator."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
import torch

from packdata.layout import Array
from packdata.planning.edge import no_type_check

from .features import Features
from .reading import as_array, read_column
from .tokens import TokenStream


@no_type_check
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One further column of a batch, shape ``[R, T, *tail]``.

    Attributes:
        per: What a feature gives, and where it goes. ``"token"``: one value per token, which travels with it.
            ``"prediction"``: values aligned with ``targets``; one per token (shifted as labels are), one fewer for a
            feature of one document (already shifted), or one for each target. ``"document"``: one value, written on
            the document's target slots; a feature with ``seq_lengths`` gives one for each of its documents.
        dtype: The batch's dtype. Values must cast to it without changing their kind (integers to floats, not back).
        pad: What stands where no value does: on padding, and for ``"prediction"`` and ``"document"`` on every slot
            that predicts no target.
        tail: Shape of one value: ``()`` for numbers, ``(width,)`` for vectors.

    Raises:
        ValueError: If ``per`` is unknown, ``dtype`` cannot hold ``pad``, or ``tail`` is no shape.

    Example:
        >>> import torch
        >>> from packdata import Column, PackingCollator
        >>> collate = PackingCollator(columns={"advantages": Column(per="document", dtype=torch.float32)})
        >>> batch = collate([{"input_ids": [1, 2, 3], "advantages": 0.5}, {"input_ids": [4, 5], "advantages": -1.0}])
        >>> batch["advantages"]
        tensor([[ 0.5000,  0.5000,  0.0000, -1.0000,  0.0000]])
    """

    per: Literal["token", "prediction", "document"]
    dtype: torch.dtype
    pad: int | float = 0
    tail: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.per not in ("token", "prediction", "document"):
            raise ValueError(f'per must be "token", "prediction" or "document", got {self.per!r}')
        if not isinstance(self.dtype, torch.dtype):
            raise ValueError(f"dtype must be a torch.dtype, got {self.dtype!r}")
        if not _holds(self.dtype, self.pad):
            raise ValueError(f"dtype {self.dtype} cannot hold pad={self.pad!r}")
        sizes = self.tail if isinstance(self.tail, tuple) else (None,)
        if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
            raise ValueError(f"tail must be the shape of one value, such as () or (4096,), got {self.tail!r}")

    @property
    def staging(self) -> np.dtype[Any]:
        """The numpy dtype in which values are gathered: numpy has no bfloat16 and no float8."""
        if self.dtype.is_floating_point and self.dtype.itemsize < 4:
            return np.dtype(np.float32)
        return torch.empty(0, dtype=self.dtype).numpy().dtype

    def read(self, features: Features, stream: TokenStream, has_target: Array, *, key: str) -> Array:
        """Read one value per token of the stream, where its slot wants it.

        Args:
            features: What was read.
            stream: Its documents.
            has_target: Whether each token predicts a target, bool, shape ``(tokens,)``.
            key: The column's name.

        Returns:
            In `staging`'s dtype, shape ``(tokens, *tail)``.
        """
        if not features.mappings:
            return np.zeros((0, *self.tail), self.staging)
        if self.per == "token":
            return self._join(
                [self._fit(part, i, key) for i, part in enumerate(features.per_token(key, "biuf", tail=self.tail))]
            )
        if self.per == "prediction":
            predictions = self._predictions(features, has_target, key)
            values = np.empty_like(predictions)
            stream.shift(predictions, self.pad, out=values)
        else:
            documents = self._join([self._of_documents(features, i, key) for i in range(len(features.mappings))])
            values = np.repeat(documents[features.lengths > 0], stream.lengths, axis=0)
        values[~has_target] = self.pad
        return values

    def _predictions(self, features: Features, has_target: Array, key: str) -> Array:
        """Read one value per token, un-shifted, ``pad`` where a feature gave none."""
        learnt = np.zeros_like(has_target)
        learnt[1:] = has_target[:-1]
        parts, begin = [], 0
        for index, column in enumerate(read_column(features.mappings, key, "biuf", dims=1 + len(self.tail))):
            tokens = len(features.input_ids[index])
            mask = learnt[begin : begin + tokens]
            parts.append(self._by_token(self._fit(column, index, key), features, mask, index, key))
            begin += tokens
        return self._join(parts)

    def _by_token(self, column: Array, features: Features, learnt: Array, index: int, key: str) -> Array:
        tokens, targets = len(learnt), int(np.count_nonzero(learnt))
        padded = len(features.mappings[index]["input_ids"])
        if len(column) == padded:
            return column if features.kept is None else column[features.kept[index]]
        spread = np.full((tokens, *self.tail), self.pad, self.staging)
        if len(column) == targets:
            spread[learnt] = column
        elif len(column) == tokens - 1 and features.documents_of(index) == 1 and not learnt[:1].any():
            spread[1:] = column
        else:
            raise ValueError(
                f"feature {index}: {key} has {len(column)} values; per prediction there are {padded} (one per token), "
                f"{tokens - 1} (already shifted, for a feature of one document) or {targets} (one per target)"
            )
        return spread

    def _of_documents(self, features: Features, index: int, key: str) -> Array:
        if key not in features.mappings[index]:
            read_column(features.mappings, key, "biuf")  # raises, and names it
        column = as_array(features.mappings[index][key], index, key)
        documents = features.documents_of(index)
        if column.ndim == len(self.tail) and documents == 1:
            column = column[None]
        if column.ndim != 1 + len(self.tail) or len(column) != documents:
            raise ValueError(
                f"feature {index}: {key} must have a value for each of {documents} documents, got shape {column.shape}"
            )
        return self._fit(column, index, key)

    def _fit(self, column: Array, index: int, key: str) -> Array:
        """Check one feature's values against `tail` and `dtype`."""
        if column.shape == (0,):
            return np.empty((0, *self.tail), self.staging)
        if column.shape[1:] != self.tail:
            raise ValueError(f"feature {index}: {key} must have values of shape {self.tail}, got {column.shape[1:]}")
        whole = column.dtype.kind in "biu" and self.staging.kind in "biu"
        if column.size and not (whole or np.can_cast(column.dtype, self.staging, "same_kind")):
            raise ValueError(f"feature {index}: {key} is {column.dtype}, which does not cast to {self.dtype}")
        if column.size and column.dtype.kind in "biuf":
            self._check_range(column, index, key)
        return column

    def _check_range(self, column: Array, index: int, key: str) -> None:
        least, most = _limits(self.dtype)
        if column.dtype.kind == "f":
            if float(np.finfo(column.dtype).max) <= 1.01 * most:  # bfloat16 ends where float32 does
                return
            column = column[np.isfinite(column)]
        low, high = column.min(initial=0).item(), column.max(initial=0).item()
        if low < least or high > most:
            raise ValueError(f"feature {index}: {key} has values from {low} to {high}, too many for {self.dtype}")

    def _join(self, parts: list[Array]) -> Array:
        return np.concatenate(parts, dtype=self.staging, casting="unsafe")


def _holds(dtype: torch.dtype, pad: Any) -> bool:
    """Tell whether a dtype holds a number as it is (a float may round it)."""
    if not isinstance(pad, Real):
        return False
    number, (low, high) = cast(float, pad), _limits(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or low <= number <= high
    return low <= number <= high and number == int(number)


def _limits(dtype: torch.dtype) -> tuple[int | float, int | float]:
    """Return the least and the largest finite number of a dtype."""
    if dtype is torch.bool:
        return 0, 1
    kind = torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo
    return kind(dtype).min, kind(dtype).max

"""Read features: whatever kind of sequence a column is, where its tokens are and where its documents end.

A feature is a mapping with ``input_ids`` and what belongs to them, or the bare token ids. Columns are read into numpy
arrays, feature by feature and without a copy where the feature holds one, so that one `numpy.concatenate` can then
write them to their slots. Every error names the feature's index and the key.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from packdata.layout import Array, as_lengths

Boundaries = str | Callable[[Mapping[str, Any]], Any] | None

SUPERVISION = ("labels", "completion_mask", "assistant_masks")
KNOWN = frozenset(("input_ids", "attention_mask", "seq_lengths", *SUPERVISION))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Features:
    """Features as columns.

    Attributes:
        mappings: The features themselves.
        keys: The columns that any of them has.
        input_ids: Each feature's token ids, padding left out.
        kept: The part of each feature's columns that is no padding; None where no feature has padding.
        documents: Documents of each feature, int64, shape ``(features,)``.
        lengths: Tokens of each document, int64, shape ``(documents,)``; some may be 0.
        packed: Whether the features say where their documents end.
    """

    mappings: Sequence[Mapping[str, Any]]
    keys: frozenset[str]
    input_ids: list[Array]
    kept: list[slice] | None
    documents: Array
    lengths: Array
    packed: bool

    def per_token(self, key: str, kinds: str, *, tail: tuple[int, ...] = ()) -> list[Array]:
        """Read a column of one value per token, padding left out.

        Args:
            key: The column's name.
            kinds: The allowed kinds of dtype, as letters of `numpy.dtype.kind`.
            tail: Shape of one value.

        Raises:
            ValueError: If a feature lacks it, or it has another length or kind.
        """
        columns = read_column(self.mappings, key, kinds, dims=1 + len(tail))
        for index, (column, ids) in enumerate(zip(columns, self.input_ids, strict=True)):
            if len(column) == len(ids):
                continue
            padded = len(ids) if self.kept is None else len(self.mappings[index]["input_ids"])
            if self.kept is None or len(column) != padded:
                raise ValueError(f"feature {index}: {key} has {len(column)} values, but input_ids has {padded}")
            columns[index] = column[self.kept[index]]
        return columns


def read_features(features: Iterable[Any], *, boundaries: Boundaries, declared: frozenset[str]) -> Features:
    """Read token ids and document boundaries, and refuse what nobody declared.

    Args:
        features: Mappings, or bare sequences of token ids.
        boundaries: As `PackingCollator` takes it.
        declared: Further names of columns that may be there.
    """
    if isinstance(features, Mapping | str):
        raise ValueError(f"features must be a list of features, got one {type(features).__name__}")
    mappings = [feature if isinstance(feature, Mapping) else {"input_ids": feature} for feature in features]
    keys = frozenset[str]().union(*mappings)
    input_ids, kept = read_column(mappings, "input_ids", "iu"), None
    if "attention_mask" in keys:
        kept = _unpadded(mappings, input_ids, segment_ids=callable(boundaries))
    if kept is not None:
        input_ids = [ids[part] for ids, part in zip(input_ids, kept, strict=True)]
    tokens = np.fromiter(map(len, input_ids), np.int64, len(input_ids))
    parts, read = None, frozenset[str]()
    if boundaries is not None or "seq_lengths" in keys:
        parts, read = _read_boundaries(mappings, boundaries, tokens)
    if unknown := keys - declared - KNOWN - read:
        raise ValueError(_undeclared(mappings, unknown))
    if parts is None:
        documents, lengths = np.ones_like(tokens), tokens
    else:
        documents = np.fromiter(map(len, parts), np.int64, len(parts))
        lengths = np.concatenate([*parts, tokens[:0]]).astype(np.int64)
    return Features(
        mappings=mappings,
        keys=keys,
        input_ids=input_ids,
        kept=kept,
        documents=documents,
        lengths=lengths,
        packed=parts is not None,
    )


def read_column(mappings: Sequence[Mapping[str, Any]], key: str, kinds: str, *, dims: int = 1) -> list[Array]:
    """Read one column of all features; ``kinds`` and ``dims`` say which arrays are right."""
    try:
        columns = [as_array(mapping[key], index, key) for index, mapping in enumerate(mappings)]
    except KeyError:
        index = next(index for index, mapping in enumerate(mappings) if key not in mapping)
        raise ValueError(_missing(mappings, index, key)) from None
    for index, column in enumerate(columns):
        if column.dtype.kind not in kinds or column.ndim != dims:
            if column.size == 0 and column.ndim == dims and column.dtype.kind == "f":  # an empty list has no kind
                columns[index] = column.astype(np.int64)
                continue
            wanted = {"iu": "integers", "biu": "booleans or integers"}.get(kinds, "numbers")
            raise ValueError(
                f"feature {index}: {key} must be {dims}-D {wanted}, one value per token, "
                f"got {column.dtype} of shape {column.shape}"
            )
    return columns


def as_array(value: Any, index: int, key: str) -> Array:
    """View or convert one feature's column as a numpy array."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list | tuple):
        try:
            return np.frombuffer(array("q", value), np.int64)  # twice as fast as numpy; integers only
        except (TypeError, OverflowError):
            pass
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # numpy knows no bfloat16 and no float8; float32 holds all of their values
        return cast(Array, (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy())
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"feature {index}: {key} must be one value per token: {error}") from None


def _unpadded(
    mappings: Sequence[Mapping[str, Any]], input_ids: list[Array], *, segment_ids: bool
) -> list[slice] | None:
    """Find the unpadded part of each feature; None if there is no padding."""
    kept = [slice(0, len(ids)) for ids in input_ids]
    for index, (mapping, ids) in enumerate(zip(mappings, input_ids, strict=True)):
        if "attention_mask" not in mapping:
            continue
        mask = as_array(mapping["attention_mask"], index, "attention_mask")
        if mask.shape != ids.shape or (mask.size and mask.dtype.kind not in "biu"):
            raise ValueError(
                f"feature {index}: attention_mask must be {len(ids)} integers, as input_ids has, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        kept[index] = _unpadded_part(mask, index, segment_ids=segment_ids)
    return None if all(part.stop - part.start == len(ids) for part, ids in zip(kept, input_ids, strict=True)) else kept


def _unpadded_part(mask: Array, index: int, *, segment_ids: bool) -> slice:
    if mask.size and not segment_ids and (mask.max() > 1 or mask.min() < 0):
        wrong = mask.max() if mask.max() > 1 else mask.min()
        raise ValueError(
            f"feature {index}: attention_mask must be 0 or 1, got {wrong}; if it "
            'numbers the documents of a pack, pass boundaries=lambda f: lengths_from_segment_ids(f["attention_mask"])'
        )
    tokens = np.flatnonzero(mask)
    if len(tokens) == 0:
        return slice(0, 0)
    first, last = int(tokens[0]), int(tokens[-1]) + 1
    if last - first != len(tokens):
        hole = first + int(np.argmin(mask[first:last] != 0))
        raise ValueError(
            f"feature {index}: attention_mask has a hole at token {hole}: padding may stand left or right of the "
            "tokens, not among them"
        )
    return slice(first, last)


def _read_boundaries(
    mappings: Sequence[Mapping[str, Any]], boundaries: Boundaries, tokens: Array
) -> tuple[list[Array], frozenset[str]]:
    """Read each feature's document lengths, and say which columns were read for that."""
    read: set[str] = set()
    if callable(boundaries):
        name = f"boundaries={getattr(boundaries, '__name__', boundaries)!s}"
        raw = [boundaries(_Recorder(mapping, read)) for mapping in mappings]
    else:
        name = "seq_lengths"
        for index, mapping in enumerate(mappings):
            if "seq_lengths" not in mapping:
                raise ValueError(_missing(mappings, index, "seq_lengths"))
        raw = [mapping["seq_lengths"] for mapping in mappings]
    parts = [as_lengths(value, name=f"feature {index}: {name}") for index, value in enumerate(raw)]
    for index, part in enumerate(parts):
        if part.sum() != tokens[index]:
            raise ValueError(
                f"feature {index}: {name} adds up to {part.sum()}, but input_ids has {tokens[index]} tokens"
                " (padding is left out where an attention_mask is 0)"
            )
    return parts, frozenset(read)


class _Recorder(Mapping[str, Any]):
    """A feature that notes which of its columns were read: those need no declaration."""

    def __init__(self, mapping: Mapping[str, Any], read: set[str]) -> None:
        self._mapping, self._read = mapping, read

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


def _undeclared(mappings: Sequence[Mapping[str, Any]], unknown: frozenset[str]) -> str:
    index = next(index for index, mapping in enumerate(mappings) if unknown & mapping.keys())
    names = sorted(unknown & mappings[index].keys())
    hint = " (positions may tell boundaries: see boundaries=)" if "position_ids" in names else ""
    return (
        f"feature {index} has columns that were not declared: {names}{hint}; drop them from the dataset, or "
        f"say how they travel, as in columns={{{names[0]!r}: Column(per='token', dtype=…)}}"
    )


def _missing(mappings: Sequence[Mapping[str, Any]], index: int, key: str) -> str:
    holder = next((other for other, mapping in enumerate(mappings) if key in mapping), None)
    beside = "" if holder is None else f", though feature {holder} has it"
    return (
        f"feature {index} lacks {key!r}{beside}; it has {sorted(mappings[index])}. If the dataset has the column, "
        "Trainer has stripped it: set remove_unused_columns=False"
    )

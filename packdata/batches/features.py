"""Features as columns.

A feature is a mapping with ``input_ids`` and what belongs to them, or the bare token ids: a document, or a pack of
them with ``seq_lengths``. Here a list of features becomes one list of arrays per column, padding left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packdata.layout import Array

from .boundaries import Boundaries, find_tokens, read_boundaries
from .reading import read_column

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
        documents: Documents of each feature, int64, shape ``(features,)``; None if the features do not say where their
            documents end: each is one.
        lengths: Tokens of each document, int64, shape ``(documents,)``; some may be 0.
    """

    mappings: Sequence[Mapping[str, Any]]
    keys: frozenset[str]
    input_ids: list[Array]
    kept: list[slice] | None
    documents: Array | None
    lengths: Array

    def documents_of(self, index: int) -> int:
        """Count the documents of one feature."""
        return 1 if self.documents is None else int(self.documents[index])

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


def read_features(features: Any, *, boundaries: Boundaries, declared: frozenset[str]) -> Features:
    """Read token ids and document boundaries, and refuse what nobody declared.

    Args:
        features: Mappings, or bare sequences of token ids.
        boundaries: As `PackingCollator` takes it.
        declared: Further names of columns that may be there.
    """
    mappings = _as_mappings(features)
    keys: frozenset[str] = frozenset().union(*mappings)
    input_ids, kept = read_column(mappings, "input_ids", "iu"), None
    if "attention_mask" in keys:
        kept = find_tokens(mappings, input_ids, segment_ids=callable(boundaries))
    if kept is not None:
        input_ids = [ids[part] for ids, part in zip(input_ids, kept, strict=True)]
    tokens = np.fromiter(map(len, input_ids), np.int64, len(input_ids))
    parts: list[Array] | None = None
    read: frozenset[str] = frozenset()
    if boundaries is not None or "seq_lengths" in keys:
        parts, read = read_boundaries(mappings, boundaries, tokens)
    if unknown := keys - declared - KNOWN - read:
        raise ValueError(_undeclared(mappings, unknown))
    documents, lengths = None, tokens
    if parts is not None:
        documents = np.fromiter(map(len, parts), np.int64, len(parts))
        lengths = np.concatenate([*parts, tokens[:0]], dtype=np.int64, casting="unsafe")
    return Features(
        mappings=mappings,
        keys=keys,
        input_ids=input_ids,
        kept=kept,
        documents=documents,
        lengths=lengths,
    )


def _as_mappings(features: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(features, list) and set(map(type, features)) == {dict}:
        return features
    if isinstance(features, Mapping | str) or not isinstance(features, Iterable):
        raise ValueError(f"features must be a list of features, got one {type(features).__name__}")
    return [_as_mapping(feature) for feature in features]


def _as_mapping(feature: Any) -> Mapping[str, Any]:
    if not isinstance(feature, Mapping):
        return {"input_ids": feature}
    return dict(feature) if hasattr(feature, "__missing__") else feature  # a defaultdict would make up columns


def _undeclared(mappings: Sequence[Mapping[str, Any]], unknown: frozenset[Any]) -> str:
    index = next(index for index, mapping in enumerate(mappings) if unknown & mapping.keys())
    names = sorted(unknown & mappings[index].keys(), key=str)
    hint = " (positions may tell boundaries: see boundaries=)" if "position_ids" in names else ""
    return (
        f"feature {index} has columns that were not declared: {names}{hint}; drop them from the dataset, or "
        f"say how they travel, as in columns={{{names[0]!r}: Column(per='token', dtype=…)}}"
    )

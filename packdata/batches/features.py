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
_UINT64 = np.dtype(np.uint64)
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


def read_features(features: Any, *, boundaries: Boundaries, declared: frozenset[str]) -> Features:
    """Read token ids and document boundaries, and refuse what nobody declared.

    Args:
        features: Mappings, or bare sequences of token ids.
        boundaries: As `PackingCollator` takes it.
        declared: Further names of columns that may be there.
    """
    if isinstance(features, Mapping | str) or not isinstance(features, Iterable):
        raise ValueError(f"features must be a list of features, got one {type(features).__name__}")
    mappings = [feature if isinstance(feature, dict | Mapping) else {"input_ids": feature} for feature in features]
    keys = frozenset[str]().union(*mappings)
    input_ids, kept = read_column(mappings, "input_ids", "iu"), None
    _check_ids(input_ids)
    if "attention_mask" in keys:
        kept = find_tokens(mappings, input_ids, segment_ids=callable(boundaries))
    if kept is not None:
        input_ids = [ids[part] for ids, part in zip(input_ids, kept, strict=True)]
    tokens = np.fromiter(map(len, input_ids), np.int64, len(input_ids))
    parts, read = None, frozenset[str]()
    if boundaries is not None or "seq_lengths" in keys:
        parts, read = read_boundaries(mappings, boundaries, tokens)
    if unknown := keys - declared - KNOWN - read:
        raise ValueError(_undeclared(mappings, unknown))
    if parts is None:
        documents, lengths = np.ones_like(tokens), tokens
    else:
        documents = np.fromiter(map(len, parts), np.int64, len(parts))
        lengths = np.concatenate([*parts, tokens[:0]], dtype=np.int64, casting="unsafe")
    return Features(
        mappings=mappings,
        keys=keys,
        input_ids=input_ids,
        kept=kept,
        documents=documents,
        lengths=lengths,
        packed=parts is not None,
    )


def _check_ids(input_ids: list[Array]) -> None:
    """Refuse ids that int64 cannot hold, which only uint64 has (a file read with another dtype than it was written)."""
    if _UINT64 not in {ids.dtype for ids in input_ids}:
        return
    for index, ids in enumerate(input_ids):
        if ids.dtype == _UINT64 and ids.max(initial=0) >= 2**63:
            raise ValueError(f"feature {index}: input_ids must be less than 2**63, got {ids.max()}")


def _undeclared(mappings: Sequence[Mapping[str, Any]], unknown: frozenset[Any]) -> str:
    index = next(index for index, mapping in enumerate(mappings) if unknown & mapping.keys())
    names = sorted(unknown & mappings[index].keys(), key=str)
    hint = " (positions may tell boundaries: see boundaries=)" if "position_ids" in names else ""
    return (
        f"feature {index} has columns that were not declared: {names}{hint}; drop them from the dataset, or "
        f"say how they travel, as in columns={{{names[0]!r}: Column(per='token', dtype=…)}}"
    )

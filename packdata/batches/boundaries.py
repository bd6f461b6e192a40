"""Find the tokens of each feature, and where its documents end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from packdata.layout import Array, as_lengths

from .reading import as_array, missing_message

Boundaries = str | Callable[[Mapping[str, Any]], Any] | None


def find_tokens(
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
        kept[index] = _tokens_of(mask, index, segment_ids=segment_ids)
    return None if all(part.stop - part.start == len(ids) for part, ids in zip(kept, input_ids, strict=True)) else kept


def _tokens_of(mask: Array, index: int, *, segment_ids: bool) -> slice:
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


def read_boundaries(
    mappings: Sequence[Mapping[str, Any]], boundaries: Boundaries, tokens: Array
) -> tuple[list[Array], frozenset[str]]:
    """Read each feature's document lengths, and say which columns were read for that."""
    reader: Callable[[Mapping[str, Any]], Any] = itemgetter("seq_lengths")
    name = "seq_lengths"
    if callable(boundaries):
        name, reader = f"boundaries={getattr(boundaries, '__name__', boundaries)}", boundaries
    read: set[str] = set()
    parts = []
    for index, mapping in enumerate(mappings):
        try:
            value = reader(_Recorder(mapping, read))
        except KeyError as error:
            raise ValueError(missing_message(mappings, index, str(error.args[0]))) from None
        part = as_lengths(value, name=f"feature {index}: {name}")
        if part.sum() != tokens[index]:
            raise ValueError(
                f"feature {index}: {name} adds up to {part.sum()}, but input_ids has {tokens[index]} tokens"
                " (padding is left out where an attention_mask is 0)"
            )
        parts.append(part)
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

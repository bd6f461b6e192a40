"""`PackingCollator`: features in, one `PackedBatch` out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from ..layout import IGNORE_INDEX
from .columns import Column
from .features import SUPERVISION, Array, Features, read_column, read_features
from .geometry import Geometry, lay_out, offsets_capacity
from .packed_batch import PackedBatch


class PackingCollator:
    """Collate documents, or packs of documents, into a `PackedBatch`; for a ``DataLoader``'s ``collate_fn``."""

    def __init__(
        self,
        pad_to: int | None = None,
        *,
        pad_to_multiple_of: int | None = None,
        layout: Literal["stream", "rows"] = "stream",
        max_documents: int | None = None,
        max_seqlen: int | None = None,
        padding_segment: int = 512,
        align: int = 1,
        pad_token_id: int = 0,
        position_offset: int = 0,
        targets: str | Sequence[str] | None = None,
        boundaries: str | Callable[[Any], Any] | None = None,
        columns: Mapping[str, Column] | None = None,
        cross_document_attention: bool = False,
        cross_document_targets: bool = False,
        output: Callable[[PackedBatch], Any] | None = None,
    ) -> None:
        self.pad_to = pad_to
        self.pad_to_multiple_of = pad_to_multiple_of
        self.layout = layout
        self.max_documents = max_documents
        self.max_seqlen = max_seqlen
        self.padding_segment = padding_segment
        self.align = align
        self.pad_token_id = pad_token_id
        self.position_offset = position_offset
        self.targets = targets
        self.boundaries = boundaries
        self.columns = dict(columns or {})
        self.cross_document_attention = cross_document_attention
        self.cross_document_targets = cross_document_targets
        self.output = output

    def __call__(self, features: Sequence[Any]) -> Any:
        """Collate."""
        batch = self._collate(read_features(features, boundaries=self.boundaries))
        return batch if self.output is None else self.output(batch)

    def _collate(self, features: Features) -> PackedBatch:
        feature_of = np.repeat(np.arange(len(features.documents)), features.documents)
        filled = features.lengths > 0
        lengths, feature_of = features.lengths[filled], feature_of[filled]
        by_rows = self.layout == "rows"
        row_of = feature_of if by_rows else np.zeros_like(feature_of)
        reach_of = feature_of if by_rows or features.packed else row_of
        geometry = lay_out(
            lengths,
            row_of,
            reach_of if self.cross_document_attention else None,
            rows=max(len(features.tokens), 1) if by_rows else 1,
            width=self.pad_to,
            unit=self.pad_to_multiple_of or self.align,
            align=self.align,
            piece=min(self.padding_segment, self.max_seqlen or self.padding_segment),
        )
        return self._fill(features, geometry, reach_of)

    def _fill(self, features: Features, geometry: Geometry, reach_of: Array) -> PackedBatch:
        lengths, bounds = geometry.lengths, geometry.bounds
        first = np.cumsum(lengths) - lengths
        slot_of = np.arange(lengths.sum()) + np.repeat(geometry.starts - first, lengths)
        ids = np.concatenate([*features.input_ids, np.zeros(0, np.int64)]).astype(np.int64)
        label, supervised = self._labels(features, ids)
        continues = np.diff(reach_of, prepend=-1) == 0 if self.cross_document_targets else np.zeros(len(first), bool)
        supervised[first[~continues]] = False

        def spread(values: Array, at: Array, pad: int) -> Array:
            out = np.full(geometry.slots, pad, np.int64)
            out[at] = values
            return out

        learnt = np.flatnonzero(supervised)
        sizes = np.diff(bounds)
        flat = {
            "input_ids": spread(ids, slot_of, self.pad_token_id),
            "targets": spread(label[learnt], slot_of[learnt - 1], IGNORE_INDEX),
            "position_ids": np.arange(geometry.slots) - np.repeat(bounds[:-1], sizes) + self.position_offset,
            "document_ids": spread(np.repeat(np.arange(len(lengths)), lengths), slot_of, -1),
        }
        shape = (geometry.rows, geometry.width)
        cu_seqlens = self._fixed(bounds)
        return PackedBatch(
            {key: torch.from_numpy(value.reshape(shape)) for key, value in flat.items()}
            | {
                "cu_seqlens": torch.from_numpy(cu_seqlens.astype(np.int32)),
                "lengths": tuple(lengths.tolist()),
                "document_starts": tuple(geometry.starts.tolist()),
                "align": self.align,
                "max_seqlen": self.max_seqlen or (self.pad_to if self.max_documents else None) or int(sizes.max()),
                "num_targets": len(learnt),
                "cross_document_attention": self.cross_document_attention,
                "cross_document_targets": self.cross_document_targets,
            }
        )

    def _fixed(self, bounds: Array) -> Array:
        if self.pad_to is None or self.max_documents is None:
            return bounds
        piece = min(self.padding_segment, self.max_seqlen or self.padding_segment)
        size = offsets_capacity(int(bounds[-1]) // self.pad_to, self.pad_to, self.max_documents, piece)
        return np.append(bounds, np.full(size - len(bounds), bounds[-1]))

    def _labels(self, features: Features, ids: Array) -> tuple[Array, Array]:
        keys = [key for key in SUPERVISION if key in (features.mappings[0] if features.mappings else ())]
        if self.targets is not None:
            keys = [] if self.targets == "all" else [self.targets] if isinstance(self.targets, str) else list(self.targets)
        label, supervised = ids, np.ones(len(ids), bool)
        for key in keys if features.mappings else ():
            parts = read_column(features.mappings, key)
            values = np.concatenate(parts)
            if len(values) != len(ids):
                raise ValueError(f"{key} has {len(values)} values for {len(ids)} tokens")
            if key == "labels":
                label = values.astype(np.int64)
            supervised &= values != (IGNORE_INDEX if key == "labels" else 0)
        return label, supervised

"""`PackingCollator`: features in, one `PackedBatch` out.

Three steps, each in a file of its own: the features are read as columns (`features`), their tokens strung into one
stream whose supervision is shifted once (`tokens`), and the stream given slots (`geometry`). No step looks at single
tokens in Python; whole columns are concatenated, shifted and placed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch

from packdata.layout import IGNORE_INDEX, INT32_MAX, Array
from packdata.planning.edge import no_type_check

from .columns import Column
from .features import KNOWN, Features, read_features
from .geometry import Geometry, Shape, lay_out
from .packed_batch import PackedBatch
from .tokens import TokenStream, read_labels

_OWN_KEYS = (
    *("input_ids", "targets", "position_ids", "document_ids", "cu_seqlens", "lengths", "document_starts", "align"),
    *("max_seqlen", "num_targets", "cross_document_attention", "cross_document_targets"),
    *("labels", "loss_mask", "attention_mask", "seq_lengths"),
)


@no_type_check
@dataclass(frozen=True, eq=False)
class PackingCollator:
    """Collate documents, or packs of documents, into a `PackedBatch`: a ``DataLoader``'s ``collate_fn``.

    A feature is a mapping with ``input_ids`` (or the bare token ids): a document, or a pack with ``seq_lengths``. Its
    columns are lists, numpy arrays of any integer dtype or tensors; they are neither changed nor aliased. A document's
    first token is never a target; one without tokens is left out. An empty list gives a valid batch without targets.

    Args:
        pad_to: Exactly so many slots a row; more tokens raise. Without it, rows hold no padding but alignment's.
        pad_to_multiple_of: Rows are a multiple of this.
        layout: ``"stream"``: one row of everything. ``"rows"``: a row per feature.
        max_documents: Most documents in a row; more raise. With ``pad_to``, the shape of every tensor is fixed:
            ``cu_seqlens`` repeats its last offset up to a constant size and ``max_seqlen`` is a constant.
        max_seqlen: That constant (else ``pad_to``); longer segments raise.
        padding_segment: A row's padding is cut into segments of at most so many slots (``max_seqlen``, if that is
            smaller): one segment of 24k slots would cost many times the attention of the text.
        align: Each document's slots are rounded up to a multiple of this (context parallel: 2·cp; fp8: 16).
        pad_token_id: The token id of padding.
        position_offset: The position of a segment's first slot (RoBERTa: 2).
        targets: What is learnt. None: ``labels``, ``completion_mask`` and ``assistant_masks``, whichever are there,
            all of them at once; every token if none is. A name or several: exactly these, which must be there.
            ``"all"``: every token.
        boundaries: Where a feature's documents end. None: ``seq_lengths``, if there. ``"seq_lengths"``: must be there.
            Or a callable from a feature to lengths, for packs of other libraries (`layout.lengths_from_segment_ids`
            and its sisters); the columns that it reads need no declaration.
        columns: Further columns by name, each with a `Column` that says how it travels.
        cross_document_attention: One segment per pack (a feature with ``seq_lengths``), else per row; positions run
            through it, and through the slots that ``align`` leaves between documents, which later ones then see.
            Documents and targets stay what they are.
        cross_document_targets: Within the same reach, a document's last token predicts the next one's first.
        output: A dialect such as `to_transformers`, or any callable from the batch to what the loader shall yield.

    Raises:
        ValueError: If options contradict each other. Calling it raises for bad features, naming the feature and the
            key: an undeclared or a missing column, lengths that do not add up, too many tokens or documents, …

    Example:
        >>> from packdata import PackingCollator
        >>> batch = PackingCollator(pad_to=6)([{"input_ids": [11, 12, 13]}, {"input_ids": [21, 22]}])
        >>> batch.input_ids
        tensor([[11, 12, 13, 21, 22,  0]])
        >>> batch.targets
        tensor([[  12,   13, -100,   22, -100, -100]])
        >>> batch.cu_seqlens, batch.lengths, batch.num_targets
        (tensor([0, 3, 5, 6], dtype=torch.int32), (3, 2), 3)
    """

    pad_to: int | None = None
    _: KW_ONLY
    pad_to_multiple_of: int | None = None
    layout: Literal["stream", "rows"] = "stream"
    max_documents: int | None = None
    max_seqlen: int | None = None
    padding_segment: int = 512
    align: int = 1
    pad_token_id: int = 0
    position_offset: int = 0
    targets: str | Sequence[str] | None = None
    boundaries: Literal["seq_lengths"] | Callable[[Mapping[str, Any]], Any] | None = None
    columns: Mapping[str, Column] | None = None
    cross_document_attention: bool = False
    cross_document_targets: bool = False
    output: Callable[[PackedBatch], Any] | None = None

    def __post_init__(self) -> None:
        self._shape  # noqa: B018 - it checks its numbers
        for name in ("pad_token_id", "position_offset"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= INT32_MAX:
                raise ValueError(f"{name} must be an integer from 0 to {INT32_MAX}, got {value!r}")
        for name in ("cross_document_attention", "cross_document_targets"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not (self.boundaries is None or callable(self.boundaries) or str(self.boundaries) == "seq_lengths"):
            raise ValueError(f'boundaries must be None, "seq_lengths" or a callable, got {self.boundaries!r}')
        if not (self.targets is None or _are_names(self.targets)):
            raise ValueError(f'targets must be None, "all", a name or several, got {self.targets!r}')
        if not (self.output is None or callable(self.output)):
            raise ValueError(f"output must be None or a callable from a batch, such as to_jax, got {self.output!r}")
        self._check_columns()

    def _check_columns(self) -> None:
        if not (self.columns is None or isinstance(self.columns, Mapping)):
            raise ValueError(f"columns must map names to Columns, got {self.columns!r}")
        for name, column in (self.columns or {}).items():
            if name in _OWN_KEYS:
                raise ValueError(f"columns cannot hold {name!r}: the batch has its own")
            if not isinstance(column, Column):
                raise ValueError(f"columns[{name!r}] must be a Column, got {column!r}")

    @cached_property
    def _shape(self) -> Shape:
        return Shape(
            layout=self.layout,
            pad_to=self.pad_to,
            pad_to_multiple_of=self.pad_to_multiple_of,
            max_documents=self.max_documents,
            max_seqlen=self.max_seqlen,
            padding_segment=self.padding_segment,
            align=self.align,
        )

    @cached_property
    def _declared(self) -> frozenset[str]:
        named = [self.targets] if isinstance(self.targets, str) else self.targets or ()
        return KNOWN.union(self.columns or (), named)

    def __call__(self, features: Iterable[Any]) -> Any:
        """Collate features into a `PackedBatch`, or what ``output`` makes of it; all tensors are new, on the CPU."""
        read = read_features(features, boundaries=self.boundaries, declared=self._declared)
        stream = TokenStream.of(read, by_rows=self.layout == "rows", joined=self.cross_document_targets)
        geometry = lay_out(
            stream.lengths,
            stream.ends,
            stream.feature_of,
            features=len(read.mappings),
            reach_of=stream.reach_of if self.cross_document_attention else None,
            shape=self._shape,
        )
        batch = self._fill(read, stream, geometry)
        return batch if self.output is None else self.output(batch)

    def _fill(self, features: Features, stream: TokenStream, geometry: Geometry) -> PackedBatch:
        input_ids, ids = geometry.place(partial(_concatenate, features.input_ids), pad=self.pad_token_id)
        labels = read_labels(features, stream, self.targets, ids)
        targets, predicted = geometry.place(partial(stream.shift, labels, IGNORE_INDEX), pad=IGNORE_INDEX)
        arrays = {
            "input_ids": input_ids,
            "targets": targets,
            "position_ids": geometry.position_ids(int(self.position_offset)),
            "document_ids": geometry.document_ids(),
            "cu_seqlens": self._offsets(geometry),
        }
        batch = PackedBatch({key: torch.from_numpy(array) for key, array in arrays.items()})
        for key, column in (self.columns or {}).items():
            values = column.read(features, stream, predicted != IGNORE_INDEX, key=key)
            placed, _ = geometry.place(partial(np.copyto, src=values), pad=column.pad, like=values)
            batch[key] = torch.from_numpy(placed).to(column.dtype)
        all_learnt = labels is ids  # then only the last tokens of documents predict nothing
        num_targets = len(ids) - len(stream.stops) if all_learnt else np.count_nonzero(predicted != IGNORE_INDEX)
        batch.update(
            lengths=tuple(geometry.lengths.tolist()),
            document_starts=tuple(geometry.starts.tolist()),
            align=int(self.align),
            max_seqlen=int(self._shape.constant_max_seqlen or geometry.max_seqlen),
            num_targets=int(num_targets),
            cross_document_attention=self.cross_document_attention,
            cross_document_targets=self.cross_document_targets,
        )
        return batch

    def _offsets(self, geometry: Geometry) -> Array:
        size = self._shape.offsets(geometry.rows)
        bounds = geometry.bounds.astype(np.int32)
        return bounds if size is None else np.append(bounds, np.full(size - len(bounds), bounds[-1]))


def _are_names(names: Any) -> bool:
    return isinstance(names, Collection) and len(names) > 0 and all(isinstance(name, str) for name in names)


def _concatenate(parts: list[Array], out: Array) -> None:
    np.concatenate([*parts, out[:0]], out=out, casting="unsafe")

"""`StaticBuffers`: one fixed set of tensors that every batch is copied into.

A CUDA graph replays addresses and shapes, and ``torch.compile(mode="reduce-overhead")`` records such graphs: the
tensors must never move and their tails must never hold the batch before. Copying waits for no device: what decides
about the copy (rows, slots, documents) are shapes and host numbers, and the boundaries of the cleared tail are merged
with the batch's own on the device itself.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from packdata.layout import IGNORE_INDEX

from .columns import Column
from .geometry import Shape
from .packed_batch import PackedBatch


class StaticBuffers:
    """Preallocated tensors at fixed addresses, filled by `copy_`.

    Args:
        pad_to: Slots of a row.
        max_documents: Most documents of a row.
        device: Where the tensors live.
        columns: Further columns, as the collator was given them; `Column.tail` says the shape of one value (hidden
            states of width 4096: ``Column(per="token", dtype=torch.bfloat16, tail=(4096,))``).
        rows: Rows of the batch.
        max_seqlen: The constant that ``max_seqlen`` is; ``pad_to`` if None.
        padding_segment: Most slots of a piece of padding, as in the collator.
        pad_token_id: The token id of padding.
        position_offset: The position of a segment's first slot.
        pin_memory: Page-locked host memory (for ``device="cpu"``).

    Example:
        >>> import torch
        >>> from packdata import PackingCollator, StaticBuffers
        >>> buffers = StaticBuffers(pad_to=8, max_documents=2)
        >>> buffers.copy_(PackingCollator()([[11, 12, 13]])).cu_seqlens.tolist()
        [0, 3, 8, 8]
    """

    def __init__(
        self,
        pad_to: int,
        max_documents: int,
        *,
        device: torch.device | str = "cpu",
        columns: Mapping[str, Column] | None = None,
        rows: int = 1,
        max_seqlen: int | None = None,
        padding_segment: int = 512,
        pad_token_id: int = 0,
        position_offset: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.pad_to, self.max_documents, self.rows = pad_to, max_documents, rows
        self.max_seqlen = max_seqlen or pad_to
        shape = Shape(
            pad_to=pad_to, max_documents=max_documents, max_seqlen=max_seqlen, padding_segment=padding_segment
        )
        self.piece = shape.piece
        self._pads: dict[str, int | float] = {"input_ids": pad_token_id, "targets": IGNORE_INDEX, "document_ids": -1}
        self._pads |= {name: column.pad for name, column in (columns or {}).items()}

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device, pin_memory=pin_memory)

        tensors = {
            key: empty(rows, pad_to, dtype=torch.int64)
            for key in ("input_ids", "targets", "position_ids", "document_ids")
        }
        tensors["cu_seqlens"] = empty(cast(int, shape.offsets(rows)), dtype=torch.int32)
        for name, column in (columns or {}).items():
            tensors[name] = empty(rows, pad_to, *column.tail, dtype=column.dtype)
        self._tensors = tensors
        self._ramp = torch.arange(pad_to, device=device) % self.piece + position_offset
        self.batch = self._clear()

    def copy_(self, batch: Mapping[str, Any]) -> PackedBatch:
        """Copy a batch in, and clear what it does not reach.

        Args:
            batch: A batch of at most as many rows, slots and documents, on any device, with the same columns.

        Returns:
            The static tensors with this batch's lengths and counts; the tensors are those of every other call.

        Raises:
            ValueError: If the batch does not fit, has a column that was not declared, or lacks one that was.
        """
        batch = PackedBatch(batch)
        self._check(batch)
        rows, width = batch.input_ids.shape
        for key, buffer in self._tensors.items():
            if key == "cu_seqlens":
                continue
            buffer[:rows, :width].copy_(batch[key].detach(), non_blocking=buffer.device.type != "cpu")
            self._clear_tail(key, rows, width)
        self._copy_offsets(batch.cu_seqlens, rows, width)
        host = {key: value for key, value in batch.items() if not isinstance(value, Tensor)}
        self.batch = PackedBatch(self._tensors | host | {"max_seqlen": self.max_seqlen})
        return self.batch

    def _clear(self) -> PackedBatch:
        for key in self._tensors:
            if key != "cu_seqlens":
                self._clear_tail(key, 0, 0)
        self._copy_offsets(torch.zeros(1, dtype=torch.int32), 0, 0)
        host = {"lengths": (), "document_starts": (), "max_seqlen": self.max_seqlen, "num_targets": 0}
        return PackedBatch(self._tensors | host)

    def _clear_tail(self, key: str, rows: int, width: int) -> None:
        buffer = self._tensors[key]
        if key == "position_ids":
            buffer[:rows, width:] = self._ramp[: self.pad_to - width]
            buffer[rows:] = self._ramp
        else:
            buffer[:rows, width:] = self._pads[key]
            buffer[rows:] = self._pads[key]

    def _copy_offsets(self, offsets: Tensor, rows: int, width: int) -> None:
        buffer, total = self._tensors["cu_seqlens"], self.rows * self.pad_to
        offsets = offsets.to(buffer.device, non_blocking=True)
        if (rows, width) != (self.rows, self.pad_to) or len(offsets) > len(buffer):
            offsets = self._merge(offsets, rows, width)
        buffer.fill_(total)
        kept = min(len(offsets), len(buffer))
        buffer[:kept].copy_(offsets[:kept])

    def _merge(self, offsets: Tensor, rows: int, width: int) -> Tensor:
        """Move the batch's boundaries to where its rows now begin, and add those of the cleared slots.

        Boundaries that coincide are moved to the very end, where the repeats belong.
        """
        total = self.rows * self.pad_to
        row = torch.arange(self.rows, device=offsets.device)[:, None]
        step = torch.arange(-(-self.pad_to // self.piece), device=offsets.device)[None, :] * self.piece
        cleared = torch.minimum(row * self.pad_to + (row < rows) * width + step, (row + 1) * self.pad_to)
        moved = offsets.long() // max(width, 1) * self.pad_to + offsets.long() % max(width, 1)
        bounds = torch.cat([moved, cleared.flatten()]).sort().values
        bounds[1:].masked_fill_(bounds[1:] == bounds[:-1], total)
        return bounds.sort().values

    def _check(self, batch: PackedBatch) -> None:
        rows, width = batch.input_ids.shape
        if rows > self.rows or width > self.pad_to:
            raise ValueError(
                f"the batch has {rows} rows of {width} slots, over the buffers' "
                f"rows={self.rows} and pad_to={self.pad_to}"
            )
        if batch.num_documents > self.rows * self.max_documents:
            raise ValueError(
                f"the batch has {batch.num_documents} documents, over the buffers' "
                f"max_documents={self.max_documents} in each of rows={self.rows}"
            )
        given = {key for key, value in batch.items() if isinstance(value, Tensor)}
        if unknown := sorted(given - self._tensors.keys()):
            raise ValueError(f"the batch has columns {unknown} that the buffers do not: name them in columns")
        if missing := sorted(self._tensors.keys() - given):
            raise ValueError(f"the batch lacks {missing}, which the buffers were made for")

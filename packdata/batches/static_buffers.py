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
from packdata.planning.edge import no_type_check, require_at_least
from packdata.planning.rounding import round_up

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

    @no_type_check
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
        for name, value in {"pad_to": pad_to, "max_documents": max_documents, "rows": rows}.items():
            require_at_least(value, 1, name)
        for name, value in {"pad_token_id": pad_token_id, "position_offset": position_offset}.items():
            require_at_least(value, 0, name)
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
        self.batch = self.copy_(self._nothing())

    def copy_(self, batch: Mapping[str, Any]) -> PackedBatch:
        """Copy a batch in, and clear what it does not reach.

        Args:
            batch: A batch of at most as many rows, slots and documents, on any device, with the same columns.

        Returns:
            The static tensors with this batch's lengths and counts; the tensors are those of every other call.

        Raises:
            ValueError: If the batch does not fit, has a column that was not declared, or lacks one that was. The
                buffers are then as they were.
        """
        batch = PackedBatch(batch)
        self._check(batch)
        rows, width = batch.input_ids.shape
        self._copy_offsets(batch.cu_seqlens, rows, width)  # may refuse, and has then written nothing
        for key, buffer in self._tensors.items():
            if key != "cu_seqlens":
                buffer[:rows, :width].copy_(batch[key].detach(), non_blocking=buffer.device.type != "cpu")
                self._clear_tail(key, rows, width)
        host = {key: value for key, value in batch.items() if not isinstance(value, Tensor)}
        if "document_starts" in host:
            host["document_starts"] = tuple(
                start // width * self.pad_to + start % width for start in host["document_starts"]
            )
        self.batch = PackedBatch(self._tensors | host | {"max_seqlen": self.max_seqlen})
        return self.batch

    def _nothing(self) -> PackedBatch:
        tensors = {key: buffer[:0, :0] for key, buffer in self._tensors.items() if key != "cu_seqlens"}
        offsets = torch.zeros(1, dtype=torch.int32)
        host = {"lengths": (), "document_starts": (), "max_seqlen": 0, "num_targets": 0}
        return PackedBatch(tensors | {"cu_seqlens": offsets} | host)

    def _clear_tail(self, key: str, rows: int, width: int) -> None:
        buffer = self._tensors[key]
        if key == "position_ids":
            buffer[:rows, width:] = self._ramp[: self.pad_to - width]
            buffer[rows:] = self._ramp
        else:
            buffer[:rows, width:] = self._pads[key]
            buffer[rows:] = self._pads[key]

    def _copy_offsets(self, given: Tensor, rows: int, width: int) -> None:
        buffer, total = self._tensors["cu_seqlens"], self.rows * self.pad_to
        offsets = given.to(buffer.device, non_blocking=True)
        most = len(offsets)
        if (rows, width) != (self.rows, self.pad_to) or most > len(buffer):
            offsets, most = self._merge(offsets, rows, width)
        if most > len(buffer) and offsets.device.type == "cpu":
            most = int((offsets < total).sum()) + 1  # repeated offsets count in the bound, but need no room
        if most > len(buffer):
            raise ValueError(
                f"the batch has up to {most - 1} segments, over the {len(buffer) - 1} that max_documents="
                f"{self.max_documents} and pieces of {self.piece} slots of padding make: collate with the buffers' "
                "pad_to, max_documents and padding_segment"
            )
        buffer.fill_(total)
        kept = min(len(offsets), len(buffer))
        buffer[:kept].copy_(offsets[:kept])

    def _merge(self, offsets: Tensor, rows: int, width: int) -> tuple[Tensor, int]:
        """Move the batch's boundaries to where its rows now begin, and add those of the cleared slots.

        Boundaries that coincide are moved to the very end, where repeats belong. Returned with them is the most that
        can differ, which is known without reading them.
        """
        total, steps = self.rows * self.pad_to, round_up(self.pad_to, self.piece) // self.piece
        row = torch.arange(self.rows, device=offsets.device)[:, None]
        step = torch.arange(steps, device=offsets.device)[None, :] * self.piece
        cleared = torch.minimum(row * self.pad_to + (row < rows) * width + step, (row + 1) * self.pad_to)
        moved = offsets.long() // max(width, 1) * self.pad_to + offsets.long() % max(width, 1)
        bounds = torch.cat([moved, cleared.flatten()]).sort().values
        bounds[1:].masked_fill_(bounds[1:] == bounds[:-1], total)
        added = rows * (round_up(self.pad_to - width, self.piece) // self.piece) + (self.rows - rows) * steps
        return bounds.sort().values, len(offsets) + added

    def _check(self, batch: PackedBatch) -> None:
        rows, width = batch.input_ids.shape
        for name, value, most in [
            ("rows", rows, self.rows),
            ("slots a row", width, self.pad_to),
            ("documents", batch.num_documents, self.rows * self.max_documents),
            ("slots in a segment", batch.max_seqlen, self.max_seqlen),
        ]:
            if value > most:
                raise ValueError(
                    f"the batch has {value} {name}, over the {most} of buffers with rows={self.rows}, pad_to="
                    f"{self.pad_to}, max_documents={self.max_documents} and max_seqlen={self.max_seqlen}"
                )
        given = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
        if unknown := sorted(given.keys() - self._tensors.keys()):
            raise ValueError(f"the batch has columns {unknown} that the buffers have not: name them in columns")
        if missing := sorted(self._tensors.keys() - given.keys()):
            raise ValueError(f"the batch lacks {missing}, which the buffers were made for")
        for key, tensor in given.items():
            buffer, tail = self._tensors[key], tuple(tensor.shape[2:])
            fits = torch.can_cast if key == "cu_seqlens" else _keeps_values  # the former never go past the slots
            if tail != buffer.shape[2:] or not fits(tensor.dtype, buffer.dtype):
                raise ValueError(
                    f"{key} must hold {buffer.dtype} of shape {tuple(buffer.shape[2:])}, got {tensor.dtype} of {tail}"
                )


def _keeps_values(given: torch.dtype, kept: torch.dtype) -> bool:
    """Tell whether values can be copied: into floats rounded, into integers exactly."""
    if not torch.can_cast(given, kept):
        return False
    if kept.is_floating_point or kept.is_complex or given is torch.bool:
        return True
    theirs, ours = torch.iinfo(given), torch.iinfo(kept)
    return ours.min <= theirs.min and theirs.max <= ours.max

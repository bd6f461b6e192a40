"""`PackedBatch`: the packed tensors, with what the host knows about them as plain Python values.

It is a ``dict``, so that a ``DataLoader``, ``pin_memory``, Accelerate, Lightning and Trainer walk it as they walk any
batch. What they must not touch (lengths, counts, the policy) is kept as ints, bools and tuples of ints: every walker
hands those on as they are, and reading them never waits for a device.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from packdata.layout import IGNORE_INDEX
from packdata.planning.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the caller allowed across documents; both are off unless asked for.

    Attributes:
        cross_document_attention: One segment covers a whole pack or row: its documents see each other.
        cross_document_targets: A document's last token predicts the next one's first.
    """

    cross_document_attention: bool = False
    cross_document_targets: bool = False


class PackedBatch(dict[str, Any]):
    """A batch of packed documents: a ``dict`` with typed properties.

    Keys (``R`` rows of ``T`` slots; a slot holds a token or padding):

    - ``input_ids``, ``targets``, ``position_ids``, ``document_ids``: int64 ``[R, T]``. ``targets`` is shifted: what
      the logits at this slot must predict, ``IGNORE_INDEX`` where nothing is. ``document_ids`` count from 0 in the
      batch, -1 is padding.
    - ``cu_seqlens``: int32 ``[segments+1]`` over the flattened ``R·T`` slots, padding included.
    - further columns that the collator was told of.
    - ``lengths``: tokens of each document, a tuple of ints; ``document_starts``: each document's first slot in the
      flattened rows; ``align``, ``max_seqlen``, ``num_targets``: ints; ``cross_document_attention``,
      ``cross_document_targets``: bools.

    ``labels`` and ``loss_mask`` derive from ``targets`` on its device. Nothing here copies from a device to the host.
    """

    @property
    def input_ids(self) -> Tensor:
        """Token ids, int64 ``[R, T]``."""
        return cast(Tensor, self["input_ids"])

    @property
    def targets(self) -> Tensor:
        """What the logits at each slot must predict (shifted), int64 ``[R, T]``; ``IGNORE_INDEX`` where nothing is."""
        return cast(Tensor, self["targets"])

    @property
    def position_ids(self) -> Tensor:
        """Positions, restarting in every segment, int64 ``[R, T]``."""
        return cast(Tensor, self["position_ids"])

    @property
    def document_ids(self) -> Tensor:
        """Number of each slot's document in the batch, -1 on padding, int64 ``[R, T]``."""
        return cast(Tensor, self["document_ids"])

    @property
    def cu_seqlens(self) -> Tensor:
        """Segment boundaries over the flattened slots, int32 ``[segments+1]``."""
        return cast(Tensor, self["cu_seqlens"])

    @property
    def labels(self) -> Tensor:
        """The un-shifted twin of ``targets`` (Hugging Face's ``labels``), int64 ``[R, T]``; a new tensor.

        The token itself where it is a target, else ``IGNORE_INDEX``; a row's first slot never is one.
        """
        return F.pad(self.targets, (1, -1), value=IGNORE_INDEX)

    @property
    def loss_mask(self) -> Tensor:
        """Which slots predict a target (shifted), bool ``[R, T]``; a new tensor."""
        return self.targets != IGNORE_INDEX

    @property
    def segment_ids(self) -> Tensor:
        """Number of each slot's segment in the batch, from 0, padding's included, int64 ``[R, T]``; a new tensor."""
        slots = torch.arange(self.input_ids.numel(), device=self.cu_seqlens.device, dtype=self.cu_seqlens.dtype)
        return (torch.searchsorted(self.cu_seqlens, slots, right=True) - 1).view(self.input_ids.shape)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each document, in order, without alignment or padding."""
        return cast(tuple[int, ...], self["lengths"])

    @property
    def max_seqlen(self) -> int:
        """Slots of the longest segment, or the constant that the collator was given."""
        return cast(int, self["max_seqlen"])

    @property
    def num_targets(self) -> int:
        """How many slots predict a target."""
        return cast(int, self["num_targets"])

    @property
    def num_documents(self) -> int:
        """How many documents the batch holds (not packs, and no padding)."""
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """How many slots hold a token."""
        return sum(self.lengths)

    @property
    def align(self) -> int:
        """What each document's slots were rounded up to a multiple of."""
        return cast(int, self.get("align", 1))

    @property
    def policy(self) -> Policy:
        """What the collator was asked to allow across documents."""
        return Policy(
            cross_document_attention=self.get("cross_document_attention", False),
            cross_document_targets=self.get("cross_document_targets", False),
        )

    @property
    def document_starts(self) -> tuple[int, ...]:
        """First slot of each document in the flattened ``R·T`` slots.

        Read from ``document_ids`` (waiting for their device) only in a batch that was made without this key.
        """
        if "document_starts" not in self:
            ids = self.document_ids.flatten()
            first = torch.ones_like(ids, dtype=torch.bool)
            first[1:] = ids[1:] != ids[:-1]
            return tuple((first & (ids >= 0)).nonzero().flatten().tolist())
        return cast(tuple[int, ...], self["document_starts"])

    def __missing__(self, key: Any) -> Any:
        derived = isinstance(getattr(type(self), str(key), None), property)
        raise KeyError(f"{key!r}: " + (f"batch.{key} derives it" if derived else f"there are {list(self)}"))

    def __repr__(self) -> str:
        if "input_ids" not in self or "lengths" not in self:
            return f"PackedBatch({dict(self)!r})"
        rows, width = self.input_ids.shape
        facts = [
            f"{counted(rows, 'row')} of {counted(width, 'slot')}",
            counted(self.num_documents, "document"),
            f"{counted(self.num_tokens, 'token')} ({self.num_tokens / max(rows * width, 1):.1%} full)",
            *(f"{name} {self[name]}" for name in ("num_targets", "max_seqlen", "align") if name in self),
        ]
        tensors = [
            f"  {key:<14} {str(value.dtype).removeprefix('torch.'):<8} {list(value.shape)} on {value.device}"
            for key, value in self.items()
            if isinstance(value, Tensor)
        ]
        return "\n".join([f"PackedBatch: {', '.join(facts)}", *tensors])

    def to(self, device: Any, non_blocking: bool = False) -> "PackedBatch":
        """Move every tensor to ``device``; what the host knows comes along unchanged.

        Raises:
            TypeError: If it is no device; a dtype would round the token ids.
        """
        device = torch.device(device)
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "PackedBatch":
        """Copy every tensor to page-locked host memory (a ``DataLoader`` with ``pin_memory=True`` calls this)."""
        return self._map_tensors(Tensor.pin_memory)

    def copy(self) -> "PackedBatch":
        """Copy the mapping, not the tensors."""
        return PackedBatch(self)

    def unpack(self, tensor: Tensor) -> list[Tensor]:
        """Split a tensor over the slots into its documents.

        Args:
            tensor: Any dtype and device, shape ``[R, T, *tail]`` (logits, token losses, hidden states).

        Returns:
            One view of ``tensor`` per document where its layout allows, shape ``[length, *tail]``; no padding.

        Raises:
            ValueError: If ``tensor`` does not begin with the batch's ``[R, T]``.

        Example:
            >>> from packdata import PackingCollator
            >>> batch = PackingCollator(pad_to=8)([[11, 12, 13], [21, 22]])
            >>> batch.unpack(batch.input_ids)
            [tensor([11, 12, 13]), tensor([21, 22])]
        """
        self._check_slots(tensor, "tensor")
        flat = tensor.flatten(0, 1)
        return [flat[start : start + length] for start, length in zip(self.document_starts, self.lengths, strict=True)]

    def document_sums(self, values: Tensor, *, over: Literal["targets", "tokens"] = "targets") -> Tensor:
        """Add up a value per slot within each document, without waiting for the device.

        Args:
            values: Shape ``[R, T, *tail]``, floating point, integer or bool.
            over: The slots that count: ``"targets"`` (token losses, log-probabilities) or ``"tokens"``. What stands
                elsewhere does not matter, NaN included.

        Returns:
            Shape ``[documents, *tail]``, on the device of ``values`` and in their dtype, but float32 for half precision
            and int64 for integers and bools, which cannot add up many; 0 for a document without such slots.
        """
        self._check_slots(values, "values")
        flat = values.flatten(0, 1)
        if not (flat.is_floating_point() or flat.is_complex()):
            flat = flat.long()
        elif flat.itemsize < 4:
            flat = flat.float()
        counted = self._counted(over).view(-1, *[1] * (flat.dim() - 1))
        index = self.document_ids.flatten() + 1  # padding, -1, is added up in front and cut off
        sums = flat.new_zeros(self.num_documents + 1, *flat.shape[1:])
        return sums.index_add(0, index, flat.where(counted, flat.new_zeros(())))[1:]

    def document_means(self, values: Tensor, *, over: Literal["targets", "tokens"] = "targets") -> Tensor:
        """Average a value per slot within each document: `document_sums` by the number of slots that count.

        Args:
            values: Shape ``[R, T, *tail]``, floating point, integer or bool (``logits.argmax(-1) == batch.targets``).
            over: The slots that count: ``"targets"`` or ``"tokens"``.

        Returns:
            Floating point, shape ``[documents, *tail]``; 0 for a document without such slots.
        """
        counted = self._counted(over).view_as(self.targets).to(torch.int64)
        counts = self.document_sums(counted, over=over).clamp(min=1)
        sums = self.document_sums(values, over=over)
        return sums / counts.view(-1, *[1] * (sums.dim() - 1))

    def _counted(self, over: Literal["targets", "tokens"]) -> Tensor:
        if over not in ("targets", "tokens"):
            raise ValueError(f'over must be "targets" or "tokens", got {over!r}')
        return (self.loss_mask if over == "targets" else self.document_ids >= 0).flatten(0, 1)

    def _check_slots(self, tensor: Tensor, name: str) -> None:
        if tensor.shape[:2] != self.input_ids.shape:
            raise ValueError(
                f"{name} must begin with the batch's rows and slots {list(self.input_ids.shape)}, "
                f"got shape {list(tensor.shape)}"
            )

    def _map_tensors(self, function: Any) -> "PackedBatch":
        return PackedBatch(
            {key: function(value) if isinstance(value, Tensor) else value for key, value in self.items()}
        )

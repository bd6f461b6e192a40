"""Draft blocks at fixed addresses: anchors, targets and mask of one static stream, drawn anew in place.

A CUDA graph replays addresses. Drawing happens outside of it, with fresh tensors, which are then copied into the fixed
ones: the mask's tables *and* the tensors that its predicate reads, since either alone describes half of the new mask.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from packdata.attention.static import refresh_block_mask
from packdata.batches import PackedBatch
from packdata.drafting.anchor_blocks import anchor_block_mask
from packdata.drafting.anchor_mask import anchor_dense_mask
from packdata.drafting.anchor_windows import anchor_windows
from packdata.drafting.anchors import select_anchors
from packdata.drafting.drafter import AnchorMask
from packdata.drafting.slots import document_remaining
from packdata.drafting.targets import DraftTargets, draft_targets

_BUILDERS: dict[str, Callable[..., AnchorMask]] = {
    "flex": anchor_block_mask,
    "windows": anchor_windows,
    "dense": anchor_dense_mask,
}


class StaticBlocks:
    """The draft blocks of a stream that lives at fixed addresses, such as that of `StaticBuffers`.

    Args:
        stream: The stream; its tensors are held, and read anew at every draw.
        num_anchors: Blocks (``A``).
        block_size: Slots of a block (``B``).
        mask: What for: ``"flex"`` attention (`anchor_block_mask`); where that is not to be had, as on a CPU, which has
            no backward of it: ``"windows"`` (`anchor_windows`, needs ``window``) or ``"dense"`` (`anchor_dense_mask`).
        window: As in `anchor_block_mask_mod`.
        block_causal: As in `anchor_block_mask_mod`.
        tail: As in `select_anchors`.
        sample_from_anchor: As in `draft_targets`.
        decay: As in `draft_targets`.

    Attributes:
        anchors: int64, shape ``(A,)``.
        anchor_valid: bool, shape ``(A,)``.
        targets: What each draft slot predicts.
        mask: What each draft slot sees.

    Example:
        >>> from packdata.batches import PackingCollator
        >>> blocks = StaticBlocks(PackingCollator(8)([[11, 12, 13]]), num_anchors=2, block_size=2, mask="dense")
        >>> address = blocks.anchors.data_ptr()
        >>> blocks.draw(key=1)
        >>> blocks.anchors, blocks.anchor_valid, blocks.anchors.data_ptr() == address
        (tensor([1, 0]), tensor([ True, False]), True)
    """

    def __init__(
        self,
        stream: PackedBatch,
        *,
        num_anchors: int,
        block_size: int,
        mask: Literal["flex", "windows", "dense"],
        window: int | None = None,
        block_causal: bool = False,
        tail: Literal["truncate", "exclude"] = "truncate",
        sample_from_anchor: bool = False,
        decay: float | None = None,
    ) -> None:
        if mask not in _BUILDERS:
            raise ValueError(f"mask must be one of {', '.join(map(repr, _BUILDERS))}, got {mask!r}")
        if mask == "windows" and window is None:
            raise ValueError('mask="windows" needs a window: the longest document\'s length hides nothing')
        self._stream = stream
        self._drawing: dict[str, Any] = {"num_anchors": num_anchors, "block_size": block_size, "tail": tail}
        self._aiming: dict[str, Any] = {
            "block_size": block_size,
            "sample_from_anchor": sample_from_anchor,
            "decay": decay,
        }
        self._seeing: dict[str, Any] = {"block_size": block_size, "window": window, "block_causal": block_causal}
        self._build = _BUILDERS[mask]
        self.anchors, self.anchor_valid, self.targets = self._drawn(0, None)
        self.mask = self._mask()

    def draw(self, key: int | Tensor, *, document_keys: Tensor | None = None) -> None:
        """Draw anchors from what the stream now holds, and write them, their targets and their mask in place.

        Args:
            key: As in `select_anchors`.
            document_keys: As in `select_anchors`; default: the stream's document ids.
        """
        anchors, anchor_valid, targets = self._drawn(key, document_keys)
        self.anchors.copy_(anchors)
        self.anchor_valid.copy_(anchor_valid)
        _copy(self.targets, targets)
        _copy(self.mask, self._mask())

    def _drawn(self, key: int | Tensor, document_keys: Tensor | None) -> tuple[Tensor, Tensor, DraftTargets]:
        stream = self._stream
        labels, ids = stream.labels, stream.document_ids
        remaining = document_remaining(stream.cu_seqlens, ids)
        anchors, anchor_valid = select_anchors(
            labels, remaining, document_ids=ids, document_keys=document_keys, key=key, **self._drawing
        )
        targets = draft_targets(labels, remaining, stream.position_ids, anchors, anchor_valid, **self._aiming)
        return anchors, anchor_valid, targets

    def _mask(self) -> AnchorMask:
        return self._build(self._stream.document_ids, self.anchors, self.anchor_valid, **self._seeing)


def _copy(fixed: Any, fresh: Any) -> None:
    if isinstance(fixed, BlockMask):
        refresh_block_mask(fixed, fresh)
    elif isinstance(fixed, Tensor):
        fixed.copy_(fresh)
    else:
        for old, new in zip(fixed, fresh, strict=True):
            old.copy_(new)

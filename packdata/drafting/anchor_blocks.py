"""The mask of draft blocks for flex attention, its tables counted from boundaries.

What a draft slot sees are two runs of keys: a piece of its document that ends before the anchor, and its own block. So
the tables come from the same count as the document mask's, without a mask of queries times keys: at 49,152 context
slots and 1,024 blocks of 32 that mask would take 2.7 GB, the tables take 2.6 MB.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from packdata.attention.blocks import block_mask_from_intervals
from packdata.attention.intervals import KeyIntervals
from packdata.drafting.anchor_mask import anchor_block_mask_mod
from packdata.drafting.slots import run_starts


def anchor_block_mask(
    document_ids: Tensor,
    anchors: Tensor,
    anchor_valid: Tensor,
    *,
    block_size: int,
    window: int | None = None,
    block_causal: bool = False,
    tile_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """Build flex attention's ``BlockMask`` of draft blocks.

    Its tables equal those of ``create_block_mask`` on `anchor_block_mask_mod`. Ascending anchors keep the tiles dense.
    In a CUDA graph, build it outside and copy it into a fixed one with `packdata.attention.refresh_block_mask`.

    Args:
        document_ids: Document of each slot, −1 on padding; int64, shape ``(1, T)``. Each document is one run.
        anchors: Slots at which the blocks begin; int64, shape ``(A,)``.
        anchor_valid: Which anchors are real; bool, shape ``(A,)``.
        block_size: Slots of a draft block (``B``).
        window: If given, the most context slots that a block sees: those from anchor − ``window`` on.
        block_causal: Whether a draft slot sees only itself and those before it in its block.
        tile_size: Slots of flex attention's query and key blocks (its own ``BLOCK_SIZE``).

    Returns:
        The mask of ``A * B`` queries and ``T + A * B`` keys, on the device of ``anchors``. Its ``mask_mod`` holds the
        given tensors, not copies.

    Raises:
        ValueError: If a shape or an option is wrong.

    Example:
        >>> ids, anchors, valid = torch.zeros(1, 300, dtype=torch.int64), torch.tensor([9, 200]), torch.ones(2).bool()
        >>> anchor_block_mask(ids, anchors, valid, block_size=8).shape
        (1, 1, 16, 316)
    """
    mask_mod = anchor_block_mask_mod(
        document_ids, anchors, anchor_valid, block_size=block_size, window=window, block_causal=block_causal
    )
    tokens, queries = document_ids.shape[1], len(anchors) * block_size
    intervals = [
        _context(document_ids[0], anchors, anchor_valid, block_size, window),
        _own_block(tokens, queries, block_size, block_causal, anchors.device),
    ]
    return block_mask_from_intervals(intervals, mask_mod, keys=tokens + queries, block_size=tile_size)


def _context(ids: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int, window: int | None) -> KeyIntervals:
    end = torch.where(anchor_valid & (ids[anchors] >= 0), anchors, 0)
    first = run_starts(ids)[end]
    if window is not None:
        first = torch.maximum(first, end - window)
    return _per_slot(first, end, block_size)


def _own_block(tokens: int, queries: int, block_size: int, block_causal: bool, device: torch.device) -> KeyIntervals:
    slots = torch.arange(tokens, tokens + queries, device=device)
    first = slots - (slots - tokens) % block_size
    end = slots + 1 if block_causal else first + block_size
    return KeyIntervals(first=first[None], end=end[None])


def _per_slot(first: Tensor, end: Tensor, block_size: int) -> KeyIntervals:
    def spread(bound: Tensor) -> Tensor:
        return bound[:, None].expand(-1, block_size).reshape(1, -1)

    return KeyIntervals(first=spread(first), end=spread(end))

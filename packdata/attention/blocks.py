"""Block tables counted from intervals, without a mask of queries times keys.

``create_block_mask`` fills the whole mask and sums it over tiles. Here a tile's sum is counted from the intervals' ends
alone. An interval ``[first, end)`` covers ``reach(end) - reach(first)`` keys of key block ``k`` of size ``b``, where
``reach(x) = clamp(x - k * b, 0, b)``: that is ``b`` for every ``x`` in a later block, and the remainder ``x % b`` for
an ``x`` in block ``k`` itself. So each query adds two numbers to the table of its query block, and one running sum
along the key blocks gives the sum of every tile:

    b = 4, one query with keys [2, 9)       block   0   1   2   3
    first: +1 in block 2 // 4 = 0                  +1
    end:   -1 in block 9 // 4 = 2                          -1
    running sum, times b                            4   4   0   0
    remainders: -2 in block 0, +1 in block 2       -2       1
    keys covered                                    2   4   1   0

A tile is full if it covers all of its slots (never in a query block cut off by the end), partial if it covers some. The
cost is O(queries + query blocks * key blocks), and no shape depends on the boundaries.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .intervals import KeyIntervals

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def block_mask_from_intervals(
    intervals: Sequence[KeyIntervals], mask_mod: MaskMod, *, keys: int, block_size: int | tuple[int, int] = 128
) -> BlockMask:
    """Build a ``BlockMask`` for queries whose keys are a few intervals each.

    Entry for entry the tables of ``create_block_mask(mask_mod, ...)``, if the intervals say what ``mask_mod`` says.

    Args:
        intervals: The keys of query ``q`` of row ``r`` are ``[first[r, q], end[r, q])`` of every entry, within
            ``0 ... keys``. The entries' intervals do not overlap; an interval with ``end <= first`` is empty.
        mask_mod: The same predicate for flex attention to evaluate on partial blocks.
        keys: Number of keys.
        block_size: Slots of a query block and of a key block.

    Returns:
        The mask, with one head, on the device of the intervals.

    Raises:
        ValueError: If ``block_size`` is not one or two positive integers.
    """
    query_block, key_block = as_block_size(block_size)
    counts = [_tile_counts(part, keys, query_block, key_block) for part in intervals]
    covered = torch.stack(counts).sum(0, dtype=torch.int32)
    full = covered == query_block * key_block
    partial = (covered > 0) & ~full
    return BlockMask(
        (intervals[0].first.shape[-1], keys),
        *_ordered(partial),
        *_ordered(full),
        *_ordered(partial.mT),
        *_ordered(full.mT),
        BLOCK_SIZE=(query_block, key_block),
        mask_mod=mask_mod,
    )


def as_block_size(block_size: Any) -> tuple[int, int]:
    """Read ``block_size`` as the slots of a query block and of a key block.

    Raises:
        ValueError: If it is not one or two positive integers.
    """
    sizes = tuple(block_size) if isinstance(block_size, tuple | list) else (block_size, block_size)
    if len(sizes) != 2 or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(
            f"block_size must be one or two positive integers (query block, key block), got {block_size!r}"
        )
    return sizes


def _tile_counts(intervals: KeyIntervals, keys: int, query_block: int, key_block: int) -> Tensor:
    rows, queries = intervals.first.shape
    query_blocks, key_blocks = -(-queries // query_block), -(-keys // key_block)
    width = key_blocks + 1  # an end that is a multiple of the block lies in the block after it
    device = intervals.first.device
    tile_row = (
        torch.arange(rows, device=device).unsqueeze(1) * query_blocks
        + torch.arange(queries, device=device) // query_block
    )
    steps = torch.zeros(rows * query_blocks * width, dtype=torch.int32, device=device)
    remainders = torch.zeros_like(steps)
    ends = torch.maximum(intervals.first, intervals.end)
    for bound, sign in ((intervals.first, 1), (ends, -1)):
        tile = (tile_row * width + bound // key_block).flatten()
        steps.index_add_(0, tile, torch.full_like(tile, sign, dtype=torch.int32))
        remainders.index_add_(0, tile, (bound % key_block).flatten().int(), alpha=-sign)
    running = steps.view(rows, query_blocks, width).cumsum(-1, dtype=torch.int32)
    return (running * key_block + remainders.view_as(running))[:, None, :, :key_blocks]


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Count and list the True columns of each row, in order, then the others: torch's stable sort, without sorting."""
    columns = torch.arange(dense.shape[-1], device=dense.device, dtype=torch.int32)
    seen = dense.cumsum(-1, dtype=torch.int32)
    counts = dense.sum(-1, dtype=torch.int32)
    place = torch.where(dense, seen - 1, counts.unsqueeze(-1) + columns - seen)
    indices = torch.empty(dense.shape, dtype=torch.int32, device=dense.device)
    return counts, indices.scatter_(-1, place.long(), columns.expand(dense.shape))

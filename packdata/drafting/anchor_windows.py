"""The mask of draft blocks with a window, as the few keys that each block can see.

Where flex attention is not to be had, a dense mask pays for every key of the stream: ``A * B * (T + A * B)`` scores of
which nearly all are hidden. With a window of ``W`` slots a block sees at most the ``W`` before its anchor, so their
keys can be gathered and the blocks attend side by side, as a batch: ``A * B * (W + B)`` scores. A window of the longest
document hides nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from packdata.drafting.anchor_mask import check_anchors


class AnchorWindows(NamedTuple):
    """Which keys each block gathers, and what its queries see of them.

    Attributes:
        keys: Numbers of the ``W`` context slots before the anchor, clamped into the stream, and of the ``B`` draft
            slots of the block (from ``T`` on); int64, shape ``(A, W + B)``.
        mask: True where a query attends; bool, shape ``(A, 1, B, W + B)``.
    """

    keys: Tensor
    mask: Tensor


def anchor_windows(
    document_ids: Tensor,
    anchors: Tensor,
    anchor_valid: Tensor,
    *,
    block_size: int,
    window: int,
    block_causal: bool = False,
) -> AnchorWindows:
    """Say what each draft block sees, key by key; arguments and errors as for `anchor_block_mask_mod`.

    Returns:
        The same mask as there with this ``window``, of a size that does not depend on the stream's.

    Example:
        >>> ids, anchors, valid = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([1, 4]), torch.tensor([True, True])
        >>> windows = anchor_windows(ids, anchors, valid, block_size=1, window=3)
        >>> windows.keys.tolist(), windows.mask[:, 0, 0].int().tolist()
        ([[0, 0, 0, 5], [1, 2, 3, 6]], [[0, 0, 1, 1], [0, 1, 1, 1]])
    """
    check_anchors(document_ids, anchors, anchor_valid, block_size, window)
    ids, count = document_ids[0], len(anchors)
    before = anchors[:, None] + torch.arange(-window, 0, device=anchors.device)
    slots = before.clamp(min=0)
    document = ids[anchors][:, None]
    context = anchor_valid[:, None] & (before >= 0) & (ids[slots] == document) & (document >= 0)
    own = torch.ones(block_size, block_size, dtype=torch.bool, device=anchors.device)
    own = own.tril() if block_causal else own
    mask = torch.cat([context[:, None].expand(-1, block_size, -1), own.expand(count, -1, -1)], -1)
    drafts = torch.arange(len(ids), len(ids) + count * block_size, device=anchors.device).view(count, block_size)
    return AnchorWindows(torch.cat([slots, drafts], 1), mask[:, None])

"""What a draft block may look at: the predicate, and the dense mask made from it.

Queries are the ``A * B`` draft slots; keys are the stream's ``T`` context slots and then the draft slots again. For
anchors at slots 2 and 4 of documents ``0 0 0 1 1``, blocks of two (``x`` = attend)::

              context      draft
              0 0 0 1 1 | 0 0 1 1
    block 0   x x . . . | x x . .      before the anchor in its document, and its own block
              x x . . . | x x . .
    block 1   . . . x . | . . x x
              . . . x . | . . x x
"""

from collections.abc import Callable

import torch
from torch import Tensor

from packdata.drafting.anchors import check_drawn
from packdata.planning.edge import require_at_least

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def anchor_block_mask_mod(
    document_ids: Tensor,
    anchors: Tensor,
    anchor_valid: Tensor,
    *,
    block_size: int,
    window: int | None = None,
    block_causal: bool = False,
) -> MaskMod:
    """Make the predicate ``(batch, head, query, key) -> attend`` of draft blocks, for flex attention.

    A block sees the context strictly before its anchor in the anchor's document, and itself, in both directions.
    Blocks do not see each other. A block whose anchor is not valid sees only itself, so that no row is empty.

    Args:
        document_ids: Document of each slot, −1 on padding; int64, shape ``(1, T)``. Each document is one run.
        anchors: Slots at which the blocks begin; int64, shape ``(A,)``.
        anchor_valid: Which anchors are real; bool, shape ``(A,)``.
        block_size: Slots of a draft block (``B``).
        window: If given, the most context slots that a block sees: those from anchor − ``window`` on.
        block_causal: Whether a draft slot sees only itself and those before it in its block.

    Returns:
        The predicate. It holds the given tensors, not copies: writing into them changes it.

    Raises:
        ValueError: If a shape or an option is wrong.
    """
    check_anchors(document_ids, anchors, anchor_valid, block_size, window)
    ids, tokens = document_ids[0], document_ids.shape[1]

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block = query // block_size
        anchor = anchors[block]
        document = ids[anchor]
        context = (key < anchor) & (ids[key.clamp(max=tokens - 1)] == document) & (document >= 0) & anchor_valid[block]
        if window is not None:
            context &= key >= anchor - window
        draft = (key >= tokens) & ((key - tokens) // block_size == block)
        if block_causal:
            draft &= key - tokens <= query
        return context | draft

    return mask_mod


def anchor_dense_mask(
    document_ids: Tensor,
    anchors: Tensor,
    anchor_valid: Tensor,
    *,
    block_size: int,
    window: int | None = None,
    block_causal: bool = False,
) -> Tensor:
    """Write the predicate of `anchor_block_mask_mod` out, for SDPA; arguments and errors as there.

    Returns:
        True where a query attends; bool, shape ``(1, 1, A * B, T + A * B)``.

    Example:
        >>> ids, anchors, valid = torch.tensor([[0, 0, 0]]), torch.tensor([2]), torch.tensor([True])
        >>> anchor_dense_mask(ids, anchors, valid, block_size=2).int()
        tensor([[[[1, 1, 0, 1, 1],
                  [1, 1, 0, 1, 1]]]], dtype=torch.int32)
    """
    mask_mod = anchor_block_mask_mod(
        document_ids, anchors, anchor_valid, block_size=block_size, window=window, block_causal=block_causal
    )
    queries = torch.arange(len(anchors) * block_size, device=anchors.device)
    keys = torch.arange(document_ids.shape[1] + len(queries), device=anchors.device)
    zero = queries.new_zeros(())
    return mask_mod(zero, zero, queries[:, None], keys)[None, None]


def check_anchors(
    document_ids: Tensor, anchors: Tensor, anchor_valid: Tensor, block_size: int, window: int | None
) -> None:
    """Raise unless the arguments of a mask fit together."""
    if document_ids.ndim != 2 or document_ids.shape[0] != 1:
        raise ValueError(f"document_ids must be one stream of shape (1, T), got {tuple(document_ids.shape)}")
    check_drawn(anchors, anchor_valid)
    require_at_least(block_size, 1, "block_size")
    if window is not None:
        require_at_least(window, 0, "window")

"""What drafts are worth: how many tokens one pass of the target yields when it checks a block at a time."""

import torch
from torch import Tensor

from packdata.batches import PackedBatch
from packdata.drafting.anchor_mask import anchor_dense_mask
from packdata.drafting.drafter import BlockDrafter


@torch.no_grad()
def acceptance_length(
    drafter: BlockDrafter, embedding: Tensor, stream: PackedBatch, *, prompt_length: int, block_size: int
) -> float:
    """Replay greedy speculative decoding over the target's own greedy continuations.

    A block is drafted at the newest token. A drafted token is accepted if it is the one that the target went on with
    and all drafted before it were; the target's own next token comes on top, and the next block begins there. Without
    drafts a pass yields exactly one token.

    Args:
        drafter: The drafter.
        embedding: The target's embedding, which is its head as well, shape ``(V, H)``.
        stream: Packed documents, each a prompt and the target's greedy continuation, with their ``hidden_states``.
        prompt_length: Tokens of each prompt.
        block_size: Slots of a block, the anchor included.

    Returns:
        Tokens per pass of the target, from 1 to ``block_size``. Waits for the device.

    Raises:
        ValueError: If there is no document, or one has no room for a block behind its prompt.
    """
    if not stream.lengths:
        raise ValueError("stream must hold at least one document to replay, got none")
    tokens = passes = 0
    for document, (start, length) in enumerate(zip(stream.document_starts, stream.lengths, strict=True)):
        if length < prompt_length + block_size:
            raise ValueError(
                f"document {document} must have a prompt of {prompt_length} tokens and a block of {block_size}, "
                f"got {length} tokens"
            )
        anchors = torch.arange(start + prompt_length, start + length - block_size + 1, device=embedding.device)
        accepted = _accepted(drafter, embedding, stream, anchors, block_size)
        place = 0
        while place < len(accepted):
            passes, tokens, place = passes + 1, tokens + accepted[place] + 1, place + accepted[place] + 1
    return tokens / passes


def _accepted(
    drafter: BlockDrafter, embedding: Tensor, stream: PackedBatch, anchors: Tensor, block_size: int
) -> list[int]:
    """Count the drafted tokens that would be accepted at each anchor."""
    slots = anchors[:, None] + torch.arange(block_size, device=anchors.device)
    mask = anchor_dense_mask(stream.document_ids, anchors, anchors >= 0, block_size=block_size)
    positions = stream.position_ids[0, slots].flatten()
    anchor_embeddings = embedding[stream.input_ids[0, anchors]]
    states = drafter(stream["hidden_states"], stream.position_ids, anchor_embeddings, positions, mask)
    drafted = (states[0] @ embedding.T).argmax(-1).view(slots.shape)
    right = drafted[:, 1:] == stream.input_ids[0, slots[:, 1:]]
    accepted: list[int] = right.int().cumprod(1).sum(1).tolist()
    return accepted

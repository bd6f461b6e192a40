"""What each draft slot must predict, and how much it counts."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from packdata.drafting.anchors import check_drawn, check_stream
from packdata.layout import IGNORE_INDEX
from packdata.planning.edge import require_at_least


class DraftTargets(NamedTuple):
    """Targets of ``A`` blocks of ``B`` draft slots.

    Attributes:
        label_index: The slot of the stream whose token is to be predicted, clamped into it; int64, shape ``(A, B)``.
        label_weight: Weight of that prediction, 0 where there is none; float32, shape ``(A, B)``.
        slot_positions: Position id of each draft slot: its anchor's plus its place; int64, shape ``(A * B,)``.
    """

    label_index: Tensor
    label_weight: Tensor
    slot_positions: Tensor


def draft_targets(
    labels: Tensor,
    document_remaining: Tensor,
    position_ids: Tensor,
    anchors: Tensor,
    anchor_valid: Tensor,
    *,
    block_size: int,
    sample_from_anchor: bool = False,
    decay: float | None = None,
) -> DraftTargets:
    """Say which token each draft slot predicts.

    A block's input is the anchor's token and ``block_size - 1`` masks. Slot k stands in the place of token anchor + k
    and predicts it; slot 0 knows its token and is not trained. With ``sample_from_anchor`` slot k predicts the token
    after that, and every slot trains. A prediction ``ahead`` tokens from its anchor weighs
    exp(−(ahead − 1) / ``decay``) if the token is trained and in the anchor's document, else 0.

    Args:
        labels: Un-shifted labels, −100 where not trained; int64, shape ``(1, T)``.
        document_remaining: Tokens after each slot in its document, −1 on padding; int64, shape ``(1, T)``.
        position_ids: Positions, restarting in every document; int64, shape ``(1, T)``.
        anchors: Slots at which the blocks begin; int64, shape ``(A,)``.
        anchor_valid: Which anchors are real; bool, shape ``(A,)``.
        block_size: Slots of a draft block (``B``).
        sample_from_anchor: Whether slot k predicts anchor + k + 1 rather than anchor + k.
        decay: Tokens after which the weight has fallen by e; None weighs all alike.

    Returns:
        New tensors on the device of ``labels``.

    Raises:
        ValueError: If a shape or an option is wrong.

    Example:
        >>> labels, remaining = torch.tensor([[-100, 5, 6]]), torch.tensor([[2, 1, 0]])
        >>> targets = draft_targets(labels, remaining, torch.arange(3)[None], torch.tensor([1]), torch.tensor([True]),
        ...                         block_size=3)
        >>> targets.label_index, targets.label_weight
        (tensor([[1, 2, 2]]), tensor([[0., 1., 0.]]))
    """
    check_stream(labels=labels, document_remaining=document_remaining, position_ids=position_ids)
    check_drawn(anchors, anchor_valid)
    require_at_least(block_size, 1, "block_size")
    if decay is not None and not decay > 0:
        raise ValueError(f"decay must be above 0 tokens (None weighs all alike), got {decay}")
    places = torch.arange(block_size, device=labels.device)
    ahead = places + int(sample_from_anchor)
    label_index = (anchors[:, None] + ahead).clamp(max=labels.shape[1] - 1)
    inside = (ahead >= 1) & (ahead <= document_remaining[0, anchors][:, None])
    trained = anchor_valid[:, None] & inside & (labels[0, label_index] != IGNORE_INDEX)
    # Nothing is -1 tokens from a prediction, and exp would make that place infinite where the decay is quick.
    weights = torch.exp(-(ahead - 1).clamp(min=0) / decay) if decay is not None else torch.ones_like(ahead)
    slot_positions = position_ids[0, anchors][:, None] + places
    return DraftTargets(label_index, trained * weights.to(torch.float32), slot_positions.reshape(-1))


def targets_ahead(labels: Tensor, document_remaining: Tensor, steps: int) -> Tensor:
    """Give the token 1, 2, … ``steps`` ahead of each slot, for heads that predict several (MTP, Medusa).

    Args:
        labels: Un-shifted labels, −100 where not trained; int64, shape ``(1, T)``.
        document_remaining: Tokens after each slot in its document, −1 on padding; int64, shape ``(1, T)``.
        steps: How many tokens ahead.

    Returns:
        int64, shape ``(steps, 1, T)``: row 0 is one ahead; −100 past a document's end and where not trained.

    Raises:
        ValueError: If a shape or ``steps`` is wrong.

    Example:
        >>> targets_ahead(torch.tensor([[-100, 5, 6, -100, 8]]), torch.tensor([[2, 1, 0, 1, 0]]), 2)
        tensor([[[   5,    6, -100,    8, -100]],
        <BLANKLINE>
                [[   6, -100, -100, -100, -100]]])
    """
    check_stream(labels=labels, document_remaining=document_remaining)
    require_at_least(steps, 1, "steps")
    tokens = labels.shape[1]
    rows = [pad(labels[:, ahead:], (0, min(ahead, tokens)), value=IGNORE_INDEX) for ahead in range(1, steps + 1)]
    ahead = torch.arange(1, steps + 1, device=labels.device)[:, None, None]
    return torch.where(ahead <= document_remaining, torch.stack(rows), IGNORE_INDEX)

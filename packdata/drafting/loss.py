"""The loss of draft blocks: what each slot predicts, weighed."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from packdata.drafting.anchors import check_stream
from packdata.drafting.targets import DraftTargets
from packdata.kernels.head import MAX_LOGITS_BYTES
from packdata.losses import LossSum


def draft_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: DraftTargets,
    input_ids: Tensor,
    *,
    max_logits_bytes: int = MAX_LOGITS_BYTES,
) -> LossSum:
    """Sum the weighted cross-entropy of all draft slots.

    Slots of weight 0 give nothing, whatever stands in them, and take no gradient. With no target at all the total is
    0 and every parameter behind ``hidden``, and ``weight``, gets a zero gradient. Of fixed shape, and traced as one
    graph by ``torch.compile`` (`packdata.kernels.linear_cross_entropy` is neither).

    Args:
        hidden: The drafter's states, shape ``(1, A * B, H)``.
        weight: The output embedding, shape ``(V, H)``.
        targets: What `draft_targets` returned.
        input_ids: The stream's tokens, int64, shape ``(1, T)``.
        max_logits_bytes: The most bytes of float32 logits at a time, at least one slot's; more are made in chunks.

    Returns:
        The sum (nats; float32, or float64 for float64 states) and, as its count, the sum of the weights: a 0-d tensor.

    Raises:
        ValueError: If a shape is wrong.

    Example:
        >>> targets = DraftTargets(torch.tensor([[0, 1]]), torch.tensor([[0.0, 0.5]]), torch.tensor([0, 1]))
        >>> loss = draft_loss(torch.zeros(1, 2, 3), torch.zeros(4, 3), targets, torch.tensor([[3, 2]]))
        >>> loss.total, loss.count  # half of log 4
        (tensor(0.6931), tensor(0.5000))
    """
    check_stream(input_ids=input_ids)
    slots = targets.label_weight.numel()
    if hidden.shape[:2] != (1, slots) or hidden.ndim != 3 or weight.ndim != 2 or weight.shape[1] != hidden.shape[2]:
        raise ValueError(
            f"hidden must be (1, {slots}, H) for targets of {tuple(targets.label_weight.shape)} and weight (V, H), "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    weights = targets.label_weight.reshape(-1)
    # Every slot goes through the head, whatever its weight: how many have one is not known without asking the device.
    states = torch.where(weights[:, None] > 0, hidden[0], 0)
    tokens = torch.where(weights > 0, input_ids[0, targets.label_index.reshape(-1)], 0)
    total = _weighted_sum(states, weight, tokens, weights, rows=max(max_logits_bytes // (4 * len(weight)), 1))
    return LossSum(total, weights.sum())


def _weighted_sum(states: Tensor, weight: Tensor, tokens: Tensor, weights: Tensor, *, rows: int) -> Tensor:
    if rows >= len(states):
        return _chunk_sum(states, weight, tokens, weights)
    total = weights.new_zeros(())
    for part in zip(*(torch.split(whole, rows) for whole in (states, tokens, weights)), strict=True):
        # Logits are as wide as the vocabulary: the backward pass makes them again, rather than keep them.
        total = total + checkpoint(
            _chunk_sum, part[0], weight, *part[1:], use_reentrant=False, preserve_rng_state=False
        )
    return total


def _chunk_sum(states: Tensor, weight: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    logits = states @ weight.T
    losses = cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens, reduction="none")
    return (losses * weights).sum()

"""The loss of draft blocks: what each slot predicts, weighed."""

import torch
from torch import Tensor

from packdata.drafting.targets import DraftTargets
from packdata.kernels import linear_cross_entropy
from packdata.losses import LossSum


def draft_loss(hidden: Tensor, weight: Tensor, targets: DraftTargets, input_ids: Tensor) -> LossSum:
    """Sum the weighted cross-entropy of all draft slots.

    Slots of weight 0 give nothing, whatever stands in them, and take no gradient. With no target at all the total is
    0 and every parameter behind ``hidden``, and ``weight``, gets a zero gradient. The logits are never held all at
    once.

    Args:
        hidden: The drafter's states, shape ``(1, A * B, H)``.
        weight: The output embedding, shape ``(V, H)``.
        targets: What `draft_targets` returned.
        input_ids: The stream's tokens, int64, shape ``(1, T)``.

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
    slots = targets.label_weight.numel()
    if hidden.shape[:2] != (1, slots) or hidden.ndim != 3 or weight.ndim != 2 or weight.shape[1] != hidden.shape[2]:
        raise ValueError(
            f"hidden must be (1, {slots}, H) for targets of {tuple(targets.label_weight.shape)} and weight (V, H), "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    weights = targets.label_weight.reshape(1, slots)
    weighted = weights > 0
    # Every slot goes through the head, whatever its weight: how many have one is not known without asking the device.
    states = torch.where(weighted[..., None], hidden, 0)
    tokens = torch.where(weighted, input_ids[0, targets.label_index].reshape(1, slots), 0)
    loss = linear_cross_entropy(states, weight, tokens, weights=weights, num_targets=slots)
    return LossSum(loss.total, weights.sum())

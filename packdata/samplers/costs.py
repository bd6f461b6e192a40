"""What a pack costs to train on, and how much the ranks of a step wait for each other."""

import numpy as np

from packdata.planning import Plan
from packdata.planning.blocks import BLOCK, Array


def pack_costs(plan: Plan, token_cost: float = 0.0) -> Array:
    """Add up each pack's attention, and its tokens.

    Args:
        plan: The packs.
        token_cost: What a token costs outside attention, in units of one query-key pair.

    Returns:
        Σ length² + token_cost · Σ length of each pack, float64, shape ``(packs,)``.
    """
    costs = np.zeros(len(plan))
    step = max(1, BLOCK * len(plan) // max(1, len(plan.documents)))  # squares are 64 bits wide, lengths 32
    for first in range(0, len(plan), step):
        bounds = plan.bounds[first : first + step + 1]
        lengths = plan.lengths[bounds[0] : bounds[-1]].astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(lengths * (lengths + token_cost))])
        costs[first : first + step] = np.diff(sums[bounds - bounds[0]])
    return costs


def straggler_ratio(costs: Array) -> float:
    """Divide the time that steps take by the time that they would take with the work spread evenly.

    Args:
        costs: Cost of each rank's batch in each step, shape ``(steps, ranks)``.

    Returns:
        Σ over steps of max over ranks / Σ over steps of mean over ranks; 1.0 if there is no cost.

    Example:
        >>> straggler_ratio(np.array([[1.0, 3.0], [2.0, 2.0]]))
        1.25
    """
    mean = costs.mean(axis=1).sum() if costs.size else 0.0
    return float(costs.max(axis=1).sum() / mean) if mean else 1.0

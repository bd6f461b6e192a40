"""Sums and counts; the mean is made once per step.

The loss of a step is the sum of all included token losses by the number of included targets, over every micro-batch
and rank. Documents with losses (1, 3) and (1, 1, 1, 1, 1) have seven targets: 9/7. A mean per micro-batch, rank or row
cannot be put right afterwards, so the functions here return sums with their counts (``LossSum``), add the counts up
(``global_count``), and say what to multiply the sums with (``loss_scale``). Other aggregations (a mean of documents'
means, say: 1.5 above) are a weight per target and a count (``target_weights``).
"""

from packdata.losses.counts import global_count, loss_scale, scale_gradients
from packdata.losses.sums import LossSum, masked_sum
from packdata.losses.weights import target_weights

__all__ = ["LossSum", "global_count", "loss_scale", "masked_sum", "scale_gradients", "target_weights"]

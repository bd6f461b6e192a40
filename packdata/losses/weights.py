"""Every way to average token losses is a weight per target and a number to divide by.

========================  ===============================  =====================================  ================
mode                      weight of a target               count                                  known from
========================  ===============================  =====================================  ================
``"token_mean"``          1                                targets                                DAPO, pre-training
``"sequence_mean"``       1 / targets of its document      documents with a target                GRPO
``"sequence_sum"``        1                                documents                              REINFORCE
``"constant"``            1 / ``max_length``               documents                              Dr. GRPO
``"group_mean"``          1 / targets of its prompt group  groups with a target                   per-prompt DAPO
========================  ===============================  =====================================  ================

The loss is Σ weightᵢ · lossᵢ / count. With losses (1, 3) and (1, 1, 1, 1, 1): 9/7, (2 + 1)/2, 9/2, 9/(2·max_length).
A mean over nothing is no number, so a document (or group) without targets is left out of the means, as if it were not
there; in the two sums it counts, with a sum of 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from packdata.layout import IGNORE_INDEX

Mode = Literal["token_mean", "sequence_mean", "sequence_sum", "constant", "group_mean"]
PerDocument = Sequence[int] | np.ndarray[Any, np.dtype[Any]] | Tensor


def target_weights(
    batch: Mapping[str, Any],
    mode: str,
    *,
    max_length: int | None = None,
    groups: PerDocument | None = None,
    step_targets: PerDocument | None = None,
    step_count: int | Tensor | None = None,
) -> tuple[Tensor, int | Tensor]:
    """Return each target's weight, and the count to divide the weighted sum by.

    Where no document or group spans batches, the counts of all micro-batches and ranks add up (``global_count``). Where
    one does, its batches must know of each other: give ``step_targets`` and ``step_count`` for the whole step, and do
    not add ``step_count`` up again.

    Args:
        batch: A ``PackedBatch`` (read: ``targets``, ``document_ids``, ``lengths``, ``num_targets``).
        mode: ``"token_mean"``, ``"sequence_mean"``, ``"sequence_sum"``, ``"constant"`` or ``"group_mean"``; the
            table in this module's docstring says what each makes of a target's weight and of the count.
        max_length: For ``"constant"``: the most tokens that a completion can have.
        groups: For ``"group_mean"``: each document's prompt group, any integers, on the host, shape ``(documents,)``.
        step_targets: Targets in the whole step of each document (``"sequence_mean"``) or of each document's group
            (``"group_mean"``), shape ``(documents,)``.
        step_count: The count of the whole step; returned as it is.

    Returns:
        Weights, float32, the shape and device of ``targets``, 0 where there is none; and the count: a Python int where
        the host knows it, else a 0-dimensional tensor. Nothing waits for the device.

    Raises:
        ValueError: If the mode is unknown, what it needs is missing or of the wrong length, or ``step_targets`` comes
            without ``step_count``, or is smaller than the targets here (seen on a CPU only).

    Example:
        >>> batch = {"targets": torch.tensor([[5, 6, -100, 8]]), "document_ids": torch.tensor([[0, 0, 0, 1]]),
        ...          "lengths": (3, 1), "num_targets": 3}
        >>> target_weights(batch, "sequence_mean")
        (tensor([[0.5000, 0.5000, 0.0000, 1.0000]]), tensor(2))
    """
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: known are {', '.join(get_args(Mode))}")
    if step_targets is not None and step_count is None:
        raise ValueError("step_targets needs step_count: counts of parts of a document or group do not add up")
    included = batch["targets"] != IGNORE_INDEX
    weights = included.to(torch.float32)
    count: int | Tensor = batch["num_targets"] if mode == "token_mean" else len(batch["lengths"])
    if mode == "constant":
        weights = weights / _required_length(max_length)
    elif mode in ("sequence_mean", "group_mean"):
        unit_targets = _targets_per_document(batch, included)
        if step_targets is not None:
            unit_targets = _at_least(unit_targets, _per_document(batch, step_targets, "step_targets"))
        elif mode == "group_mean":
            unit_targets, count = _sum_within_groups(unit_targets, _group_numbers(batch, groups))
        else:
            count = (unit_targets > 0).sum()
        weights = weights / _on_slots(batch, unit_targets.clamp(min=1))
    return weights, count if step_count is None else step_count


def _required_length(max_length: int | None) -> int:
    if max_length is None or not max_length >= 1:
        raise ValueError(f'mode "constant" divides by max_length, which must be at least 1, got {max_length}')
    return max_length


def _targets_per_document(batch: Mapping[str, Any], included: Tensor) -> Tensor:
    rows = batch["document_ids"].flatten() + 1  # padding, -1, is counted in front and cut off
    counts = torch.zeros(len(batch["lengths"]) + 1, dtype=torch.int64, device=included.device)
    return counts.index_add(0, rows, included.flatten().to(torch.int64))[1:]


def _on_slots(batch: Mapping[str, Any], per_document: Tensor) -> Tensor:
    rows = batch["document_ids"] + 1
    return torch.cat([per_document.new_ones(1), per_document])[rows]


def _sum_within_groups(per_document: Tensor, group_numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the targets of each document's group, and how many groups have a target."""
    sums = torch.zeros_like(per_document).index_add(0, group_numbers, per_document)
    return sums[group_numbers], (sums > 0).sum()


def _group_numbers(batch: Mapping[str, Any], groups: PerDocument | None) -> Tensor:
    """Number the groups from 0, so that there are no more numbers than documents."""
    if groups is None:
        raise ValueError('mode "group_mean" needs groups: the prompt group of each document')
    given = _per_document(batch, groups, "groups", device="cpu")
    numbers: Tensor = torch.unique(given, return_inverse=True)[1]
    return numbers.to(batch["targets"].device)


def _at_least(here: Tensor, in_step: Tensor) -> Tensor:
    if here.device.type == "cpu" and bool((in_step < here).any()):
        document = int((in_step < here).int().argmax())
        raise ValueError(
            f"step_targets must count the targets of the whole step, but document {document} has "
            f"{int(here[document])} in this batch alone, got {int(in_step[document])}"
        )
    return in_step


def _per_document(batch: Mapping[str, Any], given: PerDocument, name: str, device: Any = None) -> Tensor:
    numbers = torch.as_tensor(given, device=device or batch["targets"].device)
    if numbers.shape != (len(batch["lengths"]),):
        raise ValueError(
            f"{name} must hold one number per document, shape ({len(batch['lengths'])},), got {tuple(numbers.shape)}"
        )
    if numbers.is_floating_point() and numbers.numel():
        raise ValueError(f"{name} must be integers, got {numbers.dtype}")
    return numbers.to(torch.int64)

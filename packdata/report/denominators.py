"""The denominator of the loss, rebuilt step by step: from slots to targets, and what each divisor would give.

Documents with the losses (1, 3) and (1, 1, 1, 1, 1) in a row of eight slots have seven targets. Their loss is
9/7 = 1.285714. The mean of the two documents' means is 1.5: another aggregation, with its own name. The mean over slots
is 9/8 = 1.125: wrong, because it counts slots that predict nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from packdata.layout import IGNORE_INDEX

from .rows import learnt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How the slots of a batch come down to its targets.

    Attributes:
        slots: All positions, padding included.
        padding: Slots without a token.
        first_tokens: Documents' first tokens that nothing predicts (all of them, unless targets cross documents).
        masked: Tokens that the caller's labels or masks left out.
        targets: Tokens that are learnt: slots - padding - first_tokens - masked.
        documents: Documents in the batch.
        documents_without_targets: Those in which nothing is learnt.
    """

    slots: int
    padding: int
    first_tokens: int
    masked: int
    targets: int
    documents: int
    documents_without_targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """The same token losses under three divisors.

    Attributes:
        losses: The losses of each document that has targets, by document number.
        slots: All positions of the batch.
    """

    losses: dict[int, list[float]]
    slots: int

    @property
    def total(self) -> float:
        """Sum of all targets' losses."""
        return float(sum(sum(losses) for losses in self.losses.values()))

    @property
    def targets(self) -> int:
        """Number of targets, the right denominator."""
        return sum(map(len, self.losses.values()))

    @property
    def token_mean(self) -> float:
        """Sum over targets: the loss. 0 where there is no target."""
        return self.total / max(self.targets, 1)

    @property
    def sequence_mean(self) -> float:
        """Mean over documents of each document's own mean: another aggregation, not the token mean."""
        return sum(sum(losses) / len(losses) for losses in self.losses.values()) / max(len(self.losses), 1)

    @property
    def slot_mean(self) -> float:
        """Sum over slots: wrong, shown as what not to do."""
        return self.total / max(self.slots, 1)


def count_slots(batch: Mapping[str, Any]) -> Counts:
    """Follow the slots of a batch down to its targets.

    Example:
        >>> from packdata.batches import PackingCollator
        >>> counts = count_slots(PackingCollator(pad_to=6)([{"input_ids": [11, 12, 13]}, {"input_ids": [21, 22]}]))
        >>> counts.slots, counts.padding, counts.first_tokens, counts.masked, counts.targets
        (6, 1, 2, 0, 3)
    """
    document_ids = batch["document_ids"].cpu().numpy()
    is_token, has_target = document_ids >= 0, batch["targets"].cpu().numpy() != IGNORE_INDEX
    documents = np.unique(document_ids[is_token])
    tokens, learnt = int(is_token.sum()), int(has_target.sum())
    first_tokens = int((_first_tokens(document_ids) & ~learnt_tokens(document_ids, has_target)).sum())
    return Counts(
        slots=document_ids.size,
        padding=document_ids.size - tokens,
        first_tokens=first_tokens,
        masked=tokens - first_tokens - learnt,
        targets=learnt,
        documents=len(documents),
        documents_without_targets=len(np.setdiff1d(documents, document_ids[has_target])),
    )


def _first_tokens(document_ids: Int64[np.ndarray, "rows slots"]) -> Bool[np.ndarray, "rows slots"]:
    before = np.pad(document_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return np.asarray((document_ids >= 0) & (document_ids != before))


def denominators(batch: Any, losses: Any) -> Denominators:
    """Divide one batch's token losses in three ways.

    Args:
        batch: The packed batch.
        losses: Token losses in nats: aligned with ``batch["targets"]``, shape ``(rows, slots)`` (what
            ``cross_entropy(..., reduction="none")`` gives), or one number per target in row-major order.

    Returns:
        The losses by document, and their means.

    Raises:
        TypeError: If ``batch`` is no batch.
        ValueError: If ``losses`` have neither shape.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"losses belong to a PackedBatch, not to a {type(batch).__name__}")
    has_target = batch["targets"].cpu().numpy() != IGNORE_INDEX
    owners = batch["document_ids"].cpu().numpy()[has_target].tolist()
    by_document: dict[int, list[float]] = {}
    for owner, loss in zip(owners, _per_target(losses, has_target).tolist(), strict=True):
        by_document.setdefault(owner, []).append(loss)
    return Denominators(losses=by_document, slots=has_target.size)


def _per_target(losses: Any, has_target: Bool[np.ndarray, "rows slots"]) -> Float64[np.ndarray, " targets"]:
    if hasattr(losses, "detach"):
        losses = losses.detach().cpu().double()
    values = np.asarray(losses, dtype=np.float64)
    if values.shape == has_target.shape:
        return np.asarray(values[has_target])
    if values.shape == (int(has_target.sum()),):
        return values
    raise ValueError(
        f"losses must have the targets' shape {has_target.shape} or be one number for each of the "
        f"{int(has_target.sum())} targets, got shape {values.shape}"
    )

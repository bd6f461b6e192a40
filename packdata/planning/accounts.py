"""Fill in the ledger of a plan."""

import numpy as np

from .blocks import BLOCK, Array, blocks
from .ledger import Ledger
from .packing import PlanArrays
from .policy import Policy


def account(
    lengths: Array,
    policy: Policy,
    arrays: PlanArrays,
    *,
    truncated: int,
    split: int,
    targets: Array | None = None,
) -> Ledger:
    """Count what became of every document, token and target.

    Args:
        lengths: Tokens per document.
        policy: The options of the plan.
        arrays: The plan's ``bounds``, ``documents``, ``lengths`` and ``starts``.
        truncated: Documents that were cut short.
        split: Documents in several spans.
        targets: Targets per document, or None.

    Returns:
        The ledger.
    """
    bounds, documents, span_lengths, _ = arrays
    tokens_in = int(lengths.sum(dtype=np.int64))
    empty = len(lengths) - int(np.count_nonzero(lengths))
    kept = np.zeros(len(lengths), dtype=np.bool_)
    kept[documents] = True
    documents_kept = int(np.count_nonzero(kept))
    dropped = len(lengths) - empty - documents_kept
    tokens_dropped = tokens_in - int(lengths.sum(dtype=np.int64, where=kept)) if dropped else 0
    tokens_kept = int(span_lengths.sum(dtype=np.int64))
    return Ledger(
        documents_in=len(lengths),
        documents_kept=documents_kept,
        documents_truncated=truncated,
        documents_split=split,
        documents_dropped=dropped,
        documents_empty=empty,
        tokens_in=tokens_in,
        tokens_kept=tokens_kept,
        tokens_truncated=tokens_in - tokens_kept - tokens_dropped,
        tokens_dropped=tokens_dropped,
        slots=(len(bounds) - 1) * policy.budget,
        packs_capped=_packs_capped(bounds, span_lengths, policy),
        **({} if targets is None else _targets(lengths, arrays, kept, targets)),
    )


def pack_slots(bounds: Array, lengths: Array, align: int, packs: slice) -> Array:
    """Add up the slots of each pack's spans, each rounded up to ``align``, int64."""
    first = bounds[packs]
    spans = slice(int(bounds[packs.start]), int(bounds[packs.stop]))
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(-(-lengths[spans].astype(np.int64) // align) * align)])
    last = bounds[packs.start + 1 : packs.stop + 1]
    slots: Array = total[last - spans.start] - total[first - spans.start]
    return slots


def _packs_capped(bounds: Array, lengths: Array, policy: Policy) -> int:
    if policy.max_documents is None:
        return 0
    capped = 0
    for packs in blocks(len(bounds) - 1, BLOCK >> 5):
        full = np.diff(bounds[packs.start : packs.stop + 1]) == policy.max_documents
        room = pack_slots(bounds, lengths, policy.align, packs) < policy.limit
        capped += int(np.count_nonzero(full & room))
    return capped


def _targets(lengths: Array, arrays: PlanArrays, kept: Array, targets: Array) -> dict[str, int]:
    """Count targets, taken to be the last tokens of their document (all tokens, or the completion after a prompt)."""
    _, documents, span_lengths, starts = arrays
    targets_in = targets_of_kept = targets_kept = 0
    for block in blocks(len(lengths)):
        counts = learnable(lengths[block], targets[block])
        targets_in += int(counts.sum())
        targets_of_kept += int(counts[kept[block]].sum())
    for block in blocks(len(documents)):
        which = documents[block]
        first = lengths[which].astype(np.int64) - learnable(lengths[which], targets[which])
        start = 0 if starts is None else starts[block].astype(np.int64)
        stop = start + span_lengths[block]
        targets_kept += int(np.maximum(stop - np.maximum(first, start + 1), 0).sum())
    return {
        "targets_in": targets_in,
        "targets_kept": targets_kept,
        "targets_lost_to_cuts": targets_of_kept - targets_kept,
    }


def learnable(lengths: Array, targets: Array) -> Array:
    """Leave the first token of each document out of its count of targets, int64: nothing predicts it."""
    most = np.maximum(lengths.astype(np.int64) - 1, 0)
    return np.minimum(targets.astype(np.int64), most)

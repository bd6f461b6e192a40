"""Change one document, and look for the change in the others.

Packed logits that are close to those of the document alone prove little: a leak may be as small as rounding, and
rounding as large as a leak. A change is sharper. If attention, convolutions and scans keep documents apart, then the
arithmetic of every other document is the same as before, bit for bit; any difference at all has travelled.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from packdata.batches.dialects import to_transformers
from packdata.batches.packed_batch import PackedBatch
from packdata.layout import IGNORE_INDEX

from .calls import Refusal, as_in_evaluation, call, differences, move_to_model
from .causes import Repair, find_cause
from .report import PADDING, IsolationReport, Leak

_RETRIED = 4  # leaking documents that a remedy is tried on


def check_isolation(
    model: Callable[..., Any],
    batch: PackedBatch,
    *,
    inputs: Callable[[PackedBatch], Mapping[str, Any]] = to_transformers,
    documents: Iterable[int] | None = None,
    tolerance: float | None = None,
) -> IsolationReport:
    """Find out whether a model keeps the documents of a packed batch apart when it is called in a given way.

    Args:
        model: A transformers model, or a callable that returns logits ``(rows, slots, ...)`` or an object with
            ``.logits``. A module is called without dropout and without gradients, its modes come back afterwards.
        batch: Two or more documents. It is not changed.
        inputs: What the model is called with: ``model(**inputs(batch))``. The call to be checked.
        documents: Which documents to change, one at a time, or None for all (and padding).
        tolerance: Largest change of another document's logits that counts as none, or None: 0 if two equal calls give
            equal logits, else ten times their difference.

    Returns:
        The report; true if the documents are isolated.

    Raises:
        ValueError: If the batch was made for attention across documents or has fewer than two, if no document is to be
            changed, if the model's logits are no numbers, or if they do not follow the text at all.

    Example:
        >>> from packdata.batches import PackingCollator
        >>> batch = PackingCollator()([{"input_ids": [5, 6]}, {"input_ids": [7, 8]}])
        >>> print(check_isolation(lambda input_ids, **_: input_ids.cumsum(1).float(), batch))
        leaks
          document 0 into document 1: 2 (2 tokens)
          cause: nothing tells the model where documents begin: hand it attention_kwargs(batch, backend=...)
          packed against alone: 11
    """
    batch = PackedBatch(batch)
    sources = _sources(batch, documents)
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance}; None finds it out")
    batch = move_to_model(batch, model)
    with as_in_evaluation(model):
        try:
            base, tolerance = _baseline(model, batch, inputs, tolerance)
            leaks = _leaks(model, batch, inputs, sources, base, tolerance)
        except Refusal as refusal:
            return IsolationReport(verdict="refuses", message=str(refusal))

        leaking = sorted({leak.source for leak in leaks})[:_RETRIED]

        def leaks_after(repair: Repair) -> list[Leak]:
            def mended(batch: PackedBatch) -> dict[str, Any]:
                return repair(dict(inputs(batch)))

            return _leaks(model, batch, mended, leaking, call(model, mended(batch), batch), tolerance)

        return IsolationReport(
            verdict="leaks" if leaks else "isolated",
            leaks=tuple(leaks),
            cause=find_cause(model, batch, inputs(batch), leaks, leaks_after) if leaks else None,
            tolerance=tolerance,
            alone_difference=_alone_difference(model, batch, inputs, base),
        )


def _sources(batch: PackedBatch, documents: Iterable[int] | None) -> list[int]:
    if "cu_seqlens" not in batch:
        raise ValueError(
            f"batch must be a PackedBatch, as the collator makes it without output=, got keys {sorted(batch)}"
        )
    if batch.policy.cross_document_attention:
        raise ValueError("batch was made with cross_document_attention=True: its documents are meant to see each other")
    if batch.num_documents < 2:
        raise ValueError(f"batch must hold at least two documents to be kept apart, got {batch.num_documents}")
    if documents is None:
        padding = [PADDING] if batch.num_tokens < batch.input_ids.numel() else []
        return [*range(batch.num_documents), *padding]
    sources = list(documents)
    if not sources:
        raise ValueError("documents must name at least one document to change, or be None for all, got none")
    for document in sources:
        if not 0 <= document < batch.num_documents:
            raise ValueError(f"documents must be from 0 to {batch.num_documents - 1}, got {document}")
    return sources


def _baseline(
    model: Callable[..., Any], batch: PackedBatch, inputs: Any, tolerance: float | None
) -> tuple[Tensor, float]:
    base = call(model, inputs(batch), batch)
    for document, logits in enumerate(batch.unpack(base)):
        if logits.isnan().any():
            raise ValueError(f"model must give numbers to be compared, got NaN in the logits of document {document}")
    if tolerance is not None:
        return base, tolerance
    noise = differences(base, call(model, inputs(batch), batch))
    return base, 10 * max(float(part.max()) for part in batch.unpack(noise))


def _leaks(
    model: Callable[..., Any], batch: PackedBatch, inputs: Any, sources: list[int], base: Tensor, tolerance: float
) -> list[Leak]:
    """Change one document after the other and collect the others whose logits changed."""
    found = []
    for source in sources:
        changed = _with_other_tokens(batch, source)
        moved = [part.cpu() for part in batch.unpack(differences(base, call(model, inputs(changed), batch)))]
        if source != PADDING and not moved[source].any():
            raise ValueError(
                f"model must see its input_ids, but another text in document {source} changed none of its logits"
            )
        for target, part in enumerate(moved):
            if target != source and part.max() > tolerance:
                tokens = int((part > tolerance).sum())
                found.append(Leak(source=source, target=target, difference=float(part.max()), tokens=tokens))
    return found


def _with_other_tokens(batch: PackedBatch, document: int) -> PackedBatch:
    """Put another token of the batch in place of each of a document's tokens: other text, and no id out of range."""
    ids, inside = batch.input_ids, batch.document_ids == document
    known = torch.unique(ids[batch.document_ids >= 0])
    if len(known) == 1:
        known = torch.cat([known, (known - 1).abs()]).sort().values
    following = known.roll(-1)[torch.searchsorted(known, ids).clamp(max=len(known) - 1)]
    other = PackedBatch(batch)
    other["input_ids"] = torch.where(inside, following, ids)
    return other


def _alone_difference(model: Callable[..., Any], batch: PackedBatch, inputs: Any, base: Tensor) -> float | None:
    worst = 0.0
    for document, packed in enumerate(batch.unpack(base)):
        alone = _alone(batch, document)
        try:
            logits = call(model, inputs(alone), alone)
        except Refusal:
            return None
        worst = max(worst, float(differences(packed.unsqueeze(0), logits).max()))
    return worst


def _alone(batch: PackedBatch, document: int) -> PackedBatch:
    """Cut one document out of a batch, as the batch that holds nothing else."""
    slots = batch.input_ids.shape
    parts: dict[str, Any] = {
        key: batch.unpack(value)[document].unsqueeze(0)
        for key, value in batch.items()
        if isinstance(value, Tensor) and value.shape[:2] == slots
    }
    length = batch.lengths[document]
    return PackedBatch(
        parts,
        document_ids=torch.zeros_like(parts["document_ids"]),
        cu_seqlens=batch.cu_seqlens.new_tensor([0, length]),
        lengths=(length,),
        document_starts=(0,),
        max_seqlen=length,
        num_targets=int((parts["targets"] != IGNORE_INDEX).sum()),
    )

"""Other frameworks' names for a `PackedBatch`."""

from typing import Any

import torch

from .packed_batch import PackedBatch


def to_transformers(batch: PackedBatch, *, seq_idx: bool = False, shift_labels: bool = False) -> dict[str, Any]:
    """Name a batch as transformers' models do."""
    inputs = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": batch.position_ids,
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
        "use_cache": False,
    }
    if seq_idx:
        inputs["seq_idx"] = batch.document_ids.to(torch.int32)
    if shift_labels:
        inputs["shift_labels"] = batch.targets
    return inputs

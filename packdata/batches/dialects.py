"""Other frameworks' names for a `PackedBatch`.

Each function takes a batch and returns a plain ``dict`` with a framework's keys, dtypes and meanings; the tensors are
on the batch's device, and no call waits for it. What a framework cannot express is refused, never approximated.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from packdata.layout import INT32_MAX

from .packed_batch import PackedBatch


def to_transformers(batch: PackedBatch, *, seq_idx: bool = False, shift_labels: bool = False) -> dict[str, Any]:
    """Name a batch as Hugging Face's models do: ``model(**to_transformers(batch))``.

    There is never an ``attention_mask``: an all-ones mask switches off the detection of documents, and so does
    ``use_cache=True``, a configuration's default. Eager, SDPA and flex then read the documents off ``position_ids``,
    flash off the four ``cu_seq_lens_*`` and ``max_length_*``, which it ignores unless all are there.

    Args:
        batch: The batch, of any layout.
        seq_idx: Add ``seq_idx``, for Mamba and its relatives.
        shift_labels: Add ``shift_labels``, which the loss prefers to ``labels`` and takes as they are.

    Returns:
        ``input_ids``, ``labels`` (un-shifted), ``position_ids`` int64 ``[R, T]``; ``cu_seq_lens_q``, ``cu_seq_lens_k``
        int32 ``[segments+1]``; ``max_length_q``, ``max_length_k`` ints; ``use_cache=False``; if asked for,
        ``seq_idx`` int32 and ``shift_labels`` int64 ``[R, T]``.

    Source: transformers, ``DataCollatorWithFlattening``, ``find_packed_sequence_indices`` in ``masking_utils`` and
    ``_flash_attention_forward``.

    Example:
        >>> from packdata import PackingCollator, to_transformers
        >>> inputs = PackingCollator(output=to_transformers)([[11, 12, 13], [21, 22]])
        >>> inputs["labels"]
        tensor([[-100,   12,   13, -100,   22]])
    """
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
        inputs["seq_idx"] = batch.segment_ids.int()
    if shift_labels:
        inputs["shift_labels"] = batch.targets
    return inputs


def to_megatron(batch: PackedBatch) -> dict[str, Any]:
    """Name a batch as Megatron-Core and TransformerEngine do.

    The fields of ``PackedSeqParams`` stand beside the batch's own: ``PackedSeqParams(**{name: value for name, value in
    inputs.items() if name in PackedSeqParams.__dataclass_fields__})``. ``cu_seqlens_*_padded`` are the physical
    boundaries; ``cu_seqlens_*`` the logical ones, without the slots that alignment put between documents. A batch
    without alignment gives one and the same tensor for both, by which TransformerEngine picks the faster kernel. A
    piece of padding at a row's end is a segment like any other, so that every slot is written.

    Returns:
        ``tokens``, ``labels`` (shifted, ``IGNORE_INDEX`` where ``loss_mask`` is 0), ``position_ids`` int64 ``[R, T]``;
        ``loss_mask`` float32; ``padding_mask`` bool, True on padding; ``qkv_format="thd"``; ``cu_seqlens_q``,
        ``cu_seqlens_kv``, ``cu_seqlens_q_padded``, ``cu_seqlens_kv_padded`` int32 ``[segments+1]``; ``max_seqlen_q``,
        ``max_seqlen_kv``, ``total_tokens`` ints.

    Raises:
        ValueError: If documents share a segment with alignment slots between them.

    Source: ``megatron/core/packed_seq_params.py``; TransformerEngine's ``DotProductAttention`` for the ``thd`` format.
    """
    logical = _logical_offsets(batch)
    return {
        "tokens": batch.input_ids,
        "labels": batch.targets,
        "position_ids": batch.position_ids,
        "loss_mask": batch.loss_mask.float(),
        "padding_mask": batch.document_ids < 0,
        "qkv_format": "thd",
        "cu_seqlens_q": logical,
        "cu_seqlens_kv": logical,
        "cu_seqlens_q_padded": batch.cu_seqlens,
        "cu_seqlens_kv_padded": batch.cu_seqlens,
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
        "total_tokens": batch.input_ids.numel(),
    }


def to_torchtitan(batch: PackedBatch) -> dict[str, Any]:
    """Name a batch as torchtitan does.

    torchtitan finds a document wherever ``positions`` is 0, so they count from 0 whatever ``position_offset`` was.
    ``VarlenMetadata(cu_seq_q, cu_seq_k, max_q, max_k)`` takes the four fields of these names.

    Returns:
        ``input``, ``labels`` (shifted), ``positions`` int64 ``[R, T]``; ``cu_seq_q``, ``cu_seq_k`` int32
        ``[segments+1]``; ``max_q``, ``max_k`` ints.

    Source: torchtitan, ``create_varlen_metadata_for_document`` in ``models/common/attention.py``.
    """
    return {
        "input": batch.input_ids,
        "labels": batch.targets,
        "positions": batch.position_ids - batch.position_ids[:1, :1],  # the first slot always begins a segment
        "cu_seq_q": batch.cu_seqlens,
        "cu_seq_k": batch.cu_seqlens,
        "max_q": batch.max_seqlen,
        "max_k": batch.max_seqlen,
    }


def to_fla(batch: PackedBatch) -> dict[str, Any]:
    """Name a batch as flash-linear-attention's models do; they want a single row, so rows are laid end to end.

    Returns:
        ``input_ids``, ``labels`` (un-shifted) int64 ``[1, R·T]``; ``cu_seqlens`` int64 ``[segments+1]``;
        ``use_cache=False``.

    Source: fla, ``chunk_gated_delta_rule`` (batch size 1 with ``cu_seqlens``, a ``LongTensor``) and its models'
    ``forward``.
    """
    return {
        "input_ids": batch.input_ids.reshape(1, -1),
        "labels": batch.labels.reshape(1, -1),
        "cu_seqlens": batch.cu_seqlens.long(),
        "use_cache": False,
    }


def to_jax(batch: PackedBatch) -> dict[str, Any]:
    """Name a batch as JAX's loaders do (grain, seqio, MaxText), as numpy arrays; the batch must be on the CPU.

    Segment ids are what attention masks compare: they follow ``cu_seqlens``, count from 1 in each row and are 0 on
    padding, as positions are. ``targets_segment_ids`` and ``targets`` are 0 wherever nothing is to be learnt: these
    libraries weigh the loss by ``targets_segment_ids != 0`` and know no ignore index.

    Returns:
        ``inputs``, ``inputs_segment_ids``, ``inputs_positions``, ``targets`` (shifted), ``targets_segment_ids``,
        ``targets_positions``: int32 ``[R, T]``.

    Raises:
        ValueError: If the batch is not on the CPU, or an id does not fit.

    Source: grain, ``PackAndBatchOperation``; seqio, ``trim_and_pack_dataset``; MaxText's loss.
    """
    if batch.input_ids.device.type != "cpu":
        raise ValueError(f"to_jax needs a batch on the CPU, got one on {batch.input_ids.device}: use batch.to('cpu')")
    for name in ("input_ids", "targets"):
        if batch[name].numel() and (most := int(batch[name].abs().max())) > INT32_MAX:
            raise ValueError(f"to_jax has int32 ids, {name} hold one of {most}")
    segments, padding = batch.segment_ids, batch.document_ids < 0
    within = (segments - segments[:, :1] + 1).masked_fill(padding, 0)
    positions = batch.position_ids.masked_fill(padding, 0)
    tensors = {
        "inputs": batch.input_ids,
        "inputs_segment_ids": within,
        "inputs_positions": positions,
        "targets": batch.targets.masked_fill(~batch.loss_mask, 0),
        "targets_segment_ids": within.masked_fill(~batch.loss_mask, 0),
        "targets_positions": positions,
    }
    return {key: tensor.to(torch.int32, copy=True).numpy() for key, tensor in tensors.items()}


def _logical_offsets(batch: PackedBatch) -> Tensor:
    """Close the gaps that alignment left: offsets that do not count the alignment slots of documents."""
    if batch.align == 1:
        return batch.cu_seqlens
    if batch.policy.cross_document_attention:
        raise ValueError(
            "to_megatron cannot express alignment slots within a segment: collate with align=1, "
            "or with cross_document_attention=False"
        )
    is_token = (batch.document_ids >= 0).flatten()
    begins = is_token[batch.cu_seqlens[:-1].clamp(max=len(is_token) - 1)]  # repeated offsets lie past the end
    of_document = begins[batch.segment_ids.flatten()]
    counted = (is_token | ~of_document).cumsum(0, dtype=torch.int32)
    return F.pad(counted, (1, 0))[batch.cu_seqlens]

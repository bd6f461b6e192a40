"""Where a slot stands in its document: how many tokens come before it and after it.

Both are scans, so their shapes are fixed and nothing is read back from the device. With two documents, one slot of
padding and ``*`` marking where a run begins::

    document_ids   0  0  0  1  1 -1
    starts         *        *     *
    offsets        0  1  2  0  1  0     slot - (last start at or before it)
    remaining      2  1  0  1  0 -1     (next start, or the end) - 1 - slot; -1 on padding
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def document_remaining(cu_seqlens: Tensor, document_ids: Tensor) -> Tensor:
    """Count, for every slot, the tokens that come after it in its own document.

    Args:
        cu_seqlens: Segment boundaries over all slots, row by row; any integer dtype, shape ``(segments + 1,)``;
            a repeated tail is fine.
        document_ids: Document of each slot, −1 on padding; int64, shape ``(1, T)`` (or ``(R, T)``).

    Returns:
        Tokens left, int64, shape and device of ``document_ids``: 0 on a document's last token, −1 on padding.

    Example:
        >>> document_remaining(torch.tensor([0, 3, 5, 6]), torch.tensor([[0, 0, 0, 1, 1, -1]]))
        tensor([[ 2,  1,  0,  1,  0, -1]])
    """
    ids = document_ids.reshape(-1)
    slots = torch.arange(len(ids), device=ids.device)
    # Offsets past the last slot fall on the extra entry, and so does the end of the stream.
    segment_starts = torch.zeros(len(ids) + 1, dtype=torch.bool, device=ids.device)
    segment_starts = segment_starts.index_fill(0, cu_seqlens.to(torch.int64), True)
    is_last = segment_starts[1:] | (ids != pad(ids[1:], (0, 1), value=-1))
    last = torch.where(is_last, slots, len(ids) - 1).flip(0).cummin(0).values.flip(0)
    return torch.where(ids >= 0, last - slots, -1).reshape(document_ids.shape)


def offsets_from_remaining(remaining: Tensor) -> Tensor:
    """Number the tokens of each document from 0, given the tokens left after each; int64 ``(T,)`` to ``(T,)``."""
    return _offsets(pad(remaining[:-1], (1, 0), value=0) <= 0)


def offsets_from_ids(document_ids: Tensor) -> Tensor:
    """Number the slots of each run of equal ids from 0; a row begins a run. int64 ``(R, S)`` to ``(R, S)``."""
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return _offsets(starts.reshape(-1)).reshape(document_ids.shape)


def run_starts(document_ids: Tensor) -> Tensor:
    """Give the first slot of each slot's run of equal ids; int64 ``(T,)`` to ``(T,)``."""
    return torch.arange(len(document_ids), device=document_ids.device) - offsets_from_ids(document_ids[None])[0]


def _offsets(starts: Tensor) -> Tensor:
    slots = torch.arange(len(starts), device=starts.device)
    return slots - torch.where(starts, slots, 0).cummax(0).values

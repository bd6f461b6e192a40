"""From the padded rows that a target model ran on to the one stream that a drafter trains on."""

from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from packdata.batches import PackedBatch, StaticBuffers
from packdata.kernels.index import PackIndex
from packdata.layout import IGNORE_INDEX
from packdata.planning.edge import require_at_least

_PADS = {"targets": IGNORE_INDEX, "document_ids": -1}


def pack_hidden_states(
    states: Tensor,
    batch: PackedBatch,
    *,
    pad_to: int | None = None,
    out: StaticBuffers | None = None,
    last_hidden: Tensor | None = None,
    last_hidden_norm: Literal["pre_norm", "post_norm"] | None = None,
    padding_segment: int = 512,
) -> PackedBatch:
    """Pack the states of the real slots, and all that belongs to them, into one stream.

    The host knows how many tokens there are, so it never waits for the device. Slots past the tokens are zero in the
    states (whatever stood in the source's padding), document −1, without target.

    Args:
        states: Captured states, shape ``(R, S, K * H)``.
        batch: The padded batch that the target ran on, ``layout="rows"``, its padding left or right; on the device of
            ``states``.
        pad_to: Slots of the stream; default: as many as there are tokens.
        out: Buffers at fixed addresses to copy the stream into, made with a `Column` ``hidden_states`` (and
            ``last_hidden``) of ``tail=(K * H,)``. Such a stream carries no gradient back to ``states``.
        last_hidden: States after the last layer, shape ``(R, S, H)``, packed along.
        last_hidden_norm: Whether those are before or after the final norm; goes with ``last_hidden``.
        padding_segment: Most slots of a piece of padding, as in the collator (``out`` has its own).

    Returns:
        The stream: the batch's keys and ``hidden_states`` ``(1, T, K * H)``, with ``last_hidden`` and
        ``last_hidden_norm`` if given; with ``out``, its tensors.

    Raises:
        ValueError: If the states are of another batch, the tokens do not fit, or pre-norm states would meet post-norm
            ones.

    Example:
        >>> from packdata.batches import PackingCollator
        >>> batch = PackingCollator(layout="rows")([[11, 12, 13], [21]])
        >>> stream = pack_hidden_states(torch.ones(2, 3, 4), batch, pad_to=6)
        >>> stream.input_ids, stream["hidden_states"].sum(-1)
        (tensor([[11, 12, 13, 21,  0,  0]]), tensor([[4., 4., 4., 4., 0., 0.]]))
    """
    _check(states, batch, last_hidden, last_hidden_norm)
    require_at_least(padding_segment, 1, "padding_segment")
    tokens = batch.num_tokens
    size = _stream_size(tokens, pad_to, out)
    index = PackIndex.from_mask(batch.document_ids >= 0, count=tokens, capacity=size)
    stream = _stream(batch, index, padding_segment)
    stream["hidden_states"] = index.pack(states)[None]
    if last_hidden is not None:
        stream["last_hidden"] = index.pack(last_hidden)[None]
        stream["last_hidden_norm"] = last_hidden_norm
    if out is None:
        return stream
    held = out.batch.get("last_hidden_norm")
    if held not in (None, last_hidden_norm):
        raise ValueError(f"out holds {held} states as last_hidden, got {last_hidden_norm}: the two must not be mixed")
    return out.copy_(stream)


def _check(states: Tensor, batch: PackedBatch, last_hidden: Tensor | None, last_hidden_norm: str | None) -> None:
    shape = tuple(batch.input_ids.shape)
    for name, tensor in (("states", states), ("last_hidden", last_hidden)):
        if tensor is not None and (tensor.ndim != 3 or tuple(tensor.shape[:2]) != shape):
            raise ValueError(
                f"{name} must be (R, S, width) of the batch that the target ran on, {shape}, got {tuple(tensor.shape)}"
            )
    if (last_hidden is None) != (last_hidden_norm is None) or last_hidden_norm not in (None, "pre_norm", "post_norm"):
        raise ValueError(
            'last_hidden goes with last_hidden_norm="pre_norm" or "post_norm", which says what it is, '
            f"got {last_hidden_norm!r} {'without' if last_hidden is None else 'with'} last_hidden"
        )
    if batch.policy.cross_document_attention:
        raise ValueError("the batch was made with cross_document_attention, but a drafter's documents stand alone")


def _stream_size(tokens: int, pad_to: int | None, out: StaticBuffers | None) -> int:
    if out is not None and pad_to not in (None, out.pad_to):
        raise ValueError(f"pad_to must be that of out, {out.pad_to}, or None, got {pad_to}")
    limit = out.pad_to if out is not None else pad_to
    if limit is not None and tokens > limit:
        raise ValueError(f"the batch holds {tokens} tokens, over pad_to={limit}: plan smaller batches or raise pad_to")
    if out is not None:
        return tokens  # the buffers pad, by the same rule
    return max(tokens, 1) if pad_to is None else pad_to


def _stream(batch: PackedBatch, index: PackIndex, padding_segment: int) -> PackedBatch:
    """Pack every column of the batch, and lay the segments of the stream out anew."""
    tokens, device = batch.num_tokens, batch.input_ids.device
    past = torch.arange(index.size, device=device) - tokens
    ends = [0, *accumulate(batch.lengths)]
    bounds = [*ends, *range(tokens + padding_segment, index.size, padding_segment)]
    bounds += [index.size] * (bounds[-1] < index.size)
    columns: dict[str, Any] = {}
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            columns[key] = value
        elif key != "cu_seqlens":
            pad = past % padding_segment if key == "position_ids" else _PADS.get(key, 0)
            exists = (past < 0).reshape(-1, *[1] * (value.ndim - 2))
            columns[key] = torch.where(exists, index.pack(value), pad)[None]
    columns["cu_seqlens"] = torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)
    columns["document_starts"] = tuple(ends[:-1])
    columns["align"] = 1  # alignment slots are padding, which stays behind
    columns["max_seqlen"] = max((end - start for start, end in pairwise(bounds)), default=0)
    return PackedBatch(columns)

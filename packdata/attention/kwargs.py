"""What to pass to a model or an attention function, by backend."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from packdata.batches.packed_batch import PackedBatch

from .dense import document_mask
from .flex import document_block_mask

Backend = Literal["eager", "sdpa", "flex", "flash", "varlen"]

BACKENDS: dict[str, Backend] = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flex_attention": "flex",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
}
"""Which backend stands behind transformers' attention implementations."""


def attention_kwargs(
    batch: PackedBatch,
    backend: Backend = "sdpa",
    *,
    causal: bool = True,
    window: int | Mapping[str, int | None] | None = None,
    prefix_lengths: Any = None,
    block_size: int | tuple[int, int] = 128,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Say in a backend's own words which slots of a batch attend to which.

    For a transformers model, ``model(input_ids=…, position_ids=…, **attention_kwargs(batch, backend="sdpa"))``. A mask
    overrules what the model would make of its positions, its sliding window included: hand the window over (see
    :func:`layer_windows`).

    Args:
        batch: The packed batch. On a device, nothing here waits for it.
        backend: ``"eager"``: ``attention_mask``, a number that is added to the scores, 0 or the lowest of ``dtype``.
            ``"sdpa"``: ``attention_mask``, bool, True = attend; both ``(rows, 1, slots, slots)``. ``"flex"``:
            ``attention_mask``, a ``BlockMask``. ``"flash"``: ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q``,
            ``max_length_k`` of transformers. ``"varlen"``: ``cu_seq_q``, ``cu_seq_k``, ``max_q``, ``max_k``,
            ``window_size`` of ``torch.nn.attention.varlen.varlen_attn``, for the flattened slots.
        causal: Whether a query sees only itself and what stands before it. In both directions, alignment slots keep
            to themselves; boundaries alone cannot say so, hence flash and varlen refuse them.
        window: Most keys in each direction, the query's own included; or a window for each kind of layer, which gives
            a mask for each, by kind. Not with flash, where each layer brings its own.
        prefix_lengths: Slots at the start of each segment of ``cu_seqlens`` that see each other, 0 for padding, shape
            ``(segments,)``. Only with masks.
        block_size: Slots of a query block and of a key block (flex).
        dtype: Floating-point type of the mask (eager).

    Returns:
        Keyword arguments on the device of the batch. A bool mask is wrong with eager, which would add it.

    Raises:
        ValueError: If the backend is unknown, or cannot do what was asked for.

    Example:
        >>> from packdata.batches import PackingCollator
        >>> batch = PackingCollator()([{"input_ids": [5, 6]}, {"input_ids": [7]}])
        >>> attention_kwargs(batch, backend="varlen")
        {'cu_seq_q': tensor([0, 2, 3], dtype=torch.int32), 'cu_seq_k': tensor([0, 2, 3], dtype=torch.int32), \
'max_q': 2, 'max_k': 2, 'window_size': (-1, 0)}
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    batch = PackedBatch(batch)
    if backend in ("flash", "varlen"):
        _check_varlen(batch, backend, causal, window, prefix_lengths)
        return _flash(batch, causal) if backend == "flash" else _varlen(batch, causal, window)

    rows, slots = batch.input_ids.shape
    options: dict[str, Any] = {"rows": rows, "slots": slots, "causal": causal, "prefix_lengths": prefix_lengths}
    build: Callable[..., Any] = document_mask
    if backend == "flex":
        options["block_size"], build = block_size, document_block_mask
    cu_seqlens = batch.cu_seqlens if causal else _token_boundaries(batch)

    def mask(window: int | None) -> Any:
        built = build(cu_seqlens, window=window, **options)
        return additive_mask(built, dtype) if backend == "eager" else built

    if isinstance(window, Mapping):
        return {"attention_mask": {kind: mask(size) for kind, size in window.items()}}
    return {"attention_mask": mask(window)}


def layer_windows(config: Any) -> int | dict[str, int | None] | None:
    """Read off a transformers config which ``window`` the model's masks need.

    Args:
        config: A config with, perhaps, ``sliding_window`` and ``layer_types``.

    Returns:
        None for full attention; a window for all layers; or a window for each kind of attention layer.

    Example:
        >>> from types import SimpleNamespace
        >>> layer_windows(SimpleNamespace(sliding_window=16, layer_types=["sliding_attention", "full_attention"]))
        {'full_attention': None, 'sliding_attention': 16}
    """
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        window = None
    if kinds is None:
        return window
    if "sliding_attention" not in kinds:
        return None
    return {"full_attention": None, "sliding_attention": window}


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn True = attend into the number that is added to the scores: 0, or the lowest of ``dtype``."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _flash(batch: PackedBatch, causal: bool) -> dict[str, Any]:
    kwargs = {
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }
    return kwargs if causal else {**kwargs, "is_causal": False}


def _varlen(batch: PackedBatch, causal: bool, window: Any) -> dict[str, Any]:
    left = -1 if window is None else window - 1
    return {
        "cu_seq_q": batch.cu_seqlens,
        "cu_seq_k": batch.cu_seqlens,
        "max_q": batch.max_seqlen,
        "max_k": batch.max_seqlen,
        "window_size": (left, 0 if causal else left),
    }


def _check_varlen(batch: PackedBatch, backend: str, causal: bool, window: Any, prefix_lengths: Any) -> None:
    if prefix_lengths is not None:
        raise ValueError(
            f"prefix_lengths cannot be said in {backend}'s arguments: use backend='flex', 'sdpa' or 'eager'"
        )
    if window is not None and (backend == "flash" or isinstance(window, Mapping)):
        raise ValueError(f"window must be None with backend={backend!r}: each layer brings its own to the kernel")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be None or an integer of at least 1, got {window!r}")
    if not causal and _has_alignment(batch):
        raise ValueError(
            f"causal=False with backend={backend!r} would let documents see their alignment slots: "
            "collate with align=1, or use backend='flex', 'sdpa' or 'eager'"
        )


def _token_ends(batch: PackedBatch) -> list[int]:
    return [start + length for start, length in zip(batch.document_starts, batch.lengths, strict=True)]


def _has_alignment(batch: PackedBatch) -> bool:
    """Say whether a document is followed by padding of its own segment, as far as the host knows."""
    if any(length % batch.align for length in batch.lengths):
        return True
    slots = batch.input_ids.shape[1]
    starts, ends = batch.document_starts, _token_ends(batch)
    gap = any(
        end != start and (end - 1) // slots == start // slots for end, start in zip(ends, starts[1:], strict=False)
    )
    if gap or batch.cu_seqlens.device.type != "cpu" or batch.policy.cross_document_attention:
        return gap
    return not set(ends) <= set(batch.cu_seqlens.tolist())


def _token_boundaries(batch: PackedBatch) -> Tensor:
    """Cut the alignment slots off their documents: boundaries for a mask in both directions."""
    if batch.policy.cross_document_attention:
        if _has_alignment(batch):
            raise ValueError(
                "causal=False with cross_document_attention would let documents see the alignment slots between them: "
                "collate with align=1"
            )
        return batch.cu_seqlens
    ends = torch.tensor(_token_ends(batch), dtype=torch.int32).to(batch.cu_seqlens.device, non_blocking=True)
    return torch.cat([batch.cu_seqlens, ends]).sort().values

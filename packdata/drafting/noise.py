"""Noise on captured states, so that a drafter does not lean on their last digits."""

import torch
from torch import Tensor

from packdata.drafting.hashing import mix32, slot_words
from packdata.drafting.slots import offsets_from_ids

_VALUES_AT_A_TIME = 1 << 22


def add_noise(
    hidden_states: Tensor,
    *,
    scale: float = 0.05,
    document_ids: Tensor,
    document_keys: Tensor | None = None,
    key: int | Tensor = 0,
) -> Tensor:
    """Add uniform noise in (−scale, scale) to every value of every token; for training only.

    The noise is a hash of the key, the token's document key, its offset in the document and the channel: the same
    before packing as after, in any order of documents. Padding stays as it is. Do not give it ``last_hidden``, from
    which the target's own predictions are made.

    Args:
        hidden_states: Captured states, floating, shape ``(R, S, channels)`` (``(1, T, channels)`` once packed).
        scale: Bound of the noise.
        document_ids: Document of each slot, −1 on padding; int64, shape ``(R, S)``.
        document_keys: A number for each slot's document that does not depend on the packing; int64, shape ``(R, S)``;
            default ``document_ids``.
        key: The draw: an int, or a 0-d int64 tensor at a fixed address.

    Returns:
        A new tensor like ``hidden_states``; gradients pass through unchanged.

    Raises:
        ValueError: If a shape, the dtype or ``scale`` is wrong.

    Example:
        >>> add_noise(torch.zeros(1, 2, 3), scale=0.1, document_ids=torch.tensor([[0, -1]])).abs() > 0
        tensor([[[ True,  True,  True],
                 [False, False, False]]])
    """
    keys = document_ids if document_keys is None else document_keys
    if hidden_states.ndim != 3 or not document_ids.shape == keys.shape == hidden_states.shape[:2]:
        raise ValueError(
            "hidden_states must be (R, S, channels), document_ids and document_keys (R, S), "
            f"got {tuple(hidden_states.shape)}, {tuple(document_ids.shape)} and {tuple(keys.shape)}"
        )
    if not hidden_states.is_floating_point():
        raise ValueError(f"hidden_states must be floating, got {hidden_states.dtype}")
    if not scale >= 0:
        raise ValueError(f"scale must not be negative, got {scale}")
    words = slot_words(key, keys, offsets_from_ids(document_ids), salt=2)
    channels = mix32(torch.arange(hidden_states.shape[2], device=hidden_states.device))
    noise = _noise(words[0].flatten(), words[1].flatten(), channels, scale, hidden_states.dtype)
    real = (document_ids >= 0)[..., None]
    return torch.where(real, hidden_states + noise.view(hidden_states.shape), hidden_states)


def _noise(high: Tensor, low: Tensor, channels: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    # Compiled code never stores the bits; eager code holds 8 bytes for each value, so it takes some slots at a time.
    slots = len(high) if torch.compiler.is_compiling() else max(_VALUES_AT_A_TIME // max(len(channels), 1), 1)
    parts = []
    for high_part, low_part in zip(torch.split(high, slots), torch.split(low, slots), strict=True):
        bits = mix32(mix32(high_part[:, None] ^ channels) ^ low_part[:, None]) >> 8
        # 24 bits, centred: exact in float32, symmetric, and never the bound itself.
        unit = bits.to(torch.float32) * 2.0**-23 - (1 - 2.0**-24)
        parts.append((unit * scale).to(dtype))
    return torch.cat(parts)

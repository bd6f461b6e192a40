"""Random bits that belong to a token, not to where it happens to be packed.

A generator hands out its numbers in the order in which they are drawn, so padding, capacity or another order of the
documents would change them all. Here a slot's bits are a hash of *(key, document key, offset in the document)*:
stateless, one elementwise expression, the same wherever the token lands, and safe inside a CUDA graph when the key is
a tensor at a fixed address.

torch has no wrapping unsigned arithmetic that every backend and compiler agrees on, so 32-bit words live in int64 and
both multipliers are below 2³¹: no product reaches 2⁶³ and nothing ever overflows.
"""

import operator
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def mix32(words: Tensor) -> Tensor:
    """Scramble 32-bit words held in int64 (a bijection).

    The constants are Chris Wellons' and TheIronBorn's best two-round ones,
    https://github.com/skeeto/hash-prospector (bias 0.107).
    """
    words = ((words ^ (words >> 16)) * 0x21F0AAAD) & _WORD
    words = ((words ^ (words >> 15)) * 0x735A2D97) & _WORD
    return words ^ (words >> 15)


def slot_words(key: int | Tensor, document_keys: Tensor, offsets: Tensor, *, salt: int) -> tuple[Tensor, Tensor]:
    """Hash each slot twice: two independent 32-bit words per slot.

    One word would not do for ordering: among 49,152 slots two would share it every third time, and a tie is broken
    by the place in the stream. Together they tie once in ten thousand million steps.

    Args:
        key: The draw: an int, or a 0-d integer tensor. Equal values give equal bits either way.
        document_keys: What tells documents apart, any integer dtype and shape.
        offsets: Place in the document, the same shape.
        salt: Tells the uses of one key apart, at most 32 bits.

    Returns:
        Two int64 tensors of that shape, values in [0, 2³²).

    Raises:
        ValueError: If ``key`` is neither, or an int of more than 64 bits.
    """
    key = _as_tensor(key, offsets)
    values = [value.to(torch.int64) for value in (key, document_keys, offsets)]
    words = []
    for lane in (0x243F6A88, 0x85A308D3):  # digits of pi
        word = torch.full_like(values[0], salt ^ lane)
        for value in values:
            word = mix32(mix32(word ^ (value & _WORD)) ^ ((value >> 32) & _WORD))
        words.append(word)
    return words[0], words[1]


def _as_tensor(key: Any, like: Tensor) -> Tensor:
    if isinstance(key, Tensor):
        if key.ndim or key.is_floating_point():
            raise ValueError(f"key must be an int or a 0-d integer tensor, got {key.dtype} of shape {tuple(key.shape)}")
        return key
    if not isinstance(key, int):
        if not hasattr(key, "__index__"):
            raise ValueError(f"key must be an int or a 0-d integer tensor, got {key!r}")
        key = operator.index(key)  # numpy's integers
    if not -(2**63) <= key < 2**63:
        raise ValueError(f"key must fit into 64 bits, got {key}")
    return torch.full((), key, device=like.device)

"""Block masks at fixed addresses, for CUDA graphs.

A captured graph reads the tables of a ``BlockMask`` and the tensors that its ``mask_mod`` captures where they lay at
capture. So a new batch's mask is built outside of the graph and copied into the fixed one, tables *and* captured
tensors: either alone describes half of the new boundaries.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

_TABLES = tuple(
    f"{kind}{side}_{what}" for kind in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
)


def refresh_block_mask(fixed: BlockMask, fresh: BlockMask) -> None:
    """Copy a new mask into a fixed one, in place: block tables and the tensors that ``mask_mod`` captures.

    Args:
        fixed: The mask that a graph or a compiled function reads; every address in it stays.
        fresh: A mask built in the same way for other boundaries: same shape, block size and kind.

    Raises:
        ValueError: If the two differ in anything but the values of their tensors.

    Example:
        >>> from packdata.attention.flex import document_block_mask
        >>> fixed = document_block_mask([0, 2, 4, 4])
        >>> refresh_block_mask(fixed, document_block_mask([0, 1, 3, 4]))
        >>> bool((fixed.to_dense() == document_block_mask([0, 1, 3, 4]).to_dense()).all())
        True
    """
    if fixed.seq_lengths != fresh.seq_lengths or fixed.BLOCK_SIZE != fresh.BLOCK_SIZE:
        raise ValueError(
            f"fresh must have the shape and block size of fixed, {fixed.seq_lengths} in blocks of {fixed.BLOCK_SIZE}, "
            f"got {fresh.seq_lengths} in blocks of {fresh.BLOCK_SIZE}"
        )
    pairs = [(name, getattr(fixed, name), getattr(fresh, name)) for name in _TABLES]
    pairs += _captured_pairs("mask_mod", fixed.mask_mod, fresh.mask_mod)
    for name, old, new in pairs:
        if isinstance(old, Tensor) and isinstance(new, Tensor):
            if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
                raise ValueError(f"{name} must stay {_describe(old)}, got {_describe(new)}")
        elif old is not new and old != new:
            raise ValueError(f"{name} must stay {old!r}, got {new!r}: only tensors can be refreshed")
    for _, old, new in pairs:
        if isinstance(old, Tensor):
            old.copy_(new)


def _captured_pairs(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Walk what two predicates of the same code capture, predicates within predicates included."""
    code = getattr(old, "__code__", None)
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for place, (old_part, new_part) in enumerate(zip(old, new, strict=True)):
            yield from _captured_pairs(f"{name}[{place}]", old_part, new_part)
    elif code is None or old is new:
        yield name, old, new
    elif code != getattr(new, "__code__", None):
        raise ValueError(f"{name} must be the same function with other tensors, got {new!r} in place of {old!r}")
    else:
        cells = zip(code.co_freevars, old.__closure__ or (), new.__closure__ or (), strict=True)
        for variable, old_cell, new_cell in cells:
            yield from _captured_pairs(f"{name}.{variable}", old_cell.cell_contents, new_cell.cell_contents)


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"

"""Gather rows by number, and scatter them back, for every dtype that a tensor can have.

Torch's own ``index_select`` and ``index_copy`` carry gradients of any order, forward-mode derivatives and ``vmap``, and
trace into one graph, so they do the work. They lack kernels for the dtypes that are kept rather than computed with
(unsigned integers, float8, packed 4-bit floats, raw bits): those travel as integers of the same width, which moves the
same bytes.
"""

from typing import Any

import torch
from torch import Tensor

INDEXABLE = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
}
SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Copy ``rows[index]``; its gradient adds up where an index is repeated, and is zero in the other rows."""
    if rows.dtype in INDEXABLE:
        return rows.index_select(0, index)
    return _GatherBytes.apply(rows, index)  # type: ignore[no-any-return, no-untyped-call]


def scatter_rows(packed: Tensor, index: Tensor, count: int) -> Tensor:
    """Place ``packed[i]`` in row ``index[i]`` of ``count`` rows, zeros elsewhere: the inverse of ``gather_rows``."""
    if packed.dtype in INDEXABLE:
        return packed.new_zeros(count, *packed.shape[1:]).index_copy(0, index, packed)
    return _ScatterBytes.apply(packed, index, count)  # type: ignore[no-any-return, no-untyped-call]


def _as_integers(x: Tensor) -> Tensor:
    return x.view(SAME_WIDTH[x.element_size()])


class _GatherBytes(torch.autograd.Function):
    """``gather_rows`` for the dtypes without index kernels; only their floats ever have a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, index: Tensor) -> Tensor:
        return _as_integers(rows).index_select(0, index).view(rows.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        rows, index = inputs
        ctx.save_for_backward(index)
        ctx.shape = rows.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        wide = grad.new_zeros(ctx.shape, dtype=torch.float32).index_add(0, index, grad.float())
        return wide.to(grad.dtype), None


class _ScatterBytes(torch.autograd.Function):
    """``scatter_rows`` for the dtypes without index kernels."""

    generate_vmap_rule = True

    @staticmethod
    def forward(packed: Tensor, index: Tensor, count: int) -> Tensor:
        integers = _as_integers(packed)
        return integers.new_zeros(count, *packed.shape[1:]).index_copy(0, index, integers).view(packed.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gather_rows(grad, index), None, None

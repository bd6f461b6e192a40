"""Packing active rows with torch's own index ops.

::

    x     [[a b c]     mask [[0 1 1]     packed [b c f]     cu_seqlens [0 2 3]
           [d e f]]          [0 0 2]]

A composition of ``nonzero``, ``index_select`` and ``index_copy``: gradients of any order, forward mode, ``vmap`` over
``x``, fake tensors and one dynamic graph under ``torch.compile(fullgraph=True)`` come with them. Others measured a
gather kernel written by hand, and it was slower.
"""

import torch
from torch import Tensor

from packdata.kernels.index import PackIndex


class NativePackOp:
    """Gather the active rows of a padded tensor into one stream, and scatter them back.

    Example:
        >>> pack = NativePackOp()
        >>> mask = torch.tensor([[0, 1, 1], [0, 0, 2]])
        >>> packed, cu_seqlens = pack(torch.arange(6.0).reshape(2, 3), mask)
        >>> packed, cu_seqlens
        (tensor([1., 2., 5.]), tensor([0, 2, 3]))
        >>> pack.unpack(packed, mask)
        tensor([[0., 1., 2.],
                [0., 0., 5.]])
    """

    def __call__(
        self, x: Tensor, mask: Tensor, *, cu_seqlens_dtype: torch.dtype = torch.int64
    ) -> tuple[Tensor, Tensor]:
        """Pack the active rows.

        Args:
            x: Shape ``(B, S, *tail)``, any dtype that indexing supports, any strides.
            mask: Bool or numbers, shape ``(B, S)``, on the device of ``x``; what is not zero is active.
            cu_seqlens_dtype: ``torch.int64``, or ``torch.int32`` for attention kernels.

        Returns:
            The active rows in row-major order, shape ``(total_active, *tail)``, a copy in the dtype of ``x``, whose
            gradient is zero in the other rows; and the prefix sums of active slots per row, shape ``(B + 1,)``.

        Raises:
            ValueError: If the mask's rank, shape or device does not fit ``x``, or the dtype is neither of the two.
        """
        if cu_seqlens_dtype not in (torch.int64, torch.int32):
            raise ValueError(f"cu_seqlens_dtype must be torch.int64 or torch.int32, got {cu_seqlens_dtype}")
        index = PackIndex.from_mask(mask)
        return index.pack(x), index.cu_seqlens.to(cu_seqlens_dtype)

    def unpack(self, packed: Tensor, mask: Tensor, tail_shape: tuple[int, ...] | None = None) -> Tensor:
        """Put packed rows back to where the mask is active.

        Args:
            packed: Shape ``(total_active, *tail)``, any dtype.
            mask: The mask they were packed with, shape ``(B, S)``.
            tail_shape: What ``packed.shape[1:]`` must be, if given.

        Returns:
            Shape ``(B, S, *tail)``, a copy in the dtype of ``packed``, zero where the mask is not active.

        Raises:
            ValueError: If the number of rows, the tail or the device does not fit.
        """
        if tail_shape is not None and tuple(tail_shape) != tuple(packed.shape[1:]):
            raise ValueError(
                f"tail_shape must be the shape of one packed row, {tuple(packed.shape[1:])}, got {tuple(tail_shape)}"
            )
        return PackIndex.from_mask(mask).unpack(packed)

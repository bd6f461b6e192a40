"""Packing active rows with torch's own index ops."""

import torch
from torch import Tensor


class NativePackOp:
    """Gather the active rows of a padded tensor into one stream, and scatter them back."""

    def __call__(
        self, x: Tensor, mask: Tensor, *, cu_seqlens_dtype: torch.dtype = torch.int64
    ) -> tuple[Tensor, Tensor]:
        """Return the active rows, row-major, and the prefix sum of active slots per row."""
        active = mask != 0
        cu_seqlens = torch.nn.functional.pad(active.sum(1).cumsum(0), (1, 0)).to(cu_seqlens_dtype)
        return x[active], cu_seqlens

    def unpack(self, packed: Tensor, mask: Tensor, *, tail_shape: tuple[int, ...] | None = None) -> Tensor:
        """Put packed rows back to where the mask is active, zeros elsewhere."""
        active = (mask != 0).reshape(-1)
        dense = packed.new_zeros(active.shape[0], *packed.shape[1:])
        return dense.index_copy(0, active.nonzero()[:, 0], packed).reshape(*mask.shape, *packed.shape[1:])

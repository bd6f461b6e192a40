"""Where the active slots are: found once, used for every tensor of the batch.

Finding the active slots of a mask on a GPU makes the host wait for the device, since the size of the result depends on
values. It need not: the batch knows how many targets it has (``count``), and a fixed ``capacity`` has room for all that
can come. Both give a result whose size is known beforehand, and ``overflow`` tells, on the device, whether the active
slots fit it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packdata.kernels.rows import INDEXABLE, gather_rows, scatter_rows
from packdata.layout import IGNORE_INDEX


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackIndex:
    """The active slots of a mask, in row-major order.

    Attributes:
        active: The mask as bool, shape ``(B, S)``.
        slots: The flat number of each packed row's slot, int64, shape ``(size,)``; ``B * S`` for a row left over.
        count: How many slots are active: a Python int where the host knows it, else a 0-dimensional tensor.
        overflow: Whether the active slots do not fit the size given: more than the capacity, or not ``count`` of them.
            False where the host knows it, else a 0-dimensional bool tensor; ``check()`` raises on it.
        fixed: Whether the size was given beforehand, so that rows may be left over.

    Example:
        >>> index = PackIndex.from_mask(torch.tensor([[0, 1, 1], [0, 0, 2]]))
        >>> index.slots, index.cu_seqlens
        (tensor([1, 2, 5]), tensor([0, 2, 3]))
        >>> index.pack(torch.tensor([[10, 11, 12], [20, 21, 22]]))
        tensor([11, 12, 22])
        >>> index.unpack(torch.tensor([7, 8, 9]))
        tensor([[0, 7, 8],
                [0, 0, 9]])
    """

    active: Tensor
    slots: Tensor
    count: int | Tensor
    overflow: bool | Tensor = False
    fixed: bool = False

    @classmethod
    def from_mask(cls, mask: Tensor, *, count: int | None = None, capacity: int | None = None) -> "PackIndex":
        """Find the active slots of a mask.

        Args:
            mask: Bool or numbers, shape ``(B, S)``; what is not zero is active.
            count: The number of active slots, if the host knows it: then the host never waits for the device. On a CPU
                it is verified at once, elsewhere by ``check()``.
            capacity: A fixed number of rows for the result; rows left over are zero.

        Raises:
            ValueError: If the mask is not 2-dimensional, or ``count`` or ``capacity`` cannot be.

        Example:
            >>> index = PackIndex.from_mask(torch.tensor([[1, 0, 1]]), capacity=3)
            >>> index.pack(torch.tensor([[5, 6, 7]])), bool(index.overflow)
            (tensor([5, 7, 0]), False)
        """
        require_tensors(mask=mask)
        if mask.ndim != 2:
            raise ValueError(f"mask must be 2-dimensional, (B, S), got shape {tuple(mask.shape)}")
        active = mask != 0
        for name, size in (("capacity", capacity), ("count", count)):
            if size is not None and size < 0:
                raise ValueError(f"{name} must not be negative, got {size}")
        if capacity is not None:
            return _fixed_index(active, capacity, count)
        if count is not None and not _host_can_read(mask):
            return _fixed_index(active, count, count)
        slots = active.reshape(-1).nonzero()[:, 0]
        if count is not None and count != len(slots):
            raise ValueError(f"count must be the number of active slots of the mask, {len(slots)}, got {count}")
        return cls(active=active, slots=slots, count=slots.shape[0])

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any], *, capacity: int | None = None) -> "PackIndex":
        """Find the slots of a ``PackedBatch`` that hold a target; the host does not wait for the device."""
        return cls.from_mask(batch["targets"] != IGNORE_INDEX, count=batch["num_targets"], capacity=capacity)

    @property
    def size(self) -> int:
        """Rows of the packed result."""
        return self.slots.shape[0]

    @property
    def cu_seqlens(self) -> Tensor:
        """Where each row of the mask begins and ends in the packed rows, int64, shape ``(B + 1,)``."""
        sums = torch.nn.functional.pad(self.active.sum(1).cumsum(0), (1, 0))
        return sums.clamp(max=self.size) if self.fixed else sums

    def pack(self, x: Tensor) -> Tensor:
        """Copy the active rows of ``x``.

        Args:
            x: Shape ``(B, S, *tail)``, any dtype and strides, on the mask's device.

        Returns:
            Shape ``(size, *tail)``, the dtype of ``x``; always a copy.

        Raises:
            ValueError: If ``x`` does not begin with the mask's shape, or is on another device.
        """
        require_tensors(x=x)
        if x.shape[:2] != self.active.shape:
            raise ValueError(f"mask must have the first two dimensions of x {tuple(x.shape)}, got {self._shape}")
        self._require_device(x, "x")
        rows = x.flatten(0, 1)
        if self.fixed:
            return _gather_or_zero(rows, self.slots)
        if self._is_everything(x):
            return rows.clone(memory_format=torch.contiguous_format)
        if self._is_nothing(x):
            return rows[:0].clone()
        return gather_rows(rows, self.slots)

    def unpack(self, packed: Tensor) -> Tensor:
        """Put packed rows back into their slots, zeros elsewhere.

        Args:
            packed: Shape ``(size, *tail)``, any dtype; rows left over are ignored.

        Returns:
            Shape ``(B, S, *tail)``, the dtype of ``packed``; always a copy.

        Raises:
            ValueError: If ``packed`` has another number of rows, or is on another device.
        """
        require_tensors(packed=packed)
        self._require_rows(packed)
        self._require_device(packed, "packed")
        count = self.active.numel()
        if self.fixed:
            dense = scatter_rows(packed, self.slots, count + 1)[:-1]  # the last row takes those left over
        elif self._is_everything(packed):
            dense = packed.clone(memory_format=torch.contiguous_format)
        else:
            dense = scatter_rows(packed, self.slots, count)
        return dense.reshape(*self.active.shape, *packed.shape[1:])

    def check(self) -> None:
        """Raise unless the result holds exactly the active slots; the host waits for the device.

        Raises:
            ValueError: If more slots are active than there are rows, or another number than ``count``.
        """
        if self.overflow:
            raise ValueError(
                f"the mask has {int(self.active.sum())} active slots, which do not fit the {self.size} rows asked for: "
                "give the true count, or a larger capacity"
            )

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.active.shape)

    def _is_everything(self, x: Tensor) -> bool:
        return x.dtype in INDEXABLE and _host_knows(self.size) and self.size == self.active.numel()

    def _is_nothing(self, x: Tensor) -> bool:
        return x.dtype in INDEXABLE and _host_knows(self.size) and self.size == 0

    def _require_device(self, x: Tensor, name: str) -> None:
        if x.device != self.active.device:
            raise ValueError(f"mask must be on the device of {name} {x.device}, got {self.active.device}")

    def _require_rows(self, packed: Tensor) -> None:
        if packed.ndim == 0:
            raise ValueError("packed must have rows, shape (active slots, *tail), got a 0-dimensional tensor")
        if not _host_knows(self.size):
            torch._check(packed.shape[0] == self.size)  # type: ignore[no-untyped-call]
        elif packed.shape[0] != self.size:
            raise ValueError(f"packed must have one row per active slot of the mask, {self.size}, got {len(packed)}")


def require_tensors(**values: Any) -> None:
    """Raise unless all of these are tensors."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(value).__name__}: torch.as_tensor makes one")


def _fixed_index(active: Tensor, size: int, count: int | None) -> PackIndex:
    flat = active.reshape(-1)
    slots = torch.nonzero_static(flat, size=size, fill_value=flat.shape[0])[:, 0]
    found = flat.sum()
    overflow = found > size
    if count is not None:
        overflow = overflow | (found != count)
    return PackIndex(active=active, slots=slots, count=found if count is None else count, overflow=overflow, fixed=True)


def _gather_or_zero(rows: Tensor, slots: Tensor) -> Tensor:
    """Gather the rows that exist; a slot past the end gives zeros, and takes no gradient."""
    if rows.shape[0] == 0:
        return torch.cat([rows, rows.new_zeros(slots.shape[0], *rows.shape[1:])])
    picked = gather_rows(rows, slots.clamp(max=rows.shape[0] - 1))
    exists = (slots < rows.shape[0]).reshape(-1, *[1] * (rows.ndim - 1))
    return torch.where(exists, picked, picked.new_zeros(()))


def _host_can_read(mask: Tensor) -> bool:
    """Whether a value of this tensor can be looked at for nothing."""
    return mask.device.type == "cpu" and type(mask) is Tensor and not torch.compiler.is_compiling()


def _host_knows(size: int) -> bool:
    """Whether a size is a plain number, not a symbol that stands for every size (compiled, traced or fake tensors)."""
    return isinstance(size, int) and not torch.compiler.is_compiling()

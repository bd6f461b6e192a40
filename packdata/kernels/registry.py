"""Which implementation of an op serves which platform."""

from typing import Any

from packdata.kernels.native import NativePackOp


class KernelRegistry:
    """Platform → op → implementation."""

    def __init__(self) -> None:
        self._ops: dict[str, Any] = {"pack": NativePackOp()}

    def get_op(self, name: str) -> Any:
        """Return the implementation of an op."""
        if name not in self._ops:
            raise ValueError(f"unknown op {name!r}, known: {sorted(self._ops)}")
        return self._ops[name]


kernel_registry = KernelRegistry()

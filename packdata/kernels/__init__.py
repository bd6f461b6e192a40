"""Pack and unpack on the device, and the head on packed rows."""

from packdata.kernels.index import PackIndex
from packdata.kernels.native import NativePackOp
from packdata.kernels.registry import kernel_registry

__all__ = ["NativePackOp", "PackIndex", "kernel_registry"]

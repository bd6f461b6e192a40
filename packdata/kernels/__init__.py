"""Work on the device: packing active rows, and the head and loss on packed rows."""

from packdata.kernels.native import NativePackOp
from packdata.kernels.registry import kernel_registry

__all__ = ["NativePackOp", "kernel_registry"]

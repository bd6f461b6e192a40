"""Pack and unpack on the device, and the head on packed rows."""

from packdata.kernels.cross_entropy import linear_cross_entropy
from packdata.kernels.index import PackIndex
from packdata.kernels.logprobs import token_logprobs
from packdata.kernels.native import NativePackOp
from packdata.kernels.registry import kernel_registry

__all__ = ["NativePackOp", "PackIndex", "kernel_registry", "linear_cross_entropy", "token_logprobs"]

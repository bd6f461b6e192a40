"""The op registry: by platform and name, and nothing by accident."""

import pytest
import torch

from packdata.kernels import NativePackOp
from packdata.kernels.registry import PLATFORMS, KernelRegistry, kernel_registry, this_platform


def registry():
    return KernelRegistry({"pack": NativePackOp()})


@pytest.mark.parametrize("platform", [*PLATFORMS, None])
def test_pack_serves_every_platform(platform):
    assert isinstance(kernel_registry.get_op("pack", platform), NativePackOp)
    assert kernel_registry.available(platform) == ("pack",)


def test_an_op_registered_for_one_platform_is_not_found_on_another():
    ops = registry()
    ops.register("gather", torch.gather, platform="cuda")
    assert ops.get_op("gather", "cuda") is torch.gather
    assert ops.available("cuda") == ("gather", "pack")
    with pytest.raises(ValueError, match=r"unknown op 'gather' on platform 'cpu': known are pack"):
        ops.get_op("gather", "cpu")


def test_an_implementation_is_replaced_only_on_purpose():
    ops = registry()
    with pytest.raises(ValueError, match=r"op 'pack' is already registered on platform 'cpu'.*replace=True"):
        ops.register("pack", torch.masked_select, platform="cpu")
    ops.register("pack", torch.masked_select, platform="cpu", replace=True)
    assert ops.get_op("pack", "cpu") is torch.masked_select
    assert isinstance(ops.get_op("pack", "cuda"), NativePackOp)
    assert isinstance(kernel_registry.get_op("pack", "cpu"), NativePackOp)


def test_the_description_has_a_line_per_platform_and_op():
    lines = kernel_registry.describe().splitlines()
    assert [line.split()[:2] for line in lines] == [[platform, "pack"] for platform in PLATFORMS]
    assert all("NativePackOp: Gather the active rows" in line for line in lines)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops: ops.get_op("unpack"), r"unknown op 'unpack' on platform '.*': known are pack"),
        (lambda ops: ops.get_op("pack", "tpu"), r"unknown platform 'tpu': known are cpu, cuda, rocm, mps"),
        (lambda ops: ops.get_op("pack", ""), "unknown platform ''"),
        (lambda ops: ops.available("tpu"), "unknown platform 'tpu'"),
        (lambda ops: ops.register("x", torch.gather, platform="tpu"), "unknown platform 'tpu'"),
        (lambda ops: ops.register("x", 3, platform="cpu"), "implementation of 'x' must be callable, got 3"),
    ],
)
def test_what_is_unknown_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(registry())


def test_the_platform_of_this_machine():
    assert this_platform() == ("cuda" if torch.cuda.is_available() else "cpu") or torch.backends.mps.is_available()

"""Which implementation of an op serves which platform: platform → op → implementation.

Nothing is looked up elsewhere when an op is missing on a platform: an implementation that is slower, or rounds
otherwise, must be asked for by name.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch

from packdata.kernels.native import NativePackOp

Platform = Literal["cpu", "cuda", "rocm", "mps"]
PLATFORMS: tuple[str, ...] = get_args(Platform)


class KernelRegistry:
    """Implementations by platform and name.

    Args:
        ops: Implementations that serve every platform, by name.

    Example:
        >>> kernel_registry.available("cpu")
        ('pack',)
        >>> pack = kernel_registry.get_op("pack")
        >>> pack(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 0, 1]]))
        (tensor([5, 7]), tensor([0, 2]))
    """

    def __init__(self, ops: Mapping[str, Any]) -> None:
        self._ops: dict[str, dict[str, Any]] = {platform: dict(ops) for platform in PLATFORMS}

    def get_op(self, name: str, platform: Platform | None = None) -> Any:
        """Return the implementation of an op.

        Args:
            name: One of ``available(platform)``.
            platform: Where it is to run; None for this machine's: a GPU where torch sees one, else the CPU.

        Raises:
            ValueError: If the platform, or the op on this platform, is unknown; it lists the known ones.
        """
        ops = self._of(platform)
        if name not in ops:
            raise ValueError(
                f"unknown op {name!r} on platform {platform or this_platform()!r}: known are {', '.join(sorted(ops))}; "
                "add one with kernel_registry.register"
            )
        return ops[name]

    def register(self, name: str, implementation: Any, *, platform: Platform, replace: bool = False) -> None:
        """Add an implementation of an op for one platform.

        Raises:
            ValueError: If the platform is unknown, the implementation cannot be called, or the op is already there and
                ``replace`` is not set.
        """
        ops = self._of(platform)
        if not callable(implementation):
            raise ValueError(f"implementation of {name!r} must be callable, got {implementation!r}")
        if name in ops and not replace:
            raise ValueError(f"op {name!r} is already registered on platform {platform!r}: pass replace=True")
        ops[name] = implementation

    def available(self, platform: Platform | None = None) -> tuple[str, ...]:
        """Return the names of a platform's ops, sorted; None for this machine's platform."""
        return tuple(sorted(self._of(platform)))

    def describe(self) -> str:
        """Return one line per platform and op, with the implementation and what it says of itself."""
        lines = [
            f"{platform:<5} {name:<22} {_described(implementation)}"
            for platform, ops in self._ops.items()
            for name, implementation in sorted(ops.items())
        ]
        return "\n".join(lines)

    def _of(self, platform: str | None) -> dict[str, Any]:
        platform = this_platform() if platform is None else platform
        if platform not in self._ops:
            raise ValueError(f"unknown platform {platform!r}: known are {', '.join(PLATFORMS)}")
        return self._ops[platform]


def this_platform() -> Platform:
    """Return where tensors of this process are likely to live: a GPU where torch sees one, else the CPU."""
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _described(implementation: Any) -> str:
    named = implementation if isinstance(implementation, type) or hasattr(implementation, "__name__") else None
    name = (named or type(implementation)).__name__
    summary = (implementation.__doc__ or "").strip().split("\n")[0]
    return f"{name}: {summary}"


kernel_registry = KernelRegistry({"pack": NativePackOp()})
"""The ops of this package on every platform; extensions register theirs here."""

"""Which rank of how many this process is, with no communication and without loading torch."""

import operator
import os
import sys
from typing import Any


def resolve_rank(rank: Any = None, world_size: Any = None) -> tuple[int, int]:
    """Say which data-parallel rank this process is, and of how many.

    Args:
        rank: The rank, or None to ask ``torch.distributed`` (if it is initialised), then the environment's ``RANK``,
            else 0.
        world_size: The number of ranks, or None to ask the same places, else 1. Give both or neither.

    Returns:
        ``(rank, world_size)`` with ``0 <= rank < world_size``.

    Raises:
        ValueError: If only one of the two is given, or they do not fit together.

    Example:
        >>> resolve_rank(1, 4)
        (1, 4)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size together or neither, got rank={rank}, world_size={world_size}")
    if rank is None:
        rank, world_size = _surrounding_rank()
    rank, world_size = _as_integer(rank, "rank"), _as_integer(world_size, "world_size")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to {world_size - 1} for world_size={world_size}, got {rank}")
    return rank, world_size


def _as_integer(value: Any, name: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ValueError(f"{name} must be an integer, got {value!r}")


def _surrounding_rank() -> tuple[int, int]:
    torch = sys.modules.get("torch")  # a process group can only exist where torch has been imported
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = _environment("RANK"), _environment("WORLD_SIZE")
    if rank is None and (world_size or 1) > 1:
        raise ValueError(f"the environment has WORLD_SIZE={world_size} but no RANK: give rank and world_size")
    return rank or 0, 1 if world_size is None else world_size


def _environment(name: str) -> int | None:
    value = os.environ.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise ValueError(f"the environment's {name} must be an integer, got {value!r}") from None

"""Which rank of how many this process is, with no communication and without loading torch."""

import os
import sys


def resolve_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
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
    if rank is None or world_size is None:
        rank, world_size = _surrounding_rank()
    if isinstance(rank, bool) or not isinstance(rank, int) or not isinstance(world_size, int):
        raise ValueError(f"rank and world_size must be integers, got rank={rank!r}, world_size={world_size!r}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to {world_size - 1} for world_size={world_size}, got {rank}")
    return rank, world_size


def _surrounding_rank() -> tuple[int, int]:
    torch = sys.modules.get("torch")  # a process group can only exist where torch has been imported
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

"""Seeded generators: the same numbers for the same seed and epoch, whatever else draws."""

from collections.abc import Sequence

import numpy as np

Seed = int | tuple[int, ...]


def generator(seed: Seed) -> np.random.Generator:
    """Make the generator of a seed, or of a tuple such as ``(seed, epoch)``.

    Args:
        seed: One or more integers, not negative.

    Returns:
        A fresh counter-based (Philox) generator.

    Raises:
        ValueError: If the seed is not made of non-negative integers.

    Example:
        >>> generator((0, 1)).permutation(4).tolist() == generator((0, 1)).permutation(4).tolist()
        True
    """
    parts = seed if isinstance(seed, Sequence) else (seed,)
    whole = all(isinstance(part, int | np.integer) and not isinstance(part, bool) and part >= 0 for part in parts)
    if not parts or not whole:
        raise ValueError(f"seed must be an integer from 0 or a tuple of them, such as (seed, epoch), got {seed!r}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(part) for part in parts])))

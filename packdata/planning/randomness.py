"""Seeded generators: the same numbers for the same seed and epoch, whatever else draws."""

from collections.abc import Sequence

import numpy as np

from .edge import no_type_check

Seed = int | tuple[int, ...]


@no_type_check
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
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(plain_seed(seed))))


@no_type_check
def plain_seed(seed: Seed) -> Seed:
    """Return the seed in Python's own integers, which JSON can hold.

    Raises:
        ValueError: If it is not made of non-negative integers.
    """
    parts = seed if isinstance(seed, Sequence) else (seed,)
    whole = all(isinstance(part, int | np.integer) and not isinstance(part, bool) and part >= 0 for part in parts)
    if not parts or not whole:
        raise ValueError(f"seed must be an integer from 0 or a tuple of them, such as (seed, epoch), got {seed!r}")
    plain = tuple(int(part) for part in parts)
    return plain if isinstance(seed, Sequence) else plain[0]

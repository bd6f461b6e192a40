"""Short digests of large integer arrays, so that a state can tell whether it belongs to this dataset."""

import hashlib
from typing import Any

import numpy as np

CHUNK = 1 << 20
"""Numbers converted at a time: a whole copy in another dtype could be too large."""


def digest(*arrays: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Digest integer arrays by their values, whatever their dtypes.

    Args:
        *arrays: Integer arrays, each of shape ``(n,)``.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> digest(np.array([3, 4], dtype=np.int32)) == digest(np.array([3, 4], dtype=np.uint16))
        True
    """
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(len(array).to_bytes(8, "little"))
        for first in range(0, len(array), CHUNK):
            state.update(array[first : first + CHUNK].astype("<i8").tobytes())
    return state.hexdigest()

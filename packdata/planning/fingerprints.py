"""Fingerprints of lengths and policies: the same for any integer dtype, another for any other number."""

import hashlib
import json
from dataclasses import asdict

import numpy as np

from .blocks import Array, blocks
from .policy import Policy


def fingerprint(lengths: Array, policy: Policy | None = None, groups: Array | None = None) -> str:
    """Digest what a plan depends on.

    Args:
        lengths: Tokens per document, any integer dtype.
        policy: The options, or None for the lengths alone.
        groups: Each document's group, or None.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> fingerprint(np.array([3, 4], dtype="uint8")) == fingerprint(np.array([3, 4], dtype="int64"))
        True
    """
    digest = hashlib.blake2b(digest_size=16)
    options = None if policy is None else asdict(policy)
    sizes = [len(lengths), None if groups is None else len(groups)]
    digest.update(json.dumps([sizes, options], sort_keys=True).encode())
    dtype = "<u4" if int(lengths.max(initial=0)) < 2**32 else "<u8"
    for block in blocks(len(lengths)):
        digest.update(np.ascontiguousarray(lengths[block], dtype=dtype).data)
    if groups is not None:
        for block in blocks(len(groups)):
            digest.update(np.ascontiguousarray(groups[block], dtype="<i8").data)
    return digest.hexdigest()

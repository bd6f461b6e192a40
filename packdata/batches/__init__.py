"""Packed batches, and other frameworks' names for them."""

from .collator import PackingCollator
from .columns import Column
from .dialects import to_fla, to_jax, to_megatron, to_torchtitan, to_transformers
from .packed_batch import PackedBatch, Policy
from .static_buffers import StaticBuffers

__all__ = [
    "Column",
    "PackedBatch",
    "PackingCollator",
    "Policy",
    "StaticBuffers",
    "to_fla",
    "to_jax",
    "to_megatron",
    "to_torchtitan",
    "to_transformers",
]

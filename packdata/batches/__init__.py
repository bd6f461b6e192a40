"""Packed batches, and other frameworks' names for them."""

from .collator import PackingCollator
from .columns import Column
from .dialects import to_transformers
from .packed_batch import PackedBatch, Policy

__all__ = ["Column", "PackedBatch", "PackingCollator", "Policy", "to_transformers"]

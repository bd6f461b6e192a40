"""The order and grouping of documents: which batches, on which rank, in which epoch, resumable anywhere."""

from .length_buckets import LengthBucketBatchSampler
from .packs import PackBatchSampler

__all__ = ["LengthBucketBatchSampler", "PackBatchSampler"]

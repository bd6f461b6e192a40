"""Masks from document boundaries, for every backend."""

from .blocks import block_mask_from_intervals as block_mask_from_intervals
from .dense import document_mask as document_mask
from .flex import document_block_mask as document_block_mask
from .flex import document_mask_mod as document_mask_mod
from .intervals import KeyIntervals as KeyIntervals
from .intervals import key_intervals as key_intervals
from .kwargs import attention_kwargs as attention_kwargs
from .kwargs import layer_windows as layer_windows
from .static import refresh_block_mask as refresh_block_mask

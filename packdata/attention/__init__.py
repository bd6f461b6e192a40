"""Masks from document boundaries, for every backend."""

from packdata.attention.blocks import block_mask_from_intervals as block_mask_from_intervals
from packdata.attention.dense import document_mask as document_mask
from packdata.attention.flex import document_block_mask as document_block_mask
from packdata.attention.flex import document_mask_mod as document_mask_mod
from packdata.attention.intervals import KeyIntervals as KeyIntervals
from packdata.attention.intervals import key_intervals as key_intervals
from packdata.attention.kwargs import attention_kwargs as attention_kwargs
from packdata.attention.static import refresh_block_mask as refresh_block_mask

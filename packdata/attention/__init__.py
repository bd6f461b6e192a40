"""Masks from document boundaries, for every backend."""

from packdata.attention.dense import document_mask as document_mask
from packdata.attention.kwargs import attention_kwargs as attention_kwargs

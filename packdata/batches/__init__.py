"""Packed batches, and other frameworks' names for them."""

"""Slow and obvious references, one token and one document at a time."""

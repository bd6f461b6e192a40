"""Hypothesis strategies: what users may hand to packdata."""

from hypothesis import strategies as st


def document_lengths(*, budget: int = 16, min_size: int = 0, max_size: int = 24, empty: bool = True):
    """Lists of document lengths that fit the budget."""
    return st.lists(st.integers(0 if empty else 1, budget), min_size=min_size, max_size=max_size)

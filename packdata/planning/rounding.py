"""Rounding up to a multiple, defined once."""

from typing import TypeVar

T = TypeVar("T")


def round_up(value: T, multiple: int) -> T:
    """Round up to the next multiple; also elementwise on an integer array.

    Args:
        value: An integer or an integer array, not negative.
        multiple: At least 1.

    Returns:
        The smallest multiple that is not below ``value``, of the same kind.

    Example:
        >>> round_up(9, 4), round_up(8, 4), round_up(0, 4)
        (12, 8, 0)
    """
    return -(-value // multiple) * multiple  # type: ignore[operator, no-any-return]

"""The public edge, where arguments are checked by hand."""

import operator
from typing import Any, TypeVar

Checked = TypeVar("Checked")


def no_type_check(checked: Checked) -> Checked:
    """Mark a function or class whose arguments are checked by hand.

    The tests have beartype check annotations at run time, which would fire before the error that helps the user. The
    import hook that does so leaves out what is decorated under this name; mypy goes on to check it.
    """
    return checked


def require_at_least(value: Any, least: int, name: str) -> int:
    """Return ``value`` as an int, or raise a ValueError that names it."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or operator.index(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return operator.index(value)

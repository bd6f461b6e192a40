"""The public edge, where arguments are checked by hand."""

from typing import TypeVar

Checked = TypeVar("Checked")


def no_type_check(checked: Checked) -> Checked:
    """Mark a function or class whose arguments are checked by hand.

    The tests have beartype check annotations at run time, which would fire before the error that helps the user. The
    import hook that does so leaves out what is decorated under this name; mypy goes on to check it.
    """
    return checked

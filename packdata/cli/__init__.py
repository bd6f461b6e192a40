"""The ``packdata`` command: see data packed, estimate, pack, inspect, and check, from a terminal.

Exit codes: 0 done; 1 what was asked for does not hold (``--strict``, ``check``, ``check-model``); 2 wrong input, with one
line on stderr that says what to do; 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What stands behind the command's name; None for the process's own.

    Returns:
        The exit code.
    """
    try:
        from .app import app
    except ModuleNotFoundError as error:
        return _complain(f"{error.name} is missing: pip install 'packdata[cli]'", WRONG_INPUT)
    try:
        return int(app(arguments, prog_name="packdata", standalone_mode=False) or 0)
    except BrokenPipeError:  # the reader (head, less) had enough; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, TypeError, OSError) as error:
        return _complain(str(error) or type(error).__name__, WRONG_INPUT)
    except (KeyboardInterrupt, Exception) as error:
        return _complain_of(error)


def _complain_of(error: BaseException) -> int:
    """Handle what the parser of the command line raises; anything else is a bug and keeps its traceback."""
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return _complain("interrupted", INTERRUPTED)
    if hasattr(error, "format_message"):
        return _complain(f"{error.format_message()} (see packdata --help)", WRONG_INPUT)
    raise error


def _complain(message: str, code: int) -> int:
    from packdata.report.visible import visible

    print(f"packdata: {visible(' '.join(message.split()))}", file=sys.stderr)
    return code

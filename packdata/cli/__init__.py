"""The ``packdata`` command: estimate, pack, inspect and check from a terminal.

Exit codes: 0 done; 1 what was asked for does not hold (``--strict``, ``check``, ``check-model``); 2 wrong input, with
one line on stderr that says what to do; 130 interrupted.
"""

import os
import re
import sys
from collections.abc import Sequence

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130

_KEYWORD = re.compile(r"(?<=[ (])(overlong|align|max_documents|split)=(,?)")
"""Options as the messages of the library name them; ``split=, got None`` names one without a value."""


class DoesNotHold(Exception):  # noqa: N818 - an answer, not a fault
    """What the user asked to hold does not: the message says what."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What stands behind the command's name; None for the process's own. None at all shows the help.

    Returns:
        The exit code.
    """
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()  # here, where a closed pipe is still caught
    except BrokenPipeError:  # the reader (head, less) had enough; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except DoesNotHold as error:
        return _complain(str(error), FAILED)
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _complain(str(error) or type(error).__name__, WRONG_INPUT)
    return _complain("interrupted", INTERRUPTED) if code == INTERRUPTED else code


def _run(arguments: list[str]) -> int:
    try:
        from .app import app
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: pip install 'packdata[cli]'") from None
    try:
        return int(app(arguments, prog_name="packdata", standalone_mode=False) or 0)
    except Exception as error:
        if type(error).__name__ == "Abort":  # what becomes of Ctrl-C in some versions of the parser
            return INTERRUPTED
        if hasattr(error, "format_message"):  # the parser's own errors, of whichever library it is made
            command = getattr(getattr(error, "ctx", None), "command_path", "packdata")
            raise ValueError(f"{error.format_message()} (see {command} --help)") from None
        raise


def _complain(message: str, code: int) -> int:
    from packdata.report.visible import visible  # not for the commands that go well

    print(f"packdata: {visible(_in_flags(' '.join(message.split())))}", file=sys.stderr)
    return code


def _in_flags(message: str) -> str:
    """Name options as they are typed here.

    Example:
        >>> _in_flags("choose what happens with overlong='drop'")
        "choose what happens with --overlong 'drop'"
    """
    message = message.replace("drop_columns", "--drop-columns")
    return _KEYWORD.sub(lambda found: f"--{found[1].replace('_', '-')}{found[2] or ' '}", message)

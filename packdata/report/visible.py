"""Token ids as text that can be looked at: decoded, and with nothing in it that acts instead of showing.

A document may hold anything: terminal escapes, direction overrides, bytes that are no UTF-8. On a page or a terminal
such characters would move the cursor, reorder the line or vanish, so each is replaced by a visible name.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

Decode = Callable[[list[int]], str]

# Controls, separators, direction marks and overrides, invisible tags, lone surrogates. Joiners stay: emoji need them.
_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Replace each character that acts instead of showing by a visible name.

    Args:
        text: Any string, lone surrogates included.

    Returns:
        The same text with controls as control pictures (a newline is ``↵``) and other acting characters as escapes.
        It holds no line breaks and encodes to UTF-8.

    Example:
        >>> visible("a\nb\x1b[31m\u202e")
        'a↵b␛[31m\\u202e'
    """
    return _ACTING.sub(_name, text)


def _name(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\n":
        return "↵"
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def decoder(tokenizer: Any = None) -> Decode:
    r"""Make a function from token ids to text.

    Args:
        tokenizer: None (ids are written as numbers), ``"bytes"`` (ids are UTF-8 bytes; ids over 255 are markers), an
            object with ``decode``, or a callable from a list of ids to text.

    Returns:
        A function that takes a list of ids and gives text, not yet made visible.

    Raises:
        ValueError: If it is none of these.

    Example:
        >>> decoder("bytes")([104, 105, 255, 256])
        'hi\\xff⟨256⟩'
    """
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return _decode_bytes
    if hasattr(tokenizer, "decode") and not isinstance(tokenizer, str | bytes):
        return lambda ids: _decode_all(tokenizer, ids)
    if callable(tokenizer):
        return lambda ids: str(tokenizer(ids))
    raise ValueError(
        f"tokenizer must be None, 'bytes', an object with decode() or a callable from ids to text, got {tokenizer!r}"
    )


def _decode_all(tokenizer: Any, ids: list[int]) -> str:
    try:
        return str(tokenizer.decode(ids, skip_special_tokens=False))
    except TypeError:  # a tokenizer of another make has no such option
        return str(tokenizer.decode(ids))


def _decode_bytes(ids: list[int]) -> str:
    parts = [bytes(run).decode("utf-8", "backslashreplace") if low else _markers(run) for low, run in _runs(ids)]
    return "".join(parts)


def _markers(ids: list[int]) -> str:
    return "".join(f"⟨{i}⟩" for i in ids)


def _runs(ids: list[int]) -> Iterable[tuple[bool, list[int]]]:
    return ((low, list(run)) for low, run in groupby(ids, key=lambda i: 0 <= i < 256))


def cell(token: int, decode: Decode, *, width: int) -> str:
    """Draw one token in at most ``width`` columns of a terminal.

    Args:
        token: A token id.
        decode: From :func:`decoder`.
        width: Most columns.

    Returns:
        The visible text, cut with ``…`` where it is longer. A token that decodes to nothing shows its id.

    Example:
        >>> cell(5, lambda ids: "elephant", width=6)
        'eleph…'
    """
    return clip(visible(decode([token])) or f"⟨{token}⟩", width)


def clip(text: str, width: int) -> str:
    """Cut ``text`` to ``width`` columns; the last one is ``…`` where something was cut."""
    if columns(text) <= width:
        return text
    room, kept = width - 1, []
    for character in text:
        room -= _columns(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def columns(text: str) -> int:
    """Count the terminal columns of ``text``: two for wide characters, none for combining ones.

    Example:
        >>> columns("日本"), columns("e\u0301")
        (4, 1)
    """
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or character in "\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, width: int) -> str:
    """Fill ``text`` with spaces to ``width`` columns; right-to-left text is isolated from its neighbours."""
    spaces = " " * (width - columns(text))
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        text = f"\u2068{text}\u2069"
    return text + spaces

"""The rooms of open packs: a set of integers that finds its smallest member from a given one upward.

A two-level bitmap. Each word is a Python integer of 1,024 bits, and the summary has a bit for each word that is not
zero. Looking for the smallest member from ``x`` upward shifts the word of ``x`` so that ``x`` is its bit 0, and takes
the lowest set bit (``bits & -bits``); if none is left, the summary names the next word in the same way. One big integer
would need one level only, but each step would copy it: for a budget of a million, 128 KiB a step.
"""

_BITS = 10
_IN_WORD = (1 << _BITS) - 1


class Rooms:
    """A set of integers from 0 to ``largest``.

    Example:
        >>> rooms = Rooms(5000)
        >>> rooms.add(3), rooms.add(4096)
        (None, None)
        >>> rooms.at_least(3), rooms.at_least(4), rooms.at_least(4097)
        (3, 4096, -1)
    """

    __slots__ = ("_summary", "_words")

    def __init__(self, largest: int) -> None:
        self._words = [0] * ((largest >> _BITS) + 1)
        self._summary = 0

    def add(self, room: int) -> None:
        """Put a member in; it may be there already."""
        self._words[room >> _BITS] |= 1 << (room & _IN_WORD)
        self._summary |= 1 << (room >> _BITS)

    def remove(self, room: int) -> None:
        """Take a member out."""
        word = room >> _BITS
        self._words[word] ^= 1 << (room & _IN_WORD)
        if not self._words[word]:
            self._summary ^= 1 << word

    def at_least(self, room: int) -> int:
        """Find the smallest member from ``room`` upward, or -1."""
        word = room >> _BITS
        if word >= len(self._words):
            return -1
        bits = self._words[word] >> (room & _IN_WORD)
        if bits:
            return room + (bits & -bits).bit_length() - 1
        words = self._summary >> (word + 1)
        if not words:
            return -1
        word += (words & -words).bit_length()
        bits = self._words[word]
        return (word << _BITS) + (bits & -bits).bit_length() - 1

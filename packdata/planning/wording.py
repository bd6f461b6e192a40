"""Numbers with their nouns, for messages and representations."""


def counted(number: int, noun: str) -> str:
    """Write a number with its noun.

    Example:
        >>> counted(1, "token"), counted(2_000, "token")
        ('1 token', '2,000 tokens')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

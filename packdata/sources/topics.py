"""A small real text that every machine has: Python's own help topics (``help("assert")``, ``help("yield")``, …).

About eighty documents of very different lengths (a few hundred bytes to sixty thousand): what packing is about.
"""


def topic_texts() -> dict[str, str]:
    """Read the help topics that ship with Python.

    Returns:
        Topic name to text, sorted by name. The texts differ a little between Python versions.

    Example:
        >>> texts = topic_texts()
        >>> "yield" in texts and len(texts) > 50
        True
    """
    from pydoc_data.topics import topics  # 0.5 MB of text: read when asked for

    return dict(sorted(topics.items()))


def topic_paragraphs() -> list[tuple[str, str]]:
    """Cut the topics into paragraphs.

    Returns:
        Pairs of a topic's name and one of its paragraphs, in order.
    """
    return [(name, part) for name, text in topic_texts().items() for part in text.split("\n\n")]

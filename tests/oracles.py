"""Slow and obvious references, one token and one document at a time."""

import math

# --- drafting


def document_remaining(document_ids: list[int]) -> list[int]:
    """Tokens after each slot in its own document, -1 on padding."""
    return [
        sum(other == document for other in document_ids[slot + 1 :]) if document >= 0 else -1
        for slot, document in enumerate(document_ids)
    ]


def anchor_candidates(
    document_ids: list[int], labels: list[int], *, first_target: int = 1, block_size: int = 1, tail: str = "truncate"
) -> list[int]:
    """Slots that may be anchors."""
    remaining = document_remaining(document_ids)
    return [
        slot
        for slot, label in enumerate(labels)
        if label != -100
        and remaining[slot] >= first_target
        and labels[slot + first_target] != -100
        and (tail == "truncate" or remaining[slot] >= block_size - 1)
    ]


def draft_attends(
    query: int,
    key: int,
    *,
    document_ids: list[int],
    anchors: list[int],
    anchor_valid: list[bool],
    block_size: int,
    window: int | None = None,
    block_causal: bool = False,
) -> bool:
    """Whether one draft slot sees one key."""
    block, place = divmod(query, block_size)
    anchor, tokens = anchors[block], len(document_ids)
    if key >= tokens:
        key_block, key_place = divmod(key - tokens, block_size)
        return key_block == block and (key_place <= place or not block_causal)
    if not anchor_valid[block] or document_ids[anchor] == -1 or document_ids[key] != document_ids[anchor]:
        return False
    return key < anchor and (window is None or key >= anchor - window)


def draft_labels(
    document_ids: list[int],
    labels: list[int],
    *,
    anchors: list[int],
    anchor_valid: list[bool],
    block_size: int,
    sample_from_anchor: bool = False,
    decay: float | None = None,
) -> dict[tuple[int, int], tuple[int, float]]:
    """For each (block, place) that trains: the slot of the token it predicts, and its weight."""
    found = {}
    for block, (anchor, valid) in enumerate(zip(anchors, anchor_valid, strict=True)):
        for place in range(block_size):
            ahead = place + 1 if sample_from_anchor else place
            slot = anchor + ahead
            inside = valid and ahead > 0 and slot < len(labels) and document_ids[slot] == document_ids[anchor]
            if inside and labels[slot] != -100:
                found[block, place] = slot, 1.0 if decay is None else math.exp(-(ahead - 1) / decay)
    return found

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


# --- report


def denominators(batch, losses):
    """Divide token losses by targets, by documents with targets, and by slots, one slot at a time."""
    by_document, slots = {}, 0
    for row, owners in enumerate(batch["document_ids"].tolist()):
        for slot, owner in enumerate(owners):
            slots += 1
            if int(batch["targets"][row, slot]) != -100:
                by_document.setdefault(owner, []).append(float(losses[row, slot]))
    every = [loss for document in by_document.values() for loss in document]
    means = [sum(document) / len(document) for document in by_document.values()]
    return {
        "sequences": len(means),
        "token_mean": sum(every) / max(len(every), 1),
        "sequence_mean": sum(means) / max(len(means), 1),
        "slot_mean": sum(every) / slots,
    }


def report_numbers(packs, *, budget):
    """Count what a report shows of packs, given as lists of lengths."""
    spans = [length for pack in packs for length in pack]
    within = sum(1 for length in spans for query in range(length) for _ in range(query + 1))
    across = sum(1 for pack in packs for query in range(sum(pack)) for _ in range(query + 1))
    return {
        "packs": len(packs),
        "budget": budget,
        "spans": len(spans),
        "most_spans": max(map(len, packs), default=0),
        "tokens": sum(spans),
        "padding": sum(budget - sum(pack) for pack in packs),
        "fill": sum(spans) / (budget * len(packs)) if packs else 1.0,
        "emptiest": min(map(sum, packs), default=0),
        "longest": max(spans, default=0),
        "attention_pairs": within,
        "attention_pairs_across": across,
        "attention_saved": 1 - within / across if across else 0.0,
    }


# --- samplers


def bucket_batches(lengths, *, budget, boundaries, padded=False):
    """Lengths of each batch, one document at a time: from the longest down, until the next does not fit."""
    edges = [*(edge for edge in boundaries if edge < budget), budget]
    batches, buckets = [], []
    for length in sorted((length for length in lengths if 0 < length <= budget), reverse=True):
        bucket = min(edge for edge in edges if length <= edge)
        if batches and buckets[-1] == bucket:
            wider = [*batches[-1], length]
            if (len(wider) * wider[0] if padded else sum(wider)) <= budget:
                batches[-1] = wider
                continue
        batches.append([length])
        buckets.append(bucket)
    return batches


def deal(packs, *, world, packs_per_batch=1, uneven="pad"):
    """One list of batches for each step: one batch for each rank, of so many packs while there are any."""
    packs, steps = list(packs), []
    while packs:
        step = [[packs.pop(0) for _ in range(packs_per_batch) if packs] for _ in range(world)]
        if uneven == "pad" or len(step[-1]) == packs_per_batch:
            steps.append(step)
    return steps


def straggler_ratio(steps, *, token_cost=0.0):
    """Time that steps take over the time they would take evenly spread; ``steps[t][rank]`` is a list of lengths."""
    costs = [[sum(length**2 + token_cost * length for length in batch) for batch in step] for step in steps]
    evenly = sum(sum(step) / len(step) for step in costs)
    return sum(map(max, costs)) / evenly if evenly else 1.0

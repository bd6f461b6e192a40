"""Slow and obvious references, one token and one document at a time."""

import math
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

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
    """Lengths of each batch, document by document from the longest down: the fullest of its bucket, or a rectangle."""
    batches = []
    for low, high in pairwise([0, *(edge for edge in boundaries if edge < budget), budget]):
        bucket = []
        for length in sorted((length for length in lengths if low < length <= high), reverse=True):
            if padded:
                open_batches = [batch for batch in bucket[-1:] if (len(batch) + 1) * batch[0] <= budget]
            else:
                open_batches = [batch for batch in bucket if sum(batch) + length <= budget]
            if open_batches:
                max(open_batches, key=sum).append(length)
            else:
                bucket.append([length])
        batches += bucket
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


# --- kernels


def pack(x, mask):
    """Each active slot's row, one after another, and how many there are up to the end of each row of the mask."""
    rows, offsets = [], [0]
    for row, active in zip(x, mask, strict=True):
        rows += [value for value, here in zip(row, active, strict=True) if here]
        offsets.append(len(rows))
    return rows, offsets


def dense_head(
    hidden, weight, targets, *, bias=None, softcap=None, temperature=1.0, z_loss=0.0, weights=None, dtype=torch.float32
):
    """All logits at once: the weighted sum, and log-probabilities and entropies (0 without a target) in ``dtype``."""
    logits = functional.linear(hidden, weight, bias).to(dtype)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_probabilities = (logits / temperature).log_softmax(-1)
    there = targets != -100
    chosen = log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    losses = -chosen + z_loss * (logits / temperature).logsumexp(-1) ** 2
    losses = losses if weights is None else losses * weights
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return losses[there].sum(), chosen.where(there, 0.0), entropy.where(there, 0.0)


# --- layout and batches


def lengths_of_runs(values):
    """Length of each run of equal values."""
    lengths = []
    for index, value in enumerate(values):
        if index and value == values[index - 1]:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def lengths_by_markers(ids, *, eos, bos=()):
    """Split at end markers, token by token; where one id starts and ends documents, the first of a document starts."""
    documents, fresh = [], True
    for token in ids:
        starts = fresh or (token in bos and token not in eos)
        if starts:
            documents.append(0)
        documents[-1] += 1
        opening = starts and token in bos
        fresh = token in eos and not opening
    return documents


def documents_of_features(features, *, layout="stream"):
    """One dict per document with tokens: its feature, row, reach (what it may be joined with) and tokens' places."""
    documents, packed = [], any("seq_lengths" in feature for feature in features)
    for index, feature in enumerate(features):
        row = index if layout == "rows" else 0
        begin = 0
        for number, length in enumerate(feature["seq_lengths"] if packed else [len(feature["input_ids"])]):
            if length:
                reach = index if packed or layout == "rows" else 0
                places = list(range(begin, begin + length))
                documents.append({"feature": index, "number": number, "row": row, "reach": reach, "places": places})
            begin += length
    return documents


def is_learnt(feature, place, targets=None):
    """Whether the feature wants this token learnt."""
    names = ("labels", "completion_mask", "assistant_masks") if targets is None else targets
    names = [] if targets == "all" else [name for name in names if name in feature]
    return all(feature[name][place] != (-100 if name == "labels" else 0) for name in names)


def predicted_tokens(features, *, layout="stream", targets=None, cross_document_targets=False):
    """All (document, place) of tokens that some slot predicts, each with the (document, place) that predicts it."""
    documents, predicted = documents_of_features(features, layout=layout), {}
    for number, document in enumerate(documents):
        feature = features[document["feature"]]
        for place in document["places"]:
            if place != document["places"][0]:
                before = number, place - 1
            elif cross_document_targets and number and documents[number - 1]["reach"] == document["reach"]:
                before = number - 1, documents[number - 1]["places"][-1]
            else:
                continue
            if is_learnt(feature, place, targets):
                predicted[number, place] = before
    return predicted


def collate(
    features,
    *,
    pad_to=None,
    pad_to_multiple_of=None,
    layout="stream",
    max_documents=None,
    max_seqlen=None,
    padding_segment=512,
    align=1,
    pad_token_id=0,
    position_offset=0,
    targets=None,
    columns=(),
    cross_document_attention=False,
    cross_document_targets=False,
):
    """A batch as plain lists, built slot by slot; ``columns`` are (name, per, pad), their values one per token."""
    documents = documents_of_features(features, layout=layout)
    predicts = {
        before: token
        for token, before in predicted_tokens(
            features, layout=layout, targets=targets, cross_document_targets=cross_document_targets
        ).items()
    }
    uses_labels = "labels" in (("labels",) if targets is None else targets)
    rows = [[] for _ in range(max(len(features), 1) if layout == "rows" else 1)]
    segments = [[] for _ in rows]
    starts, last_reach = [], None

    def slot(row, number=-1, place=None, new=False):
        if new:
            segments[row].append(0)
        segments[row][-1] += 1
        values = {"input_ids": pad_token_id, "targets": -100, "document_ids": number if place is not None else -1}
        values["position_ids"] = position_offset + segments[row][-1] - 1
        values |= {name: pad for name, _, pad in columns}
        if place is not None:
            feature = features[documents[number]["feature"]]
            values["input_ids"] = feature["input_ids"][place]
            other, ahead = predicts.get((number, place), (None, None))
            if other is not None:
                source = features[documents[other]["feature"]]
                values["targets"] = source["labels" if uses_labels and "labels" in source else "input_ids"][ahead]
            for name, per, _ in columns:
                if per == "token":
                    values[name] = feature[name][place]
                elif other is not None and per == "prediction":
                    values[name] = source[name][ahead]
                elif other is not None and per == "document":
                    values[name] = feature[name][documents[number]["number"]]
        rows[row].append(values)

    for number, document in enumerate(documents):
        row = document["row"]
        joined = cross_document_attention and document["reach"] == last_reach
        last_reach = document["reach"]
        starts.append((row, len(rows[row])))
        for place in document["places"]:
            slot(row, number, place, new=place == document["places"][0] and not joined)
        while len(rows[row]) % align:
            slot(row)
    width = max(map(len, rows))
    unit = pad_to or pad_to_multiple_of or align
    while width == 0 or width % unit:
        width += 1
    piece = min(padding_segment, max_seqlen or padding_segment)
    for row, slots in enumerate(rows):
        padding = 0
        while len(slots) < width:
            slot(row, new=padding % piece == 0)
            padding += 1
    offsets = [0]
    for lengths in segments:
        for length in lengths:
            offsets.append(offsets[-1] + length)
    longest = max(length for lengths in segments for length in lengths)
    if pad_to and max_documents:
        most = min(max_documents, pad_to)
        while len(offsets) < len(rows) * (most + math.ceil((pad_to - most) / piece)) + 1:
            offsets.append(offsets[-1])
        longest = pad_to
    names = ["input_ids", "targets", "position_ids", "document_ids", *(name for name, _, _ in columns)]
    return {name: [[values[name] for values in slots] for slots in rows] for name in names} | {
        "cu_seqlens": offsets,
        "lengths": tuple(len(document["places"]) for document in documents),
        "document_starts": tuple(row * width + place for row, place in starts),
        "align": align,
        "max_seqlen": max_seqlen or longest,
        "num_targets": len(predicts),
        "cross_document_attention": cross_document_attention,
        "cross_document_targets": cross_document_targets,
    }


# --- planning


def best_fit_decreasing(items, capacity, max_documents=None):
    """Packs of (size, documents) items: the largest first, into the pack of least room, then of fewest documents."""
    packs = []
    for size, documents in sorted(items, reverse=True):
        open_packs = [
            (capacity - sum(other for other, _ in pack) - size, sum(many for _, many in pack), number)
            for number, pack in enumerate(packs)
        ]
        fitting = [
            entry for entry in open_packs if entry[0] >= 0 and entry[1] + documents <= (max_documents or float("inf"))
        ]
        if fitting:
            packs[min(fitting)[2]].append((size, documents))
        else:
            packs.append([(size, documents)])
    return packs


def next_fit(items, capacity, max_documents=None):
    """Packs of (size, documents) items in order: a pack is closed by the first item that does not fit."""
    packs = []
    for size, documents in items:
        fits = packs and sum(other for other, _ in packs[-1]) + size <= capacity
        if fits and sum(many for _, many in packs[-1]) + documents <= (max_documents or float("inf")):
            packs[-1].append((size, documents))
        else:
            packs.append([(size, documents)])
    return packs


def cut_stream(lengths, capacity, max_documents=None):
    """Packs of (document, start, length) spans, filled token by token."""
    packs = [[]]
    for document, length in enumerate(lengths):
        for token in range(length):
            same = token and packs[-1] and packs[-1][-1][0] == document
            full = sum(span[2] for span in packs[-1]) == capacity
            if full or (not same and len(packs[-1]) == max_documents):
                packs.append([])
                same = False
            if same:
                document_, start, size = packs[-1].pop()
                packs[-1].append((document_, start, size + 1))
            else:
                packs[-1].append((document, token, 1))
    return [pack for pack in packs if pack]


def where_tokens_go(plan):
    """How often each (document, token) is in a plan, and where."""
    places = {}
    for number, pack in enumerate(plan):
        for document, start, length in zip(pack.documents, pack.starts, pack.lengths, strict=True):
            for token in range(start, start + length):
                places.setdefault((int(document), int(token)), []).append(number)
    return places


def targets_kept(plan, lengths, targets):
    """Count the targets that are not the first token of a span; a document's targets are its last tokens."""
    kept = 0
    for pack in plan:
        for document, start, length in zip(pack.documents, pack.starts, pack.lengths, strict=True):
            first = lengths[document] - targets[document]
            kept += sum(token >= first for token in range(start + 1, start + length))
    return kept


def draft_loss_block_by_block(drafter, embedding, stream, blocks: dict[tuple[int, int], tuple[int, float]], block_size):
    """Run a drafter on one block at a time, with no mask: its keys are the tokens before the anchor, and itself.

    ``blocks`` is what `draft_labels` gives, keyed by the anchor's slot. Returns the weighted sum of the losses.
    """
    total = 0.0 * sum(parameter.sum() for parameter in drafter.parameters())
    for anchor in sorted({anchor for anchor, _ in blocks}):
        first = anchor
        while first > 0 and stream["document_ids"][0, first - 1] == stream["document_ids"][0, anchor]:
            first -= 1
        positions = stream["position_ids"][0, anchor] + torch.arange(block_size)
        mask = torch.ones(1, 1, block_size, anchor - first + block_size, dtype=torch.bool)
        hidden, before = stream["hidden_states"][:, first:anchor], stream["position_ids"][:, first:anchor]
        states = drafter(hidden, before, embedding[stream["input_ids"][0, anchor]][None], positions, mask)
        logs = (states[0] @ embedding.T).log_softmax(-1)
        for (owner, place), (slot, weight) in blocks.items():
            if owner == anchor:
                total = total - weight * logs[place, stream["input_ids"][0, slot]]
    return total


# --- losses


def step_loss(documents, mode, *, max_length=None, groups=None):
    """The loss of a step by hand; a document is the list of its token losses."""
    groups = range(len(documents)) if groups is None else groups
    tokens = [loss for document in documents for loss in document]
    mean = lambda losses: sum(losses) / len(losses) if losses else 0.0  # noqa: E731
    if mode == "token_mean":
        return mean(tokens)
    if mode == "sequence_mean":
        return mean([mean(document) for document in documents if document])
    if mode == "sequence_sum":
        return mean([sum(document) for document in documents])
    if mode == "constant":
        return mean([sum(document) / max_length for document in documents])
    by_group = {}
    for group, document in zip(groups, documents, strict=True):
        by_group.setdefault(group, []).extend(document)
    return mean([mean(losses) for losses in by_group.values() if losses])


# --- sources


def packed_rows(columns, plan):
    """The rows of a packed dataset, token by token: spans joined, masks folded into labels."""
    rows = []
    for pack in plan:
        spans = list(zip(pack.documents.tolist(), pack.starts.tolist(), pack.lengths.tolist(), strict=True))
        row = {name: [] for name in columns if name not in ("completion_mask", "assistant_masks")}
        if supervised := {"labels", "completion_mask", "assistant_masks"} & set(columns):
            row["labels"] = []
        for document, start, length in spans:
            for place in range(start, start + length):
                for name in row:
                    if name != "labels":
                        row[name].append(columns[name][document][place])
                if supervised:
                    learnt = place > start and is_learnt_token(columns, document, place)
                    label = columns["labels" if "labels" in columns else "input_ids"][document][place]
                    row["labels"].append(label if learnt else -100)
        rows.append(row | {"seq_lengths": [length for _, _, length in spans]})
    return rows


def is_learnt_token(columns, document, place):
    masks = [columns[name] for name in ("completion_mask", "assistant_masks") if name in columns]
    masked = any(not mask[document][place] for mask in masks)
    return not masked and ("labels" not in columns or columns["labels"][document][place] != -100)


def marked(columns, *, bos=None, eos=None):
    """Columns with begin and end markers where they are missing, one document at a time."""
    result = {name: [list(row) for row in rows] for name, rows in columns.items()}
    for number, ids in enumerate(columns["input_ids"]):
        if not ids:
            continue
        add_bos = bos is not None and ids[0] != bos
        lone = bos == eos and len(ids) == 1 and not add_bos
        add_eos = eos is not None and (ids[-1] != eos or lone)
        for name, rows in result.items():
            first, last = rows[number][0], rows[number][-1]
            begin = {"input_ids": bos, "labels": -100, "completion_mask": 0, "assistant_masks": 0}.get(name, first)
            end = {"input_ids": eos, "labels": eos if last != -100 else -100}.get(name, last)
            rows[number] = [begin] * add_bos + rows[number] + [end] * add_eos
    return result


def rows_of(packed):
    """Rows of a table, a dataset, or a list of features, as lists."""
    if hasattr(packed, "to_pylist"):
        return packed.to_pylist()
    if hasattr(packed, "to_list"):
        return packed.to_list()
    return [{name: np.asarray(values).tolist() for name, values in feature.items()} for feature in packed]


# --- attention


def document_attends(
    query: int,
    key: int,
    cu_seqlens: list[int],
    *,
    causal: bool = True,
    window: int | None = None,
    prefix_lengths: list[int] | None = None,
) -> bool:
    """Whether one slot of the flattened rows sees another."""
    for segment, (start, end) in enumerate(pairwise(cu_seqlens)):
        if start <= query < end:
            if not start <= key < end:
                return False
            if prefix_lengths is not None and query < start + prefix_lengths[segment] > key:
                return True
            if causal and key > query:
                return False
            return window is None or abs(query - key) < window
    raise AssertionError(f"slot {query} is in no segment")


def document_mask(cu_seqlens: list[int], *, rows: int = 1, **kind) -> list[list[list[bool]]]:
    """For each row, each query's list of which keys it sees."""
    slots = cu_seqlens[-1] // rows
    return [
        [
            [document_attends(row * slots + query, row * slots + key, cu_seqlens, **kind) for key in range(slots)]
            for query in range(slots)
        ]
        for row in range(rows)
    ]

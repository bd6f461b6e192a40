"""Hypothesis strategies: what users may hand to packdata."""

from functools import partial
from itertools import pairwise

import numpy as np
import oracles
import pyarrow as pa
import torch
from hypothesis import strategies as st

from packdata.planning import Pack
from packdata.samplers import LengthBucketBatchSampler, PackBatchSampler


def document_lengths(*, budget: int = 16, min_size: int = 0, max_size: int = 24, empty: bool = True):
    """Lists of document lengths that fit the budget."""
    return st.lists(st.integers(0 if empty else 1, budget), min_size=min_size, max_size=max_size)


# --- drafting


@st.composite
def draft_streams(draw, *, max_length: int = 12, max_documents: int = 6, max_padding: int = 6):
    """One packed stream as plain lists: lengths, and per slot the document, its number, its labels and positions.

    Documents may be empty, a document may be followed by alignment slots of its segment, padding by more padding.
    """
    lengths = draw(st.lists(st.integers(0, max_length), max_size=max_documents))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    padding = draw(st.integers(0 if sum(lengths) else 1, max_padding))
    position_offset = draw(st.integers(0, 3))
    document_ids, positions, offsets = [], [], [0]
    for document, (length, gap) in enumerate(zip(lengths, gaps, strict=True)):
        document_ids += [document] * length + [-1] * (gap if length else 0)
        positions += [position_offset + slot for slot in range(length + (gap if length else 0))]
        offsets.append(len(document_ids))
    document_ids += [-1] * padding
    positions += list(range(padding))
    offsets += [len(document_ids)] * draw(st.integers(1, 3))
    trained = draw(st.lists(st.booleans() | st.just(True), min_size=len(document_ids), max_size=len(document_ids)))
    labels = [
        100 + slot if learn and document >= 0 and slot > 0 and document_ids[slot - 1] == document else -100
        for slot, (learn, document) in enumerate(zip(trained, document_ids, strict=True))
    ]
    return {
        "lengths": lengths,
        "document_ids": document_ids,
        "position_ids": positions,
        "cu_seqlens": offsets,
        "labels": labels,
    }


# --- samplers


@st.composite
def sampler_factories(draw, *, uneven=("pad", "drop"), balance=(None, "attention"), max_size: int = 40):
    """Lengths, and a function that makes a sampler over them from ``rank``, ``world_size`` and anything to override."""
    lengths = draw(document_lengths(budget=16, min_size=1, max_size=max_size).filter(any))
    options = {
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
        "uneven": draw(st.sampled_from(uneven)),
        "balance": draw(st.sampled_from(balance)),
        "balance_window": draw(st.integers(1, 3)),
    }
    if draw(st.booleans()):
        boundaries = draw(st.lists(st.integers(1, 20), unique=True, max_size=3).map(sorted))
        options |= {"boundaries": boundaries, "padded": draw(st.booleans())}
        return lengths, partial(LengthBucketBatchSampler, lengths, 16, **options)
    options |= {"strategy": draw(st.sampled_from(["best_fit", "sequential"])), "items": "packs"}
    options |= {"packs_per_batch": draw(st.integers(1, 3)), "max_documents": draw(st.sampled_from([None, 2]))}
    return lengths, partial(PackBatchSampler, lengths, 16, **options)


def documents_of(batch) -> list[int]:
    """Document numbers of a sampler's batch, whether it has documents or packs."""
    return [number for item in batch for number in (item.documents.tolist() if isinstance(item, Pack) else [item])]


# --- kernels


@st.composite
def masks(draw, *, max_rows: int = 4, max_slots: int = 6):
    """Bool masks (B, S), empty ones included: all, none, or some of the slots active."""
    shape = draw(st.integers(0, max_rows)), draw(st.integers(0, max_slots))
    kind = draw(st.sampled_from(["some", "all", "none"]))
    bits = draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return torch.tensor([bit if kind == "some" else kind == "all" for bit in bits], dtype=torch.bool).reshape(shape)


# --- layout and batches


@st.composite
def plain_features(draw, *, packed: bool, supervision=(), max_features: int = 5, max_length: int = 6):
    """Features as plain dicts of lists: documents or packs, each with the same columns; values tell tokens apart."""
    features = []
    for index in range(draw(st.integers(0, max_features))):
        lengths = draw(st.lists(st.integers(0, max_length), min_size=0 if packed else 1, max_size=3 if packed else 1))
        tokens = sum(lengths)
        ids = [100 * (index + 1) + place for place in range(tokens)]
        bits = st.lists(st.integers(0, 1), min_size=tokens, max_size=tokens)
        feature = {"input_ids": ids} | ({"seq_lengths": lengths} if packed else {})
        for name in supervision:
            mask = draw(bits)
            feature[name] = [i + 5000 if bit else -100 for i, bit in zip(ids, mask, strict=True)]
            feature[name] = feature[name] if name == "labels" else mask
        feature["weight"] = [0.5 + token for token in ids]
        feature["logprob"] = [-token / 4 for token in ids]
        feature["reward"] = [index + number / 8 for number in range(len(lengths))]
        features.append(feature)
    return features


SUPERVISION = ("labels", "completion_mask", "assistant_masks")


@st.composite
def collations(draw):
    """Plain features, and options of the collator that they fit."""
    supervision = draw(st.sets(st.sampled_from(SUPERVISION)))
    packed = draw(st.booleans())
    features = draw(plain_features(packed=packed, supervision=sorted(supervision)))
    options = {
        "layout": draw(st.sampled_from(["stream", "rows"])),
        "align": draw(st.sampled_from([1, 1, 2, 4])),
        "padding_segment": draw(st.sampled_from([1, 2, 3, 512])),
        "pad_token_id": draw(st.sampled_from([0, 7])),
        "position_offset": draw(st.sampled_from([0, 2])),
        "cross_document_attention": draw(st.booleans()),
        "cross_document_targets": draw(st.booleans()),
        "targets": draw(st.sampled_from([None, "all", tuple(sorted(supervision)) or None])),
    }
    needed = oracles.collate(features, **options)
    width, longest = len(needed["input_ids"][0]), needed["max_seqlen"]
    size = draw(st.sampled_from(["tight", "multiple", "exact", "fixed"]))
    if size == "multiple":
        options["pad_to_multiple_of"] = draw(st.sampled_from([2, 3, 8]))
    elif size != "tight":
        options["pad_to"] = width + draw(st.integers(0, 9))
    if size == "fixed":
        options["max_documents"] = max(len(needed["lengths"]), 1) + draw(st.integers(0, 3))
    if draw(st.booleans()):
        options["max_seqlen"] = longest + draw(st.integers(0, 2))
    return features, options


@st.composite
def as_users_write(draw, features, options):
    """The same features as lists, arrays or tensors of some dtype, padded with an ``attention_mask`` or not."""
    predicted = oracles.predicted_tokens(
        features, **{key: options[key] for key in ("layout", "targets", "cross_document_targets")}
    )
    documents = oracles.documents_of_features(features, layout=options["layout"])
    learnt = {(documents[number]["feature"], place) for number, place in predicted}
    kinds = [list, tuple, partial(np.array, dtype=np.int32), partial(np.array, dtype=np.int64), torch.tensor, _strided]
    kind = draw(st.sampled_from(kinds))
    ids_kind = draw(st.sampled_from([kind, partial(np.array, dtype=np.uint16)]))
    written = []
    for index, feature in enumerate(features):
        tokens = len(feature["input_ids"])
        left, right = draw(st.sampled_from([(0, 0), (0, 0), (2, 0), (0, 1)]))
        result = {}
        for name, values in feature.items():
            if name == "seq_lengths":
                result[name] = draw(st.sampled_from([list, np.array, torch.tensor]))(values) if values else values
            elif name == "reward":
                result[name] = values[0] if "seq_lengths" not in feature and draw(st.booleans()) else list(values)
            elif name == "logprob" and draw(st.booleans()):
                result[name] = np.array([values[place] for place in range(tokens) if (index, place) in learnt])
            elif name == "logprob" and tokens and "seq_lengths" not in feature and (index, 0) not in learnt:
                result[name] = draw(st.sampled_from([list, np.array]))(values[1:])
            else:
                padded = [1] * left + values + [1] * right
                wide = name in ("weight", "logprob")
                make = ids_kind if name == "input_ids" else torch.tensor if wide and kind is not list else kind
                result[name] = make(padded) if padded else padded
        if left or right or draw(st.booleans()):
            result["attention_mask"] = kind([0] * left + [1] * tokens + [0] * right) if left + tokens + right else []
        written.append(result)
    return written


def _strided(values):
    """Every second value of an array twice as long: not contiguous."""
    array = np.zeros(2 * len(values), np.int64)
    array[::2] = values
    return array[::2]


# --- planning


@st.composite
def plan_requests(draw, *, groups=True, strategies=("best_fit", "sequential", "concat")):
    """Lengths, and options for ``plan_packs`` that fit together, over-long documents included."""
    budget = draw(st.integers(1, 24))
    lengths = draw(st.lists(st.integers(0, 3 * budget if draw(st.booleans()) else budget), max_size=30))
    align = draw(st.sampled_from([width for width in (1, 1, 2, 3, 4) if width <= budget]))
    policies = ["truncate", "truncate_left", "split", "drop"]
    if all(length <= budget // align * align for length in lengths):
        policies.append("error")
    options = {
        "strategy": draw(st.sampled_from(strategies)),
        "overlong": draw(st.sampled_from(policies)),
        "max_documents": draw(st.none() | st.integers(1, 5)),
        "align": align,
        "packs_multiple_of": draw(st.sampled_from([1, 1, 2, 5])),
        "window": draw(st.none() | st.integers(1, 12)),
        "seed": draw(st.none() | st.integers(0, 5) | st.tuples(st.integers(0, 3), st.integers(0, 3))),
    }
    if groups and options["strategy"] != "concat" and draw(st.booleans()):
        span = options["window"] or max(len(lengths), 1)
        options["groups"] = [number // span * 100 + draw(st.integers(0, 8)) for number in range(len(lengths))]
        options["overlong"] = "drop"
    return lengths, budget, options


# --- sources


@st.composite
def token_tables(draw, *, lengths=None, max_documents: int = 10, max_length: int = 9, columns=True):
    """An Arrow table of documents, and its columns as lists: any integer type and list layout, sliced and in chunks."""
    if lengths is None:
        lengths = draw(st.lists(st.integers(0, max_length), max_size=max_documents))
    tokens = draw(st.sampled_from([pa.int32(), pa.int64(), pa.uint16()]))
    make_list = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
    values = {"input_ids": (tokens, st.integers(0, 200))}
    optional = {
        "completion_mask": (draw(st.sampled_from([pa.int8(), pa.int64(), pa.bool_()])), st.integers(0, 1)),
        "assistant_masks": (pa.int64(), st.integers(0, 1)),
        "labels": (pa.int64(), st.sampled_from([-100, 7])),
        "weights": (pa.float64(), st.floats(-4, 4)),
    }
    names = draw(st.lists(st.sampled_from(sorted(optional)), unique=True)) if columns else []
    values |= {name: optional[name] for name in names}
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    shape = [2] * before + list(lengths) + [3] * after
    lists = {
        name: [draw(st.lists(value, min_size=length, max_size=length)) for length in shape]
        for name, (_, value) in values.items()
    }
    kinds = {name: make_list(kind) for name, (kind, _) in values.items()}
    cut = draw(st.integers(0, len(shape)))
    chunks = [slice(0, cut), slice(cut, None)] if draw(st.booleans()) else [slice(None)]
    table = pa.table(
        {
            name: pa.chunked_array(
                [pa.array([_plain(kind, row) for row in rows[part]], kind) for part in chunks], type=kind
            )
            for (name, rows), kind in zip(lists.items(), kinds.values(), strict=True)
        }
    )
    kept = slice(before, before + len(lengths))
    return table.slice(before, len(lengths)), {name: rows[kept] for name, rows in lists.items()}


def _plain(kind, row):
    return [bool(value) for value in row] if kind.value_type == pa.bool_() else row


# --- attention


@st.composite
def segmented_rows(draw, *, longest: int = 12, most_rows: int = 3):
    """Boundaries of equal rows as (cu_seqlens, rows): empty segments anywhere, and a padded tail."""
    rows = draw(st.integers(1, most_rows))
    lengths = draw(document_lengths(budget=longest, min_size=1, max_size=6))
    slots, cu_seqlens = sum(lengths), [0]
    for _ in range(rows):
        cu_seqlens += [cu_seqlens[-1] + sum(lengths[: place + 1]) for place in range(len(lengths))]
        lengths = draw(st.permutations(lengths))
    return cu_seqlens + [rows * slots] * draw(st.integers(0, 3)), rows


@st.composite
def mask_kinds(draw, cu_seqlens):
    """Every kind of document mask, as keyword arguments."""
    kind = draw(st.sampled_from(["causal", "bidirectional", "window", "both ways in a window", "prefix"]))
    if kind == "prefix":
        lengths = [end - start for start, end in pairwise(cu_seqlens)]
        return {"prefix_lengths": [draw(st.integers(0, length)) for length in lengths]}
    window = draw(st.integers(1, 10)) if "window" in kind else None
    return {"causal": kind in ("causal", "window"), "window": window}

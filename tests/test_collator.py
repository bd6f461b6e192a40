import copy

import numpy as np
import oracles
import pytest
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import Column, PackedBatch, PackingCollator
from packdata.layout import (
    cu_seqlens_from_lengths,
    document_ids_from_lengths,
    lengths_from_cu_seqlens,
    lengths_from_eos,
    lengths_from_position_ids,
    lengths_from_segment_ids,
    position_ids_from_lengths,
)

COLUMNS = {
    "weight": Column(per="token", dtype=torch.float64, pad=-1.0),
    "logprob": Column(per="prediction", dtype=torch.float64, pad=-2.0),
    "reward": Column(per="document", dtype=torch.float64, pad=-3.0),
}


def as_lists(batch: PackedBatch) -> dict:
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


@given(st.data())
def test_a_batch_is_what_the_oracle_builds_slot_by_slot(data):
    features, options = data.draw(strategies.collations())
    written = data.draw(strategies.as_users_write(features, options))
    before = copy.deepcopy(written)
    batch = PackingCollator(columns=COLUMNS, **options)(written)
    columns = [(name, column.per, column.pad) for name, column in COLUMNS.items()]
    assert as_lists(batch) == oracles.collate(features, columns=columns, **options)
    assert next(iter(batch)) == "input_ids"
    assert {str(value.dtype) for key, value in batch.items() if key in ("input_ids", "targets")} == {"torch.int64"}
    assert batch.cu_seqlens.dtype == torch.int32
    assert all(value.is_contiguous() for value in batch.values() if isinstance(value, torch.Tensor))
    assert_unchanged_and_apart(before, written, batch)


def assert_unchanged_and_apart(before, written, batch):
    outputs = [value.numpy() for value in batch.values() if isinstance(value, torch.Tensor)]
    inputs = []
    for old, new in zip(before, written, strict=True):
        for key, value in new.items():
            np.testing.assert_array_equal(np.asarray(old[key]), np.asarray(value))
            inputs += [np.asarray(value)] if isinstance(value, np.ndarray | torch.Tensor) else []
    for index, output in enumerate(outputs):
        assert not any(np.shares_memory(output, other) for other in outputs[:index] + inputs)


PACKED_BY_OTHERS = {
    "position_ids": (lambda lengths: position_ids_from_lengths(lengths), lengths_from_position_ids),
    "segment_ids": (lambda lengths: document_ids_from_lengths(lengths) + 1, lengths_from_segment_ids),
    "cu_seqlens": (lambda lengths: np.append(cu_seqlens_from_lengths(lengths), [-1, -1]), lengths_from_cu_seqlens),
    "attention_mask": (lambda lengths: document_ids_from_lengths(lengths) + 1, lengths_from_segment_ids),
}


@settings(max_examples=100)
@given(st.lists(strategies.document_lengths(empty=False, max_size=4), max_size=4), st.sampled_from([0, 2]))
@pytest.mark.parametrize("name", PACKED_BY_OTHERS)
def test_packs_of_others_are_read_as_our_own(name, packs, padding):
    write, read = PACKED_BY_OTHERS[name]
    ours, theirs = [], []
    for lengths in packs:
        ids = np.arange(5, 5 + sum(lengths))
        ours.append({"input_ids": ids, "seq_lengths": lengths})
        theirs.append({"input_ids": ids, name: write(lengths)})
        if name == "attention_mask":  # numbered masks hold padding too
            theirs[-1] = {key: np.append(value, np.zeros(padding, int)) for key, value in theirs[-1].items()}
    batch = PackingCollator(boundaries=lambda feature: read(feature[name]))(theirs)
    assert as_lists(batch) == as_lists(PackingCollator()(ours))


@given(st.lists(st.lists(st.integers(3, 9), max_size=4), max_size=4), st.booleans())
def test_streams_with_markers_are_read_as_documents(texts, shared):
    bos = 2 if shared else None
    documents = [[*([bos] if shared else []), *text, 2] for text in texts]
    stream = [token for document in documents for token in document]
    collate = PackingCollator(boundaries=lambda f: lengths_from_eos(f["input_ids"], 2, bos_token_id=bos))
    assert as_lists(collate([stream])) == as_lists(PackingCollator()(documents))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_numpy_numbers_are_options_and_never_wrap_around(kind):
    options = {"pad_to": 100, "max_documents": 100, "padding_segment": 1, "align": 4, "position_offset": 120}
    features = [[7] * 3] * 5
    narrow = {name: kind(value) for name, value in options.items()}
    ours, plain = (PackingCollator(layout="rows", **chosen)(features) for chosen in (narrow, options))
    assert as_lists(ours) == as_lists(plain)


def test_a_first_token_may_be_a_placeholder():
    features = [[-200, 2, 3], [-100, 5]]
    batch = PackingCollator()(features)
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100]]
    assert batch.num_targets == 3
    with pytest.raises(ValueError, match="feature 1: input_ids must not be negative where they are learnt, got -100"):
        PackingCollator(cross_document_targets=True)(features)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint64, torch.bool])
def test_lists_of_integers_fill_columns_of_any_integer_type_and_of_booleans(dtype):
    collate = PackingCollator(columns={"role": Column(per="token", dtype=dtype)})
    batch = collate([{"input_ids": [5, 6], "role": [0, 1]}, {"input_ids": [7], "role": [True]}])
    assert batch["role"].tolist() == [[0, 1, 1]]
    assert batch["role"].dtype == dtype

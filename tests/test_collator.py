import copy

import numpy as np
import oracles
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.batches import Column, PackedBatch, PackingCollator

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

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from packdata.batches import Column, PackedBatch, PackingCollator, to_transformers
from packdata.layout import lengths_from_position_ids

DOCUMENTS = [
    {
        "input_ids": np.arange(1, 2 + index % 5, dtype=np.int32),
        "position_ids": list(range(1 + index % 5)),
        "score": index,
    }
    for index in range(20)
]
BATCHES = [list(range(start, start + 4)) for start in range(0, 16, 4)] + [[]]


def boundaries(feature):
    return lengths_from_position_ids(feature["position_ids"])


def collator(**options):
    columns = {"score": Column(per="document", dtype=torch.float32)}
    return PackingCollator(24, max_documents=4, columns=columns, boundaries=boundaries, **options)


def same(one, other):
    assert type(one) is type(other)
    assert list(one) == list(other)
    for key, value in one.items():
        assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_two_workers_give_the_batches_of_none(context):
    alone = list(DataLoader(DOCUMENTS, batch_sampler=BATCHES, collate_fn=collator()))
    loader = DataLoader(
        DOCUMENTS, batch_sampler=BATCHES, collate_fn=collator(), num_workers=2, multiprocessing_context=context
    )
    for one, other in zip(alone, loader, strict=True):
        same(one, other)
        assert isinstance(other, PackedBatch)
        assert all(type(value) is int for value in (other.max_seqlen, other.num_targets, *other.lengths))


def test_collators_and_batches_survive_pickling():
    collate = pickle.loads(pickle.dumps(collator(output=to_transformers)))
    same(collate(DOCUMENTS[:3]), collator(output=to_transformers)(DOCUMENTS[:3]))
    batch = collator()(DOCUMENTS[:3])
    same(pickle.loads(pickle.dumps(batch)), batch)


def test_output_takes_any_callable():
    assert PackingCollator(output=lambda batch: batch.num_tokens)([[1, 2], [3]]) == 3


def test_no_features_are_one_unit_of_padding_or_the_fixed_shape():
    for options, width in [({}, 1), ({"align": 4}, 4), ({"pad_to_multiple_of": 8}, 8), ({"pad_to": 24}, 24)]:
        for features in ([], [[]], [{"input_ids": [], "seq_lengths": []}]):
            batch = PackingCollator(**options)(features)
            assert batch.input_ids.shape == (1, width)
            assert batch.num_targets == batch.num_documents == 0
            assert (batch.document_ids == -1).all()
            assert batch.cu_seqlens.tolist() == [0, width]

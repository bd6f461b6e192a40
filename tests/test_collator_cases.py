"""Faults that other libraries had, each with the batch that is right."""

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F  # noqa: N812

from packdata.attention import document_mask
from packdata.batches import Column, PackingCollator, to_transformers
from packdata.layout import lengths_from_eos, lengths_from_position_ids, lengths_from_segment_ids
from packdata.planning import plan_packs

IGNORE = -100
A1 = [[11, 12, 13], [21, 22]]


def doc(ids, **columns):
    return {"input_ids": ids, **columns}


def docs(*lengths):
    return [doc(list(range(10 * (i + 1), 10 * (i + 1) + length))) for i, length in enumerate(lengths)]


def boundaries_of_mask(feature):
    return lengths_from_segment_ids(feature["attention_mask"])


def boundaries_of_positions(feature):
    return lengths_from_position_ids(feature["position_ids"])


def boundaries_of_eos(feature):
    return lengths_from_eos(feature["input_ids"], 0, bos_token_id=0)


CASES = {
    "A1": ({}, [doc(ids) for ids in A1], {"targets": [12, 13, IGNORE, 22, IGNORE], "num_targets": 3}),
    "A1 un-shifted": ({}, [doc(ids) for ids in A1], {"labels": [IGNORE, 12, 13, IGNORE, 22]}),
    "A1 padded": ({"pad_to": 6}, A1, {"targets": [12, 13, IGNORE, 22, IGNORE, IGNORE], "num_targets": 3}),
    "A5": (
        {},
        [doc([30, 31, 32, 33, 34], completion_mask=[0, 0, 1, 1, 0])],
        {"loss_mask": [False, True, True, False, False], "targets": [IGNORE, 32, 33, IGNORE, IGNORE]},
    ),
    "A7": (
        {},
        [doc([1, 2, 3, 4], labels=[IGNORE, IGNORE, 3, 4])],
        {"targets": [IGNORE, 3, 4, IGNORE], "num_targets": 2},
    ),
    "A7 labels are not ids": ({}, [doc([1, 2, 3], labels=[9, IGNORE, 8])], {"targets": [IGNORE, 8, IGNORE]}),
    "B1": (
        {"pad_to": 8},
        docs(3, 2, 1),
        {
            "position_ids": [0, 1, 2, 0, 1, 0, 0, 1],
            "document_ids": [0, 0, 0, 1, 1, 2, -1, -1],
            "cu_seqlens": [0, 3, 5, 6, 8],
            "num_targets": 3,
        },
    ),
    "B3": (
        {"boundaries": boundaries_of_positions},
        [doc([1, 2, 3, 4, 5, 6, 7], position_ids=[0, 1, 2, 0, 0, 0, 1])],
        {"cu_seqlens": [0, 3, 4, 5, 7], "targets": [2, 3, IGNORE, IGNORE, IGNORE, 7, IGNORE]},
    ),
    "B3 trailing one-token document": (
        {"boundaries": boundaries_of_positions},
        [doc([1, 2, 3, 4], position_ids=[0, 1, 2, 0])],
        {"lengths": (3, 1), "num_documents": 2},
    ),
    "B4": (
        {"boundaries": boundaries_of_positions},
        [doc([1, 2, 3, 4, 5], position_ids=[4, 5, 6, 0, 1])],
        {"lengths": (3, 2), "cu_seqlens": [0, 3, 5], "max_seqlen": 3},
    ),
    "C1": ({}, docs(4, 1, 3), {"cu_seqlens": [0, 4, 5, 8], "max_seqlen": 4}),
    "C2": ({"pad_to": 12}, docs(4, 3), {"cu_seqlens": [0, 4, 7, 12], "num_tokens": 7}),
    "C3": (
        {"pad_to": 6, "max_documents": 5, "padding_segment": 6},
        docs(4, 2),
        {"cu_seqlens": [0, 4, 6, 6, 6, 6, 6], "num_documents": 2},
    ),
    "C3 more documents": (
        {"pad_to": 6, "max_documents": 5, "padding_segment": 6},
        docs(2, 2, 2),
        {"cu_seqlens": [0, 2, 4, 6, 6, 6, 6], "num_documents": 3},
    ),
    "C7": ({"pad_to": 16, "max_documents": 2}, docs(2, 2), {"cu_seqlens": [0, 2, 4, 16], "max_seqlen": 16}),
    "C10": (
        {"align": 4},
        docs(3, 5),
        {
            "cu_seqlens": [0, 4, 12],
            "lengths": (3, 5),
            "document_ids": [0, 0, 0, -1, 1, 1, 1, 1, 1, -1, -1, -1],
            "targets": [11, 12, IGNORE, IGNORE, 21, 22, 23, 24, IGNORE, IGNORE, IGNORE, IGNORE],
            "num_targets": 6,
        },
    ),
    "H6": ({}, [doc([1, 2, 3, 4], seq_lengths=[2, 2])], {"document_ids": [0, 0, 1, 1]}),
    "I3": ({"pad_to": 4}, docs(2), {"document_ids": [0, 0, -1, -1], "cu_seqlens": [0, 2, 4]}),
    "I6": ({"pad_to": 5}, docs(3), {"num_documents": 1, "cu_seqlens": [0, 3, 5], "lengths": (3,)}),
    "I8": (
        {"boundaries": boundaries_of_mask},
        [doc([5, 6, 7, 8, 0], attention_mask=[1, 1, 2, 2, 0])],
        {"lengths": (2, 2), "position_ids": [0, 1, 0, 1], "cu_seqlens": [0, 2, 4]},
    ),
    "J1": (
        {},
        [doc([1, 2, 3, 4], completion_mask=[0, 0, 1, 1]), doc([5, 6, 7], completion_mask=[0, 1, 1])],
        {"targets": [IGNORE, 3, 4, IGNORE, 6, 7, IGNORE], "num_targets": 4},
    ),
    "J1 packed": (
        {},
        [doc([1, 2, 3, 4, 5, 6, 7], seq_lengths=[4, 3], assistant_masks=[0, 0, 1, 1, 0, 1, 1])],
        {"targets": [IGNORE, 3, 4, IGNORE, 6, 7, IGNORE], "num_targets": 4},
    ),
    "J1 masks and labels, AND-ed": (
        {},
        [doc([1, 2, 3, 4], completion_mask=[0, 1, 1, 1], assistant_masks=[1, 1, 0, 1], labels=[1, 2, 3, 9])],
        {"targets": [2, IGNORE, 9, IGNORE]},
    ),
    "J6": (
        {},
        [doc([0, 0, 21, 22, 23, 24], attention_mask=[0, 0, 1, 1, 1, 1], assistant_masks=[0, 0, 1, 1])],
        {"input_ids": [21, 22, 23, 24], "targets": [IGNORE, 23, 24, IGNORE]},
    ),
    "J6 masks padded too": (
        {},
        [doc([0, 21, 22, 0, 0], attention_mask=[0, 1, 1, 0, 0], labels=[1, 1, 7, 1, 1])],
        {"input_ids": [21, 22], "targets": [7, IGNORE]},
    ),
    "K5": ({"pad_to": 4, "pad_token_id": 0}, [doc([5, 6])], {"input_ids": [5, 6, 0, 0], "cu_seqlens": [0, 2, 4]}),
    "N1": (
        {"pad_to": 7, "pad_token_id": 2},
        [doc([5, 6, 2]), doc([7, 2])],
        {
            "input_ids": [5, 6, 2, 7, 2, 2, 2],
            "targets": [6, 2, IGNORE, 2, IGNORE, IGNORE, IGNORE],
            "num_targets": 3,
        },
    ),
    "N3": ({}, [doc([0, 5, 6, 0]), doc([0, 7, 0])], {"lengths": (4, 3), "cu_seqlens": [0, 4, 7], "num_documents": 2}),
    "N3 one stream": (
        {"boundaries": boundaries_of_eos},
        [doc([0, 5, 6, 0, 0, 7, 0])],
        {"lengths": (4, 3), "cu_seqlens": [0, 4, 7]},
    ),
    "O1": (
        {"columns": {"logprobs": Column(per="prediction", dtype=torch.float32)}},
        [doc([1, 2, 3], logprobs=[0.5, 1.5]), doc([4, 5, 6, 7], logprobs=np.array([2.5, 3.5, 4.5]))],
        {
            "logprobs": [0.5, 1.5, 0, 2.5, 3.5, 4.5, 0],
            "loss_mask": [True, True, False, True, True, True, False],
        },
    ),
    "O1 one per token": (
        {"columns": {"logprobs": Column(per="prediction", dtype=torch.float32)}},
        [doc([1, 2, 3], logprobs=[9.5, 0.5, 1.5])],
        {"logprobs": [0.5, 1.5, 0]},
    ),
    "O1 one per target, in a pack": (
        {"columns": {"logprobs": Column(per="prediction", dtype=torch.float32)}},
        [doc([1, 2, 3, 4, 5], seq_lengths=[3, 2], completion_mask=[0, 0, 1, 0, 1], logprobs=[0.5, 1.5])],
        {"logprobs": [0, 0.5, 0, 1.5, 0]},
    ),
    "O2": (
        {"columns": {"advantages": Column(per="document", dtype=torch.float32)}},
        [doc([1, 2, 3], completion_mask=[0, 0, 1], advantages=0.5), doc([4, 5], completion_mask=[0, 1], advantages=-1)],
        {"advantages": [0, 0.5, 0, -1, 0]},
    ),
    "O2 packed": (
        {"columns": {"advantages": Column(per="document", dtype=torch.float32, pad=9)}, "pad_to": 6},
        [doc([1, 2, 3, 4, 5], seq_lengths=[3, 2], completion_mask=[0, 0, 1, 0, 1], advantages=[0.5, -1.0])],
        {"advantages": [9, 0.5, 9, -1, 9, 9]},
    ),
    "O5": ({"pad_to": 8}, docs(2, 2, 2, 2), {"num_documents": 4, "input_ids": [10, 11, 20, 21, 30, 31, 40, 41]}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_batch_of_a_handed_case(name):
    options, features, expected = CASES[name]
    batch = PackingCollator(**options)(features)
    for key, value in expected.items():
        found = getattr(batch, key, None) if key not in batch else batch[key]
        if isinstance(found, torch.Tensor):
            found = found.flatten().tolist()
        assert found == value, key


def test_every_per_token_field_is_padded_to_the_multiple():  # B6
    batch = PackingCollator(pad_to_multiple_of=8)(docs(5, 4))
    for name in ("input_ids", "targets", "loss_mask", "position_ids", "document_ids", "labels"):
        assert getattr(batch, name).shape == (1, 16)
    assert batch.cu_seqlens[-1] == 16


def test_targets_are_shifted_before_they_are_sharded():  # A4
    batch = PackingCollator()([list(range(60, 72))])
    head_and_tail, middle = [0, 1, 2, 9, 10, 11], list(range(3, 9))
    assert batch.targets[0, head_and_tail].tolist() == [61, 62, 63, 70, 71, IGNORE]
    assert batch.targets[0, middle].tolist() == [64, 65, 66, 67, 68, 69]


def test_labels_are_shifted_exactly_once():  # A3
    batch = PackingCollator()([[1, 2, 3], [4, 5, 6]])
    logits = torch.zeros(1, 6, 8)
    for slot, token in enumerate([2, 3, 0, 5, 6, 0]):
        logits[0, slot, token] = 20.0
    total = F.cross_entropy(logits[0], batch.targets[0], ignore_index=IGNORE, reduction="sum")
    assert total / batch.num_targets < 1e-6
    assert batch.num_targets == 4
    assert batch.targets[0, 2] == IGNORE


def test_no_attention_mask_comes_out_and_documents_stay_apart():  # C8, I3
    features = [doc([1, 2], attention_mask=[1, 1]), doc([3, 4], attention_mask=[1, 1])]
    batch = PackingCollator()(features)
    assert "attention_mask" not in batch
    mask = document_mask(batch.cu_seqlens)[0, 0]
    assert mask.sum() == 6
    assert not mask[2, 1]
    assert not mask[3, 1]
    padded = document_mask(PackingCollator(4)([[1, 2]]).cu_seqlens)[0, 0]
    assert not padded[2:, :2].any()
    assert not padded[:2, 2:].any()


@pytest.mark.parametrize("overlong", ["truncate", "truncate_left"])
def test_what_fits_is_never_cut(overlong):  # E11
    documents = [np.arange(100, 105), np.arange(200, 212)]
    plan = plan_packs([5, 12], 6, overlong=overlong)
    features = []
    for index in range(len(plan)):
        pack = plan[index]
        starts = [0] * len(pack.documents) if pack.starts is None else pack.starts
        spans = zip(pack.documents, starts, pack.lengths, strict=True)
        parts = [documents[document][start : start + length] for document, start, length in spans]
        features.append({"input_ids": np.concatenate(parts), "seq_lengths": pack.lengths})
    batch = PackingCollator()(features)
    assert sorted(batch.lengths) == [5, 6]
    kept = {tuple(part.tolist()) for part in batch.unpack(batch.input_ids)}
    long = range(200, 206) if overlong == "truncate" else range(206, 212)
    assert kept == {tuple(range(100, 105)), tuple(long)}


@pytest.mark.parametrize("make", [list, tuple, np.int32, np.uint16, torch.int32, torch.int64])
@pytest.mark.parametrize("wrapped", [True, False])
def test_each_kind_of_sequence_gives_one_batch(make, wrapped):  # K1
    def build(ids):
        if isinstance(make, torch.dtype):
            return torch.tensor(ids, dtype=make)
        return make(ids) if make in (list, tuple) else np.array(ids, dtype=make)

    features = [doc(build(ids), labels=build(ids)) if wrapped else build(ids) for ids in A1]
    batch = PackingCollator()(features)
    for key, value in PackingCollator()([doc(ids) for ids in A1]).items():
        assert torch.equal(batch[key], value) if isinstance(value, torch.Tensor) else batch[key] == value
    assert batch.input_ids.dtype == torch.int64


def test_equal_lengths_do_not_become_a_matrix():  # K4
    arrays = [np.array([1, 2, 3]), np.array([4, 5, 6])]
    for features in (arrays, np.array(arrays), [doc(array) for array in arrays]):
        batch = PackingCollator()(features)
        assert batch.lengths == (3, 3)
        assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert PackingCollator()([np.array([1, 2, 3]), np.array([4, 5])]).lengths == (3, 2)


def test_response_ranges_are_offset_by_lengths():  # J2
    mask = [[0, 0, 1, 1, 0], [0, 1, 1, 0]]
    features = [doc([1, 2, 3, 4, 5], completion_mask=mask[0]), doc([6, 7, 8, 9], completion_mask=mask[1])]
    learnt = PackingCollator()(features).labels[0] != IGNORE
    assert learnt.nonzero().flatten().tolist() == [2, 3, 6, 7]


def test_rows_of_the_lm_head_are_those_that_predict():  # L10
    batch = PackingCollator()([doc([1, 2, 3, 4], completion_mask=[0, 0, 1, 1])])
    assert batch.loss_mask.nonzero()[:, 1].tolist() == [1, 2]
    assert batch.targets[batch.loss_mask].tolist() == [3, 4]


def test_every_batch_has_one_shape():  # M1
    collate = PackingCollator(8, max_documents=5)
    batches = [collate(docs(*lengths)) for lengths in ([3, 2], [7], [1, 1, 1, 1], [])]
    shapes = [{k: (v.shape, v.dtype) for k, v in b.items() if isinstance(v, torch.Tensor)} for b in batches]
    assert all(shape == shapes[0] for shape in shapes)
    assert {batch.max_seqlen for batch in batches} == {8}


def test_two_hundred_batches_of_a_fixed_shape_compile_once():  # M1
    collate, random = PackingCollator(64, max_documents=9, padding_segment=16), np.random.default_rng(0)
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def consume(inputs):
        inside = inputs["cu_seq_lens_q"][1:] - inputs["cu_seq_lens_q"][:-1] <= inputs["max_length_q"]
        return (inputs["input_ids"] * (inputs["labels"] != -100)).sum() + inputs["position_ids"].sum() + inside.sum()

    shapes = set()
    for number in range(200):
        lengths = random.integers(1, 8, size=number % 10)
        batch = collate([random.integers(0, 99, size=length) for length in lengths])
        shapes.add(tuple((key, value.shape) for key, value in batch.items() if isinstance(value, torch.Tensor)))
        consume(to_transformers(batch))
    assert len(shapes) == 1
    assert counter.frame_count == 1

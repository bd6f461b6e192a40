import copy

import numpy as np
import oracles
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.batches import PackedBatch, PackingCollator, Policy


def batch_of(features, options):
    bare = [{key: value for key, value in f.items() if key not in ("weight", "logprob", "reward")} for f in features]
    return PackingCollator(**options)(bare)


@given(strategies.collations())
def test_documents_come_back_from_any_layout(collation):
    features, options = collation
    batch = batch_of(features, options)
    expected = [
        [features[document["feature"]]["input_ids"][place] for place in document["places"]]
        for document in oracles.documents_of_features(features, layout=options["layout"])
    ]
    parts = batch.unpack(batch.input_ids)
    assert [part.tolist() for part in parts] == expected
    assert all(part.untyped_storage().data_ptr() == batch.input_ids.untyped_storage().data_ptr() for part in parts)
    derived = PackedBatch({key: value for key, value in batch.items() if key != "document_starts"})
    assert derived.document_starts == batch.document_starts


@given(strategies.collations())
def test_labels_and_masks_derive_from_targets(collation):
    batch = batch_of(*collation)
    assert (batch.labels[:, 0] == -100).all()
    assert torch.equal(batch.labels[:, 1:], batch.targets[:, :-1])
    assert (batch.targets[:, -1] == -100).all()  # so that un-shifting loses nothing
    assert batch.num_targets == batch.loss_mask.sum() == (batch.labels != -100).sum()
    assert batch.labels.dtype == torch.int64
    assert batch.loss_mask.dtype == torch.bool
    assert batch.num_tokens == (batch.document_ids >= 0).sum()


@given(strategies.collations(), st.sampled_from(["targets", "tokens"]), st.sampled_from([(), (2,)]))
def test_sums_and_means_match_a_loop(collation, over, tail):
    batch = batch_of(*collation)
    values = torch.arange(batch.input_ids.numel() * max(1, *tail, 1), dtype=torch.float64).reshape(
        *batch.input_ids.shape, *tail
    )
    counted = batch.loss_mask if over == "targets" else batch.document_ids >= 0
    values[~counted] = torch.nan  # what does not count must not leak
    sums, means = batch.document_sums(values, over=over), batch.document_means(values, over=over)
    assert sums.shape == (batch.num_documents, *tail)
    for number in range(batch.num_documents):
        chosen = values[counted & (batch.document_ids == number)]
        torch.testing.assert_close(sums[number], chosen.sum(0))
        torch.testing.assert_close(means[number], chosen.sum(0) / max(len(chosen), 1))


def test_sums_carry_gradients_and_means_count_in_any_dtype():
    batch = PackingCollator()([[1] * 600, [2, 3]])
    losses = torch.ones(1, 602, requires_grad=True)
    batch.document_sums(losses)[0].backward()
    assert losses.grad.sum() == 599
    assert batch.document_means(torch.ones(1, 602, dtype=torch.bfloat16)).tolist() == [1, 1]  # bfloat16 counts to 256


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32])
def test_sums_and_means_of_few_bits_are_counted_in_many(dtype):
    batch = PackingCollator()([[1] * 300, [2] * 5])
    right = torch.ones(1, 305).to(dtype)
    assert batch.document_sums(right, over="tokens").tolist() == [300, 5]
    assert batch.document_means(right).tolist() == [1, 1]


def test_a_dtype_is_no_device():
    with pytest.raises(TypeError, match="dtype"):
        PackingCollator()([[1001, 2003]]).to(torch.bfloat16)


def test_the_segment_of_each_slot():
    batch = PackingCollator(8, max_documents=4, padding_segment=2)([[1, 2], [3]])
    assert batch.cu_seqlens.tolist() == [0, 2, 3, 5, 7, 8, 8]
    assert batch.segment_ids.tolist() == [[0, 0, 1, 2, 2, 3, 3, 4]]


def make():
    return PackingCollator(8, align=2, cross_document_attention=True)([[1, 2, 3], [4]])


WALKS = {
    "PackedBatch": PackedBatch,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "copy": lambda batch: batch.copy(),
    "to": lambda batch: batch.to("cpu", non_blocking=True),
    "type and items": lambda batch: type(batch)(dict(batch.items())),
    "copy and update": lambda batch: _updated(copy.copy(batch)),
}


def _updated(batch):
    batch.update({key: value.clone() for key, value in batch.items() if isinstance(value, torch.Tensor)})
    return batch


@pytest.mark.parametrize("name", WALKS)
def test_what_the_host_knows_survives_every_walk(name):
    batch, walked = make(), WALKS[name](make())
    assert type(walked) is PackedBatch
    assert list(walked) == list(batch)
    assert walked.lengths == (3, 1)
    assert (walked.max_seqlen, walked.num_targets, walked.align) == (batch.max_seqlen, 2, 2)
    assert walked.policy == Policy(cross_document_attention=True)
    assert torch.equal(walked.targets, batch.targets)


def test_frameworks_move_a_batch_and_keep_it_whole():
    from accelerate.utils import find_batch_size, send_to_device
    from lightning.fabric.utilities.apply_func import move_data_to_device
    from lightning_utilities.core.apply_func import apply_to_collection

    batch = make()
    halved = apply_to_collection(batch, torch.Tensor, lambda tensor: tensor)  # what precision plugins do
    for moved in (send_to_device(batch, "cpu"), move_data_to_device(batch, torch.device("cpu")), halved):
        assert type(moved) is PackedBatch
        assert moved.lengths == (3, 1)
        assert moved.policy == batch.policy
    assert find_batch_size(batch) == 1


def test_moving_reads_nothing_back():
    batch = make()
    batch["hidden_states"] = torch.ones(1, 8, 4)
    there = batch.to("meta")  # a device from which nothing can be read
    assert there.labels.device.type == there.loss_mask.device.type == there["hidden_states"].device.type == "meta"
    assert there.segment_ids.shape == (1, 8)
    assert there.document_means(there["hidden_states"]).shape == (2, 4)
    assert [part.shape[0] for part in there.unpack(there.targets)] == [3, 1]
    assert "on meta" in repr(there)


def test_repr_shows_rows_documents_fill_targets_and_dtypes():
    text = repr(PackingCollator(8)([[1, 2, 3], [4]]))
    for part in ("1 row of 8 slots", "2 documents", "4 tokens (50.0% full)", "num_targets 2", "cu_seqlens", "int32"):
        assert part in text
    assert "1 row of 1 slot, 1 document, 1 token (100.0% full)" in repr(PackingCollator(1)([[1]]))
    assert repr(PackedBatch(x=1)) == "PackedBatch({'x': 1})"


def test_policies_are_recorded():
    assert PackingCollator()([]).policy == Policy()
    assert PackingCollator(cross_document_targets=True)([]).policy == Policy(cross_document_targets=True)
    assert PackedBatch().policy == Policy()


def test_wrong_tensors_are_named():
    batch = make()
    with pytest.raises(
        ValueError, match=r"tensor must begin with the batch's rows and slots \[1, 8\], got shape \[8\]"
    ):
        batch.unpack(torch.zeros(8))
    with pytest.raises(ValueError, match=r"values must begin with .* got shape \[8, 1\]"):
        batch.document_sums(torch.zeros(8, 1))


@pytest.mark.gpu
def test_a_pinned_batch_moves_without_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = PackingCollator(64)([np.arange(20), np.arange(9)]).pin_memory().to("cuda", non_blocking=True)
        means = batch.document_means(batch.labels.float())
        batch.unpack(batch.segment_ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert means.shape == (2,)

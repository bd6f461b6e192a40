import copy
from functools import partial

import numpy as np
import oracles
import pytest
import strategies
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given

from packdata.batches import (
    PackingCollator,
    to_fla,
    to_jax,
    to_megatron,
    to_torchtitan,
    to_transformers,
)

DOCUMENTS = [[5, 6, 7, 8, 9], [10], [11, 12, 13], [14, 15]]
FEATURES = [{"input_ids": ids, "completion_mask": [0, *[1] * (len(ids) - 1)]} for ids in DOCUMENTS]
LAYOUTS = {
    "tight": {},
    "fixed": {"pad_to": 32, "max_documents": 6, "padding_segment": 5},
    "aligned": {"align": 4, "pad_to": 32},
    "rows": {"layout": "rows"},
    "rows of eight": {"layout": "rows", "pad_to": 8, "padding_segment": 2},
}


def tiny(architecture, attention):
    from transformers import AutoModelForCausalLM, LlamaConfig, Olmo2Config, Qwen3Config

    config = {"Llama": LlamaConfig, "Qwen3": Qwen3Config, "Olmo2": Olmo2Config}[architecture]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    made = config(vocab_size=32, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **sizes)
    assert made.use_cache  # the default that switches off packing unless the inputs say otherwise
    return AutoModelForCausalLM.from_config(copy.deepcopy(made), attn_implementation=attention)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ["Llama", "Qwen3", "Olmo2"])
def test_packed_logits_and_loss_are_those_of_documents_alone(architecture, attention):
    model = tiny(architecture, attention)
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in DOCUMENTS]
    losses = sum(
        F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum")
        for logits, ids in zip(alone, DOCUMENTS, strict=True)
        if len(ids) > 1
    )
    for options in LAYOUTS.values():
        batch = PackingCollator(**options)(FEATURES)
        for mode in (model.train, model.eval):
            mode()
            with torch.no_grad():
                packed = model(**to_transformers(batch))
            for expected, found in zip(alone, batch.unpack(packed.logits), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(packed.loss, losses / batch.num_targets)
            with torch.no_grad():
                shifted = model(**to_transformers(batch, shift_labels=True)).loss
            torch.testing.assert_close(shifted, losses / batch.num_targets)


@pytest.mark.parametrize("options", [{}, {"align": 4, "pad_to": 32}])
def test_joined_documents_are_one_to_the_model(options):
    model = tiny("Llama", "sdpa").eval()
    batch = PackingCollator(cross_document_attention=True, **options)(FEATURES)
    assert batch.max_seqlen >= sum(map(len, DOCUMENTS))
    assert batch.num_targets == PackingCollator()(FEATURES).num_targets
    with torch.no_grad():
        packed = batch.unpack(model(**to_transformers(batch)).logits)
        used = int(batch.cu_seqlens[1])
        whole = model(input_ids=batch.input_ids[:, :used], use_cache=False).logits[0]
    for start, part in zip(batch.document_starts, packed, strict=True):
        torch.testing.assert_close(part, whole[start : start + len(part)], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shift_labels", [False, True])
def test_trainer_counts_the_targets_of_the_batch_and_trains_on_them(shift_labels, tmp_path):
    from transformers import Trainer, TrainingArguments

    counted = []

    class Counting(Trainer):
        def get_batch_samples(self, *args):
            batches, count = super().get_batch_samples(*args)
            counted.append(int(count))
            return batches, count

    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
        train_sampling_strategy="sequential",
        save_strategy="no",
        disable_tqdm=True,
    )
    collate = PackingCollator(16, max_documents=4, output=partial(to_transformers, shift_labels=shift_labels))
    Counting(tiny("Llama", "sdpa"), arguments, train_dataset=FEATURES, data_collator=collate).train()
    assert counted == [PackingCollator()(FEATURES[:2]).num_targets, PackingCollator()(FEATURES[2:]).num_targets]


def test_transformers_keys_and_dtypes():  # C7, C8
    inputs = to_transformers(PackingCollator(8)([[1, 2, 3], [4, 5]]), seq_idx=True, shift_labels=True)
    assert {key: str(value.dtype) for key, value in inputs.items() if isinstance(value, torch.Tensor)} == {
        **dict.fromkeys(["input_ids", "labels", "position_ids", "shift_labels"], "torch.int64"),
        **dict.fromkeys(["cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"], "torch.int32"),
    }
    assert inputs["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert (inputs["max_length_q"], inputs["max_length_k"], inputs["use_cache"]) == (3, 3, False)
    assert "attention_mask" not in inputs


def test_transformers_own_collator_gives_the_same():
    from transformers import DataCollatorWithFlattening

    features = [{"input_ids": ids, "labels": ids} for ids in DOCUMENTS]
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(features)
    ours = to_transformers(PackingCollator()(features), seq_idx=True)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value) if isinstance(value, torch.Tensor) else ours[key] == value, key


def test_megatron_offsets_are_logical_and_physical():
    batch = PackingCollator(align=4)([[1, 2, 3], [4, 5], [6, 7, 8, 9]])
    inputs = to_megatron(batch)
    assert inputs["cu_seqlens_q"].tolist() == inputs["cu_seqlens_kv"].tolist() == [0, 3, 5, 9]
    assert inputs["cu_seqlens_q_padded"].tolist() == inputs["cu_seqlens_kv_padded"].tolist() == [0, 4, 8, 12]
    assert inputs["cu_seqlens_q"].dtype == inputs["cu_seqlens_q_padded"].dtype == torch.int32
    assert (inputs["qkv_format"], inputs["max_seqlen_q"], inputs["max_seqlen_kv"]) == ("thd", 4, 4)
    assert inputs["total_tokens"] == 12
    assert torch.equal(inputs["labels"], batch.targets)
    assert inputs["loss_mask"].dtype == torch.float32
    assert inputs["loss_mask"].sum() == batch.num_targets
    assert inputs["padding_mask"].tolist() == [[False] * 3 + [True] + [False] * 2 + [True] * 2 + [False] * 4]
    unaligned = to_megatron(PackingCollator(16)([[1, 2, 3]]))
    assert unaligned["cu_seqlens_q"] is unaligned["cu_seqlens_q_padded"]


@given(strategies.collations())
def test_megatron_offsets_leave_out_alignment_only(collation):
    features, options = collation
    options = options | {"cross_document_attention": False, "max_seqlen": None}
    batch = collate_bare(features, options)
    logical = to_megatron(batch)["cu_seqlens_q"].diff().tolist()
    starts = dict(zip(batch.document_starts, batch.lengths, strict=True))
    physical = batch.cu_seqlens.tolist()
    for start, end, length in zip(physical, physical[1:], logical, strict=False):
        assert length == (starts.get(start, end - start) if end > start else 0)


def collate_bare(features, options):
    bare = [{key: value for key, value in f.items() if key not in ("weight", "logprob", "reward")} for f in features]
    return PackingCollator(**options)(bare)


def test_megatron_refuses_what_it_cannot_express():
    batch = PackingCollator(align=4, cross_document_attention=True)([[1, 2, 3], [4, 5]])
    with pytest.raises(ValueError, match="cannot express alignment slots within a segment: collate with align=1"):
        to_megatron(batch)


def test_torchtitan_positions_are_zero_where_documents_begin():
    batch = PackingCollator(8, position_offset=2)([[1, 2, 3], [4, 5]])
    inputs = to_torchtitan(batch)
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    begins = (inputs["positions"].flatten() == 0).nonzero().flatten().tolist()
    assert inputs["cu_seq_q"].tolist() == inputs["cu_seq_k"].tolist() == [*begins, 8]
    assert inputs["cu_seq_q"].dtype == torch.int32
    assert (inputs["max_q"], inputs["max_k"]) == (3, 3)
    assert torch.equal(inputs["input"], batch.input_ids)
    assert torch.equal(inputs["labels"], batch.targets)


def test_varlen_attention_of_torch_takes_torchtitans_fields():
    from inspect import signature

    from torch.nn.attention.varlen import varlen_attn

    assert {"cu_seq_q", "cu_seq_k", "max_q", "max_k"} <= signature(varlen_attn).parameters.keys()


def test_fla_wants_one_row_and_long_offsets():
    batch = PackingCollator(layout="rows")([[1, 2, 3], [4, 5]])
    inputs = to_fla(batch)
    assert inputs["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0]]
    assert inputs["labels"].tolist() == [[-100, 2, 3, -100, 5, -100]]
    assert inputs["cu_seqlens"].tolist() == [0, 3, 5, 6]
    assert inputs["cu_seqlens"].dtype == torch.int64


@given(strategies.collations())
def test_jax_segments_follow_attention_and_weigh_the_loss(collation):
    features, options = collation
    batch = collate_bare(features, options)
    inputs = to_jax(batch)
    assert {key: (value.dtype, value.shape) for key, value in inputs.items()} == dict.fromkeys(
        ["inputs", "inputs_segment_ids", "inputs_positions", "targets", "targets_segment_ids", "targets_positions"],
        (np.int32, tuple(batch.input_ids.shape)),
    )
    expected = oracles.collate(features, **options)
    offsets, width = expected["cu_seqlens"], len(expected["input_ids"][0])
    for row, owners in enumerate(expected["document_ids"]):
        begins = [offset for offset in offsets if row * width <= offset < (row + 1) * width]
        for slot, owner in enumerate(owners):
            segment = sum(begin <= row * width + slot for begin in dict.fromkeys(begins))
            assert inputs["inputs_segment_ids"][row, slot] == (0 if owner == -1 else segment)
            target = expected["targets"][row][slot]
            assert inputs["targets"][row, slot] == (0 if target == -100 else target)
            assert inputs["targets_segment_ids"][row, slot] == (0 if target == -100 else segment)


def test_megatron_core_takes_its_fields():
    params = pytest.importorskip("megatron.core.packed_seq_params", exc_type=ImportError).PackedSeqParams
    inputs = to_megatron(PackingCollator(align=4)([[1, 2, 3], [4, 5]]))
    made = params(**{name: value for name, value in inputs.items() if name in params.__dataclass_fields__})
    assert made.cu_seqlens_q.tolist() == [0, 3, 5]
    assert made.cu_seqlens_q_padded.tolist() == [0, 4, 8]


@pytest.mark.parametrize("options", [*LAYOUTS.values(), {"pad_to": 32, "position_offset": 2}])
def test_torchtitan_finds_the_same_boundaries(options):
    attention = pytest.importorskip("torchtitan.models.common.attention", exc_type=ImportError)
    inputs = to_torchtitan(PackingCollator(**options | {"max_documents": None})(DOCUMENTS))
    found = attention.create_varlen_metadata_for_document(inputs["positions"])
    assert torch.equal(found.cu_seq_q, inputs["cu_seq_q"])
    assert found.max_q == inputs["max_q"]


def test_grain_packs_the_same_segments():
    grain = pytest.importorskip("grain", exc_type=ImportError)
    source = grain.MapDataset.source([{"inputs": np.array(ids, np.int32)} for ids in DOCUMENTS]).to_iter_dataset()
    packer = grain.experimental.FirstFitPackIterDataset
    theirs = next(iter(packer(source, length_struct={"inputs": 16}, num_packing_bins=1, shuffle_bins=False)))
    ours = to_jax(PackingCollator(16)(DOCUMENTS))
    for key, value in theirs.items():
        np.testing.assert_array_equal(ours[key][0], value)
        assert ours[key].dtype == value.dtype


def test_jax_needs_the_batch_on_the_cpu():
    with pytest.raises(ValueError, match="to_jax needs a batch on the CPU, got one on meta"):
        to_jax(PackingCollator()([[1, 2]]).to("meta"))


def test_jax_refuses_ids_past_int32():
    with pytest.raises(ValueError, match="to_jax has int32 ids, input_ids hold one of 4294967297"):
        to_jax(PackingCollator()([[5, 2**32 + 1]]))
    with pytest.raises(ValueError, match="to_jax has int32 ids, targets hold one of 2147483653"):
        to_jax(PackingCollator()([{"input_ids": [1, 2], "labels": [1, 2**31 + 5]}]))


@pytest.mark.parametrize("dialect", [to_transformers, to_megatron, to_torchtitan, to_fla])
def test_no_dialect_waits_for_a_device(dialect):
    dialect(PackingCollator(16, align=2)([[1, 2, 3], [4]]).to("meta"))

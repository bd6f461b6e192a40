"""Every known way to mix documents is called leaking, with who, whom and why; every safe way is called isolated."""

import re

import pytest
import torch
from torch import nn

from packdata import (
    IsolationReport,
    PackedBatch,
    PackingCollator,
    attention_kwargs,
    check_isolation,
    document_mask,
    to_transformers,
)
from packdata.checks import check_ways, model_maker, ways_to_call
from packdata.layout import cu_seqlens_from_lengths

DTYPES = [torch.float32, torch.bfloat16]


def make_batch(lengths=(5, 7, 3, 6), vocabulary=96, **options):
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(3, vocabulary, (length,), generator=generator) for length in lengths]
    return PackingCollator(**{"pad_to": sum(lengths) + 4, **options})([{"input_ids": ids} for ids in documents])


class Running(nn.Module):
    """A model whose every slot sees the slots that a mask lets it see."""

    def __init__(self, mask):
        super().__init__()
        self.embedding = nn.Embedding(96, 4)
        self.register_buffer("mask", mask)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids, **_):
        return self.dropout(self.mask.float() @ self.embedding(input_ids))


def pairs(report):
    return {(leak.source, leak.target) for leak in report.leaks}


def with_ones(batch):
    return {**to_transformers(batch), "attention_mask": torch.ones_like(batch.input_ids)}


def with_cache(batch):
    return {**to_transformers(batch), "use_cache": True}


def with_default_cache(batch):
    return {"input_ids": batch.input_ids, "position_ids": batch.position_ids}


def with_ones_and_cache(batch):
    return {**with_ones(batch), "use_cache": True}


def with_bool_mask(batch):
    return {**to_transformers(batch), "attention_mask": document_mask(batch.cu_seqlens)}


def with_float_ones(batch):
    return {**to_transformers(batch), "attention_mask": document_mask(batch.cu_seqlens).float()}


def with_running_positions(batch):
    positions = torch.arange(batch.input_ids.shape[1])[None]
    return {"input_ids": batch.input_ids, "position_ids": positions, "use_cache": False}


CONTAMINATED = {
    with_ones: r"2-D attention_mask .* leave it out",
    with_cache: r"use_cache is on .* pass use_cache=False",
    with_default_cache: r"use_cache is on .* pass use_cache=False",
    with_ones_and_cache: r"2-D attention_mask .*use_cache is on",
    with_running_positions: r"position_ids do not restart",
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "backend"), [("LlamaConfig", "sdpa"), ("Qwen3Config", "eager"), ("Gemma2Config", "eager")]
)
def test_contaminated_calls_leak_forwards_and_the_cause_is_named(name, backend, dtype):
    model, batch = model_maker(name, dtype=dtype)(backend), make_batch()
    assert check_isolation(model, batch).verdict == "isolated"
    for inputs, cause in CONTAMINATED.items():
        report = check_isolation(model, batch, inputs=inputs)
        assert report.verdict == "leaks", inputs
        assert not report
        forwards = {(source, target) for source in range(4) for target in range(source + 1, 4)}
        assert pairs(report) == forwards, inputs
        assert report.alone_difference > 1e-3
        assert re.search(cause, report.cause), report.cause


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [with_bool_mask, with_float_ones])
def test_a_mask_of_ones_and_zeros_leaks_with_eager_attention(inputs, dtype):
    report = check_isolation(model_maker("LlamaConfig", dtype=dtype)("eager"), make_batch(), inputs=inputs)
    assert report.verdict == "leaks"
    assert "eager attention adds the attention_mask" in report.cause
    assert any(leak.source > leak.target for leak in report.leaks), "and against the direction of reading"


def test_a_bool_mask_is_right_with_sdpa():
    assert check_isolation(model_maker("LlamaConfig")("sdpa"), make_batch(), inputs=with_bool_mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:_compile flag:DeprecationWarning"
)
def test_flex_attention_is_checked_too(dtype):
    model, batch = model_maker("LlamaConfig", dtype=dtype)("flex_attention"), make_batch()
    with torch.compiler.set_stance("force_eager"):
        verdicts = {
            way: check_isolation(model, batch, inputs=inputs).verdict
            for way, inputs in ways_to_call("flex_attention", model.config).items()
        }
    unsafe = {"position_ids", "to_transformers(batch), attention_mask of ones"}
    assert {way for way, verdict in verdicts.items() if verdict != "isolated"} == unsafe


STATEFUL = {
    "Mamba2Config": ("leaks", "leaks", "Mamba2Mixer .* ignores? seq_idx"),
    "BambaConfig": ("leaks", "refuses", "BambaMixer .* with seq_idx the model refuses: .*causal_conv1d"),
    "Lfm2Config": ("leaks", "refuses", "Lfm2ShortConv .* with seq_idx the model refuses: .*causal_conv1d"),
    "Qwen3NextConfig": ("leaks", "refuses", "Qwen3NextGatedDeltaNet .* with seq_idx the model refuses"),
    "JambaConfig": ("leaks", "leaks", "JambaMambaMixer .* ignores? seq_idx"),
    "RecurrentGemmaConfig": ("leaks", "leaks", "RecurrentGemma.* ignores? seq_idx"),
}


def only_positions(batch):
    return {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STATEFUL)
def test_layers_with_state_leak_without_seq_idx(name, dtype):
    without, with_seq_idx, cause = STATEFUL[name]
    model, batch = model_maker(name, dtype=dtype)("eager"), make_batch()
    report = check_isolation(model, batch, inputs=only_positions)
    assert report.verdict == without
    assert re.search(cause, report.cause), report.cause
    report = check_isolation(
        model, batch, inputs=lambda batch: {**only_positions(batch), "seq_idx": batch.document_ids.int()}
    )
    assert report.verdict == with_seq_idx
    if with_seq_idx == "refuses":
        assert "can't keep packed sequences apart" in report.message


def test_both_causes_are_named_where_both_leak():
    report = check_isolation(model_maker("BambaConfig")("eager"), make_batch(), inputs=with_ones)
    assert "2-D attention_mask" in report.cause
    assert "BambaMixer" in report.cause


def test_a_model_that_never_looks_at_positions_is_told_to_take_a_mask():
    model, batch = model_maker("GptOssConfig")("eager"), make_batch()
    report = check_isolation(model, batch)
    assert report.verdict == "leaks"
    assert "no document mask reaches the attention" in report.cause
    safe = ways_to_call("eager", model.config)['position_ids, attention_kwargs(backend="eager")']
    assert check_isolation(model, batch, inputs=safe)


@pytest.mark.parametrize("name", ["Qwen3MoeConfig", "MixtralConfig"])
def test_experts_do_not_count_as_leaks(name):
    assert check_isolation(model_maker(name)("sdpa"), make_batch())


def test_a_plain_callable_is_isolated_or_leaks_by_its_mask():
    batch = make_batch()
    assert check_isolation(Running(document_mask(batch.cu_seqlens)[0]), batch)
    assert check_isolation(Running(document_mask(batch.cu_seqlens, causal=False)[0]), batch)
    report = check_isolation(Running(torch.ones(1, 25, 25)), batch)
    assert pairs(report) == {(s, t) for s in [-1, 0, 1, 2, 3] for t in range(4) if s != t}
    assert "both directions" in report.cause
    text = str(report)
    assert text.startswith("leaks\n  document 0 into document 1: ")
    assert "padding into document" in str(IsolationReport(verdict="leaks", leaks=report.leaks[-1:]))
    assert "and 8 more" in text


@pytest.mark.parametrize("lengths", [[2, 3], [1, 1, 1], [4, 1]])
def test_one_leaking_slot_is_found_and_counted(lengths):
    mask = document_mask(cu_seqlens_from_lengths(lengths))[0]
    mask[0, lengths[0], lengths[0] - 1] = True
    report = check_isolation(Running(mask), make_batch(lengths, pad_to=sum(lengths)))
    assert [(leak.source, leak.target, leak.tokens) for leak in report.leaks] == [(0, 1, 1)]


def test_documents_without_another_token_are_changed_as_well():
    batch = PackingCollator()([{"input_ids": [0, 0]}, {"input_ids": [0]}])
    assert check_isolation(Running(document_mask(batch.cu_seqlens)[0]), batch)
    assert check_isolation(Running(torch.ones(1, 3, 3)), batch).verdict == "leaks"


def test_only_the_named_documents_are_changed():
    batch = make_batch()
    report = check_isolation(Running(torch.ones(1, 25, 25)), batch, documents=[2])
    assert {leak.source for leak in report.leaks} == {2}


def test_rows_are_documents_apart():
    batch = make_batch(layout="rows", pad_to=9)
    report = check_isolation(model_maker("LlamaConfig")("sdpa"), batch)
    assert report
    assert report.alone_difference < 1e-5


def test_alignment_belongs_to_its_document():
    assert check_isolation(model_maker("LlamaConfig")("sdpa"), make_batch(align=4, pad_to=32))


def test_a_model_keeps_its_modes_and_the_batch_its_tokens():
    batch = make_batch()
    model, before = Running(document_mask(batch.cu_seqlens)[0]), batch.input_ids.clone()
    model.dropout.eval()
    assert check_isolation(model, batch)
    assert model.training
    assert not model.dropout.training
    assert torch.equal(batch.input_ids, before)


def test_dropout_and_noise_are_no_leaks():
    batch = make_batch()
    mask = document_mask(batch.cu_seqlens)[0].float()

    def noisy(input_ids, **_):
        return nn.functional.dropout(mask @ input_ids.float().unsqueeze(-1), 0.5)

    state = torch.get_rng_state()
    assert check_isolation(noisy, batch).tolerance == 0
    assert torch.equal(torch.get_rng_state(), state)
    generator = torch.Generator().manual_seed(0)
    report = check_isolation(lambda **kwargs: noisy(**kwargs) + torch.rand(1, generator=generator) * 1e-6, batch)
    assert report
    assert 0 < report.tolerance < 1e-3


def test_a_tolerance_may_be_given():
    batch = make_batch()
    model = Running(torch.ones(1, 25, 25))
    assert check_isolation(model, batch, tolerance=1e6)
    assert not check_isolation(model, batch, tolerance=1e-6)


def test_what_the_model_says_is_kept():
    def refusing(**kwargs):
        raise NotImplementedError("no varlen here")

    report = check_isolation(refusing, make_batch())
    assert (report.verdict, report.message) == ("refuses", "NotImplementedError: no varlen here")
    assert not report
    assert str(report) == "refuses: NotImplementedError: no varlen here"


def test_a_model_that_takes_no_short_row_is_still_judged():
    def choosy(input_ids, **_):
        if input_ids.shape[1] < 10:
            raise ValueError("too short")
        return input_ids.float().cumsum(1)

    report = check_isolation(choosy, make_batch())
    assert report.verdict == "leaks"
    assert report.alone_difference is None


@pytest.mark.parametrize(
    ("model", "batch", "options", "message"),
    [
        (to_transformers, make_batch(cross_document_attention=True), {}, r"cross_document_attention=True"),
        (to_transformers, make_batch([5]), {}, r"at least two documents .* got 1"),
        (
            to_transformers,
            PackedBatch(input_ids=torch.zeros(1, 2)),
            {},
            r"must be a PackedBatch.* got keys \['input_ids'\]",
        ),
        (to_transformers, PackingCollator()([]), {}, r"at least two documents .* got 0"),
        (to_transformers, make_batch(), {"documents": [4]}, r"documents must be from 0 to 3, got 4"),
        (to_transformers, make_batch(), {"documents": []}, r"documents must name at least one .* got none"),
        (to_transformers, make_batch(), {"tolerance": torch.nan}, r"tolerance must not be negative, got nan"),
        (to_transformers, make_batch(), {"tolerance": -1.0}, r"tolerance must not be negative, got -1.0"),
        (lambda **_: torch.zeros(1, 7, 3), make_batch(), {}, r"rows and slots \(1, 25\).* got shape \(1, 7, 3\)"),
        (lambda **_: None, make_batch(), {}, r"rows and slots \(1, 25\).* got NoneType"),
        (lambda **_: torch.zeros(1, 25, 3), make_batch(), {}, r"another text in document 0 changed none of its logits"),
        (lambda **_: torch.full((1, 25, 3), torch.nan), make_batch(), {}, r"got NaN in the logits of document 0"),
    ],
)
def test_what_cannot_be_judged_is_named(model, batch, options, message):
    with pytest.raises(ValueError, match=message):
        check_isolation(model, batch, **options)


def test_nan_that_appears_elsewhere_is_a_leak():
    batch = make_batch()
    first = batch.input_ids[0, 0].item()

    def poisoned(input_ids, **_):
        return input_ids.float() if input_ids[0, 0] == first else torch.full(input_ids.shape, torch.nan)

    assert pairs(check_isolation(poisoned, batch)) == {(0, 1), (0, 2), (0, 3)}


def test_the_table_of_ways_has_a_row_for_each():
    rows = list(check_ways(model_maker("Gemma2Config"), implementations=["eager", "sdpa"]))
    assert [row.report.verdict for row in rows if row.implementation == "sdpa"] == ["refuses"]
    assert "does not support" in rows[-1].report.message
    verdicts = {row.way: row.report.verdict for row in rows if row.implementation == "eager"}
    assert verdicts == {
        "to_transformers(batch)": "isolated",
        "to_transformers(batch, seq_idx=True)": "isolated",
        'position_ids, attention_kwargs(backend="eager")': "isolated",
        "position_ids, use_cache=False": "isolated",
        "position_ids": "leaks",
        "to_transformers(batch), attention_mask of ones": "leaks",
        "to_transformers(batch), 4-D bool mask": "leaks",
    }


def test_a_saved_model_is_checked_from_its_folder(tmp_path):
    model_maker("LlamaConfig")("sdpa").save_pretrained(tmp_path)
    model = model_maker(str(tmp_path))("eager")
    assert check_isolation(
        model, make_batch(), inputs=lambda batch: {**only_positions(batch), **attention_kwargs(batch, backend="eager")}
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_maker("NoSuchConfig"), r"config class of transformers or a local folder, got 'NoSuchConfig'"),
        (lambda: model_maker("LlamaModel"), r"config class of transformers or a local folder, got 'LlamaModel'"),
        (lambda: model_maker("ViTConfig"), r"ViTConfig has no causal language model"),
        (lambda: list(check_ways(model_maker("LlamaConfig"), implementations=["sage"])), r"among eager, .* got 'sage'"),
    ],
)
def test_unknown_models_and_implementations_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

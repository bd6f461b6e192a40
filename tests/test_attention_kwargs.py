"""Each backend is told the same thing in its own words."""

from types import SimpleNamespace

import oracles
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask

from packdata import PackingCollator, attention_kwargs, document_mask
from packdata.attention import layer_windows

MASKED = ["eager", "sdpa", "flex"]


def collate(lengths, **options):
    return PackingCollator(**options)([{"input_ids": list(range(10, 10 + length))} for length in lengths])


def as_bool(mask):
    """Read any backend's mask as True = attend."""
    if isinstance(mask, BlockMask):
        rows, (slots, _) = mask.shape[0], mask.seq_lengths
        row, query, key = torch.meshgrid(torch.arange(rows), torch.arange(slots), torch.arange(slots), indexing="ij")
        return mask.mask_mod(row, torch.zeros_like(row), query, key).unsqueeze(1)
    return mask if mask.dtype == torch.bool else mask == 0


@given(
    st.lists(st.integers(1, 6), max_size=4),
    st.sampled_from(["stream", "rows"]),
    st.integers(0, 5),
    st.sampled_from(MASKED),
)
def test_masks_follow_the_batch(lengths, layout, padding, backend):
    widest = max(lengths, default=1) if layout == "rows" else sum(lengths)
    batch = collate(lengths, layout=layout, pad_to=widest + padding or 1, padding_segment=3)
    rows, slots = batch.input_ids.shape
    expected = torch.tensor(oracles.document_mask(batch.cu_seqlens.tolist(), rows=rows)).view(rows, 1, slots, slots)
    assert torch.equal(as_bool(attention_kwargs(batch, backend=backend)["attention_mask"]), expected)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(2, 4), st.sampled_from(MASKED))
def test_in_both_directions_alignment_keeps_to_itself(lengths, align, backend):
    batch = collate(lengths, align=align)
    mask = as_bool(attention_kwargs(batch, backend=backend, causal=False)["attention_mask"])[0, 0]
    documents = batch.document_ids[0]
    real = documents >= 0
    assert torch.equal(mask[real][:, real], documents[real][:, None] == documents[real])
    assert not mask[real][:, ~real].any()
    assert not mask[~real][:, real].any()
    assert mask.diagonal().all()


def test_eager_gets_numbers_to_add():
    batch = collate([2, 3], pad_to=7)
    scores = torch.randn(1, 2, 7, 7, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        mask = attention_kwargs(batch, backend="eager", dtype=dtype)["attention_mask"]
        assert mask.dtype == dtype
        weights = (scores + mask).softmax(-1)
        assert torch.equal(weights > 0, document_mask(batch.cu_seqlens).expand_as(weights))


@pytest.mark.parametrize("backend", MASKED)
def test_options_reach_the_mask(backend):
    batch = collate([4, 3])
    for options in ({"window": 2}, {"window": 2, "causal": False}, {"prefix_lengths": [2, 0]}):
        mask = attention_kwargs(batch, backend=backend, **options)["attention_mask"]
        assert torch.equal(as_bool(mask), document_mask([0, 4, 7], **options))


def test_flex_takes_a_block_size():
    mask = attention_kwargs(collate([4, 3]), backend="flex", block_size=(64, 128))["attention_mask"]
    assert mask.BLOCK_SIZE == (64, 128)


def test_a_window_for_each_kind_of_layer():
    kinds = {"full_attention": None, "sliding_attention": 2}
    masks = attention_kwargs(collate([4, 3]), backend="sdpa", window=kinds)["attention_mask"]
    assert {kind: mask.sum().item() for kind, mask in masks.items()} == {"full_attention": 16, "sliding_attention": 12}


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"sliding_window": 8}, 8),
        ({"sliding_window": 8, "use_sliding_window": False}, None),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": 8, "layer_types": ["conv", "full_attention"]}, None),
        (
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            {"full_attention": None, "sliding_attention": 8},
        ),
    ],
)
def test_the_window_is_read_off_the_config(config, window):
    assert layer_windows(SimpleNamespace(**config)) == window


def test_flash_gets_boundaries_and_python_ints():
    batch = collate([2, 3], pad_to=8, max_documents=4)
    kwargs = attention_kwargs(batch, backend="flash")
    assert kwargs["cu_seq_lens_q"].tolist() == [0, 2, 5, 8, 8, 8]
    assert kwargs["cu_seq_lens_q"].dtype == torch.int32
    assert kwargs["cu_seq_lens_q"] is kwargs["cu_seq_lens_k"]
    assert (kwargs["max_length_q"], kwargs["max_length_k"]) == (batch.max_seqlen, batch.max_seqlen)
    assert type(kwargs["max_length_q"]) is int
    assert attention_kwargs(batch, backend="flash", causal=False)["is_causal"] is False


@pytest.mark.parametrize(
    ("options", "window_size"),
    [
        ({}, (-1, 0)),
        ({"causal": False}, (-1, -1)),
        ({"window": 3}, (2, 0)),
        ({"window": 1}, (0, 0)),
        ({"window": 3, "causal": False}, (2, 2)),
    ],
)
def test_varlen_windows_leave_the_query_itself_out(options, window_size):
    kwargs = attention_kwargs(collate([2, 3]), backend="varlen", **options)
    assert kwargs["window_size"] == window_size
    assert kwargs["cu_seq_q"].tolist() == [0, 2, 5]
    assert (kwargs["max_q"], kwargs["max_k"]) == (3, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 3}])
def test_varlen_attention_equals_sdpa(options):
    from torch.nn.attention.varlen import varlen_attn

    batch = collate([5, 9, 3], pad_to=32).to("cuda")
    query, key, value = torch.randn(3, 32, 2, 64, device="cuda", dtype=torch.bfloat16)
    packed = varlen_attn(query, key, value, **attention_kwargs(batch, backend="varlen", **options))
    mask = attention_kwargs(batch, backend="sdpa", **options)["attention_mask"]
    expected = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (query, key, value)), attn_mask=mask)
    torch.testing.assert_close(packed, expected[0].transpose(0, 1), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("lengths", [[3], [3, 4], [4, 3, 4]])
@pytest.mark.parametrize("backend", ["flash", "varlen"])
def test_boundaries_alone_cannot_keep_alignment_apart_in_both_directions(lengths, backend):
    attention_kwargs(collate(lengths, align=4), backend=backend)
    with pytest.raises(ValueError, match=r"causal=False .* alignment slots: collate with align=1"):
        attention_kwargs(collate(lengths, align=4), backend=backend, causal=False)
    attention_kwargs(collate(lengths, pad_to=16), backend=backend, causal=False)


@pytest.mark.parametrize("lengths", [[3], [3, 4], [4, 3]])
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex", "flash", "varlen"])
def test_no_backend_keeps_alignment_apart_within_one_segment(lengths, backend):
    with pytest.raises(ValueError, match=r"causal=False .* alignment slots.* align=1"):
        attention_kwargs(collate(lengths, align=4, cross_document_attention=True), backend=backend, causal=False)
    attention_kwargs(collate([4, 8], align=4, cross_document_attention=True), backend=backend, causal=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "xformers"}, r"backend must be one of eager, sdpa, flex, flash, varlen, got 'xformers'"),
        ({"backend": "flash", "prefix_lengths": [1, 1]}, r"prefix_lengths cannot be said in flash's arguments"),
        ({"backend": "varlen", "prefix_lengths": [1, 1]}, r"prefix_lengths cannot be said in varlen's arguments"),
        ({"backend": "flash", "window": 4}, r"window must be None with backend='flash'"),
        ({"backend": "varlen", "window": {"full_attention": None}}, r"window must be None with backend='varlen'"),
        ({"backend": "varlen", "window": 0}, r"window must be None or an integer of at least 1, got 0"),
        ({"backend": "sdpa", "window": 0}, r"window must be None or an integer of at least 1, got 0"),
        ({"backend": "sdpa", "prefix_lengths": [3, 0]}, r"got 3 for segment 0 of 2 slots"),
        ({"backend": "flex", "block_size": 0}, r"block_size must be"),
    ],
)
def test_what_a_backend_cannot_do_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        attention_kwargs(collate([2, 3]), **options)

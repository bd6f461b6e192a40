"""The analytic block mask equals `create_block_mask`, drives flex attention, and can be refreshed in place."""

import hypothesis.strategies as st
import pytest
import strategies
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

from packdata import document_block_mask, document_mask, document_mask_mod
from packdata.attention import refresh_block_mask
from packdata.layout import cu_seqlens_from_lengths

TABLES = [
    f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
]
SHAPES = [(128, 128), (64, 128), (256, 128)]


def valid_entries(indices, counts):
    return torch.where(torch.arange(indices.shape[-1]) < counts.unsqueeze(-1), indices, -1)


def assert_same_tables(mask, expected):
    assert mask.seq_lengths == expected.seq_lengths
    assert mask.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in TABLES:
        table, wanted = getattr(mask, name), getattr(expected, name)
        assert (table.dtype, table.shape) == (wanted.dtype, wanted.shape), name
        assert table.is_contiguous(), name
    for side in ("kv", "q", "full_kv", "full_q"):
        counts = getattr(expected, f"{side}_num_blocks")
        assert torch.equal(getattr(mask, f"{side}_num_blocks"), counts), side
        found, wanted = getattr(mask, f"{side}_indices"), getattr(expected, f"{side}_indices")
        assert torch.equal(valid_entries(found, counts), valid_entries(wanted, counts)), side


def reference(cu_seqlens, rows, block_size, kind):
    slots = cu_seqlens[-1] // rows
    mask_mod = document_mask_mod(cu_seqlens, rows=rows, **kind)
    return create_block_mask(mask_mod, rows, 1, slots, slots, device="cpu", BLOCK_SIZE=block_size)


@settings(max_examples=100)
@given(st.data(), st.sampled_from([(1, 1), (2, 3), (4, 2), (4, 4), 8]))
def test_tables_equal_those_of_create_block_mask_in_small_blocks(data, block_size):
    cu_seqlens, rows = data.draw(strategies.segmented_rows())
    kind = data.draw(strategies.mask_kinds(cu_seqlens))
    if cu_seqlens[-1] > 0:
        mask = document_block_mask(cu_seqlens, rows=rows, block_size=block_size, **kind)
        assert_same_tables(mask, reference(cu_seqlens, rows, block_size, kind))


@settings(max_examples=30)
@given(st.data(), st.sampled_from(SHAPES))
def test_tables_equal_those_of_create_block_mask_in_real_blocks(data, block_size):
    cu_seqlens, rows = data.draw(strategies.segmented_rows(longest=300, most_rows=2))
    kind = data.draw(strategies.mask_kinds(cu_seqlens))
    if cu_seqlens[-1] > 0:
        mask = document_block_mask(cu_seqlens, rows=rows, block_size=block_size, **kind)
        assert_same_tables(mask, reference(cu_seqlens, rows, block_size, kind))


@pytest.mark.parametrize("block_size", SHAPES)
@pytest.mark.parametrize(
    ("what", "cu_seqlens"),
    [
        ("I4, not a multiple of 128", [0, 100, 130]),
        ("one document", [0, 300]),
        ("documents of one token", list(range(301))),
        ("padded boundaries", [0, 100, 256, 300, 300, 300]),
        ("all padding", [0, 128, 256, 300]),
        ("documents that end with the block", [0, 128, 384, 512]),
    ],
)
def test_tables_of_known_boundaries(what, cu_seqlens, block_size):
    mask = document_block_mask(cu_seqlens, block_size=block_size)
    assert_same_tables(mask, reference(cu_seqlens, 1, block_size, {}))


def test_another_length_gets_another_mask():
    # I4: T = 130, then T = 120 with the same builder; nothing of the first is left in the second.
    for lengths in ([100, 30], [90, 30]):
        cu_seqlens = cu_seqlens_from_lengths(lengths)
        mask = document_block_mask(cu_seqlens)
        assert mask.seq_lengths == (sum(lengths), sum(lengths))
        slots = torch.arange(sum(lengths))
        dense = mask.mask_mod(torch.tensor(0), torch.tensor(0), slots[:, None], slots)
        assert torch.equal(dense, document_mask(cu_seqlens)[0, 0])


@pytest.mark.parametrize("block_size", [0, -128, 12.5, "128", True, (128,), (128, 128, 128), (128, 0), None])
def test_block_sizes_that_flex_refuses_are_named(block_size):
    with pytest.raises(ValueError, match=r"block_size must be one or two positive integers"):
        document_block_mask([0, 5], block_size=block_size)


def test_compiled_flex_attention_follows_moving_boundaries_without_compiling_again():
    # One compilation, by the real backend, which reads the tables; fresh masks and a refreshed one give SDPA's output.
    torch.compiler.reset()
    compilations = torch._dynamo.utils.counters["stats"]
    attend = torch.compile(flex_attention, fullgraph=True)
    query, key, value = torch.randn(3, 1, 1, 300, 16, generator=torch.Generator().manual_seed(0))
    fixed = document_block_mask([0, 300, 300, 300])
    with torch.no_grad():
        attend(query, key, value, block_mask=fixed)
        graphs = compilations["unique_graphs"]
        for cu_seqlens in ([0, 100, 130, 300], [0, 1, 2, 300], [0, 150, 300, 300]):
            fresh = document_block_mask(cu_seqlens)
            refresh_block_mask(fixed, fresh)
            expected = F.scaled_dot_product_attention(query, key, value, attn_mask=document_mask(cu_seqlens))
            for mask in (fresh, fixed):
                torch.testing.assert_close(attend(query, key, value, block_mask=mask), expected, rtol=1e-5, atol=1e-5)
    assert compilations["unique_graphs"] == graphs


def addresses(mask):
    captured = [cell.cell_contents for cell in mask.mask_mod.__closure__]
    tensors = [getattr(mask, name) for name in TABLES] + [
        tensor for tensor in captured if isinstance(tensor, torch.Tensor)
    ]
    return [tensor.data_ptr() for tensor in tensors]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 299), min_size=4, max_size=4), st.sampled_from([{}, {"causal": False}, {"window": 40}]))
def test_a_refreshed_mask_is_the_new_mask_at_the_old_addresses(cuts, kind):
    fixed = document_block_mask([0, 10, 20, 30, 40, 300], **kind)
    before = addresses(fixed)
    fresh = document_block_mask([0, *sorted(cuts), 300], **kind)
    refresh_block_mask(fixed, fresh)
    assert addresses(fixed) == before
    assert not set(before) & set(addresses(fresh))
    assert_same_tables(fixed, fresh)
    slots = torch.arange(300)
    zero = torch.tensor(0)
    expected = document_mask([0, *sorted(cuts), 300], **kind)[0, 0]
    assert torch.equal(fixed.mask_mod(zero, zero, slots[:, None], slots), expected)


def test_a_combined_predicate_is_refreshed_as_well():
    def combined(cu_seqlens):
        mask_mod = and_masks(document_mask_mod(cu_seqlens), document_mask_mod([0, 4, 8]))
        return create_block_mask(mask_mod, 1, 1, 8, 8, device="cpu", BLOCK_SIZE=4)

    fixed = combined([0, 8, 8])
    refresh_block_mask(fixed, combined([0, 2, 8]))
    slots = torch.arange(8)
    zero = torch.tensor(0)
    dense = fixed.mask_mod(zero, zero, slots[:, None], slots)
    assert torch.equal(dense, document_mask([0, 2, 4, 8])[0, 0])


@pytest.mark.parametrize(
    ("fresh", "message"),
    [
        (document_block_mask([0, 2, 9]), r"shape and block size of fixed, \(8, 8\) .* got \(9, 9\)"),
        (document_block_mask([0, 2, 8], block_size=64), r"got \(8, 8\) in blocks of \(64, 64\)"),
        (document_block_mask([0, 4, 8, 8, 16], rows=2), r"kv_num_blocks must stay torch.int32 \(1, 1, 1\)"),
        (create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, device="cpu"), r"mask_mod must be the same function"),
    ],
)
def test_a_mask_of_another_kind_is_refused(fresh, message):
    fixed = document_block_mask([0, 4, 8])
    with pytest.raises(ValueError, match=message):
        refresh_block_mask(fixed, fresh)
    assert_same_tables(fixed, document_block_mask([0, 4, 8]))

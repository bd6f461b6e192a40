"""What draft blocks see: the predicate, the dense mask and flex attention's tables are one and the same."""

import time

import oracles
import pytest
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from packdata.attention.static import refresh_block_mask
from packdata.drafting import anchor_block_mask, anchor_block_mask_mod, anchor_dense_mask, anchor_windows

TABLES = [
    f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
]


@st.composite
def blocks(draw, **stream):
    """A stream with anchors anywhere in it, and what the mask functions take of it."""
    document_ids = draw(strategies.draft_streams(**stream))["document_ids"]
    slots = st.integers(0, len(document_ids) - 1)
    anchors = sorted(draw(st.lists(slots, min_size=1, max_size=6)))
    anchor_valid = draw(st.lists(st.booleans() | st.just(True), min_size=len(anchors), max_size=len(anchors)))
    options = {
        "block_size": draw(st.integers(1, 5)),
        "window": draw(st.none() | st.integers(0, 6)),
        "block_causal": draw(st.booleans()),
    }
    return document_ids, anchors, anchor_valid, options


def as_tensors(document_ids, anchors, anchor_valid):
    return torch.tensor([document_ids]), torch.tensor(anchors), torch.tensor(anchor_valid)


def reference(mask_mod, queries, keys, tile):
    return create_block_mask(mask_mod, None, None, queries, keys, device="cpu", BLOCK_SIZE=tile)


def assert_same_tables(mask, expected):
    assert mask.seq_lengths == expected.seq_lengths
    assert mask.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in TABLES:
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name


@given(blocks())
def test_the_dense_mask_is_the_brute_force_predicate(given_blocks):
    document_ids, anchors, anchor_valid, options = given_blocks
    mask = anchor_dense_mask(*as_tensors(document_ids, anchors, anchor_valid), **options)
    queries = len(anchors) * options["block_size"]
    expected = [
        [
            oracles.draft_attends(
                query, key, document_ids=document_ids, anchors=anchors, anchor_valid=anchor_valid, **options
            )
            for key in range(len(document_ids) + queries)
        ]
        for query in range(queries)
    ]
    assert mask[0, 0].tolist() == expected
    assert mask.any(-1).all(), "a row without a key"


@given(blocks(), st.integers(0, 8))
def test_gathered_windows_show_what_the_dense_mask_shows(given_blocks, window):
    *lists, options = given_blocks
    tensors, options = as_tensors(*lists), options | {"window": window}
    dense = anchor_dense_mask(*tensors, **options)[0, 0]
    windows = anchor_windows(*tensors, **options)
    count, block = len(lists[1]), options["block_size"]
    assert windows.keys.shape == (count, window + block)
    assert windows.mask.shape == (count, 1, block, window + block)
    seen = torch.zeros_like(dense, dtype=torch.int64).view(count, block, -1)
    keys = windows.keys[:, None].expand(-1, block, -1)
    seen.scatter_add_(2, keys, windows.mask[:, 0].long())
    assert torch.equal(seen.flatten(0, 1), dense.long()), "a key is missing, or counted twice"


@given(blocks(max_length=40, max_padding=40), st.sampled_from([4, 16, (8, 4), 128]))
def test_the_block_tables_are_those_of_create_block_mask(given_blocks, tile):
    *lists, options = given_blocks
    tensors = as_tensors(*lists)
    mask = anchor_block_mask(*tensors, **options, tile_size=tile)
    queries, keys = mask.seq_lengths
    assert_same_tables(mask, reference(anchor_block_mask_mod(*tensors, **options), queries, keys, tile))


@pytest.mark.parametrize("options", [{}, {"window": 300}, {"block_causal": True}], ids=str)
def test_the_tables_agree_at_a_larger_size(options):
    generator = torch.Generator().manual_seed(0)
    document_ids = torch.repeat_interleave(torch.arange(6), torch.tensor([900, 1, 340, 700, 0, 90]))[None]
    document_ids = torch.cat([document_ids, torch.full((1, 2100 - document_ids.shape[1]), -1)], 1)
    anchors = torch.randperm(2031, generator=generator)[:48].sort().values
    anchor_valid = torch.arange(48) < 45
    tensors = (document_ids, anchors, anchor_valid)
    mask = anchor_block_mask(*tensors, block_size=16, **options)
    assert_same_tables(mask, reference(anchor_block_mask_mod(*tensors, block_size=16, **options), 768, 2868, 128))


def test_the_mask_of_a_large_batch_takes_little_time_and_memory():
    document_ids = torch.arange(49_152)[None] // 640
    anchors = torch.arange(0, 49_152, 48)
    arguments = (document_ids, anchors, torch.ones(1024, dtype=torch.bool))
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        mask = anchor_block_mask(*arguments, block_size=32)
        seconds.append(time.thread_time() - start)
    assert mask.seq_lengths == (32_768, 81_920)
    assert min(seconds) <= 0.1
    tables = sum(getattr(mask, name).nbytes for name in TABLES)
    assert tables < 2.7e6
    with torch.profiler.profile(profile_memory=True) as profile:
        anchor_block_mask(*arguments, block_size=32)
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages())
    assert tables < allocated <= 100e6, "all that was ever allocated, freed or not"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=4)
@given(blocks())
def test_flex_attention_gives_what_the_dense_mask_gives(given_blocks):
    *lists, options = given_blocks
    tensors = as_tensors(*lists)
    mask = anchor_block_mask(*tensors, **options)
    queries, keys = mask.seq_lengths
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, queries, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, keys, 16, generator=generator)
    with torch.no_grad():
        found = flex_attention(query, key, value, block_mask=mask)
    dense = anchor_dense_mask(*tensors, **options)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=dense)
    torch.testing.assert_close(found, expected)


def test_a_fixed_mask_is_refreshed_in_place():
    def build(anchors, length):
        ids = torch.tensor([[0] * length + [1] * (300 - length)])
        return anchor_block_mask(ids, torch.tensor(anchors), torch.tensor([True, True]), block_size=4)

    fixed, fresh = build([5, 20], 10), build([150, 280], 200)
    addresses = [getattr(fixed, name).data_ptr() for name in TABLES]
    refresh_block_mask(fixed, fresh)
    assert_same_tables(fixed, fresh)
    assert [getattr(fixed, name).data_ptr() for name in TABLES] == addresses
    rows, columns = torch.arange(8)[:, None], torch.arange(308)
    zero = torch.tensor(0)
    assert torch.equal(fixed.mask_mod(zero, zero, rows, columns), fresh.mask_mod(zero, zero, rows, columns))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"document_ids": torch.zeros(2, 3).long()},
            r"document_ids must be one stream of shape \(1, T\), got \(2, 3\)",
        ),
        (
            {"anchors": torch.zeros(1, 2).long()},
            r"anchors and anchor_valid must both be \(A,\), got \(1, 2\) and \(2,\)",
        ),
        ({"anchor_valid": torch.ones(3).bool()}, r"must both be \(A,\), got \(2,\) and \(3,\)"),
        ({"anchor_valid": torch.tensor([2, 0])}, r"anchor_valid bool, got torch.int64 and torch.int64"),
        ({"block_size": 0}, r"block_size must be an integer of at least 1, got 0"),
        ({"window": -1}, r"window must be an integer of at least 0, got -1"),
        ({"tile_size": 0}, r"block_size must be one or two positive integers"),
    ],
)
def test_a_wrong_argument_is_refused(change, message):
    arguments = {
        "document_ids": torch.zeros(1, 3).long(),
        "anchors": torch.tensor([0, 1]),
        "anchor_valid": torch.ones(2).bool(),
        "block_size": 2,
    } | change
    with pytest.raises(ValueError, match=message):
        anchor_block_mask(
            arguments.pop("document_ids"), arguments.pop("anchors"), arguments.pop("anchor_valid"), **arguments
        )

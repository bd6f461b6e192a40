"""Patterns are the plan of a histogram: what they deal is what plan_packs hands out."""

import pickle

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import document_lengths

from packdata.planning import plan_packs, plan_patterns

OPTIONS = st.fixed_dictionaries(
    {
        "max_documents": st.none() | st.integers(1, 6),
        "align": st.sampled_from([1, 1, 2, 3]),
        "packs_multiple_of": st.sampled_from([1, 2, 3, 8, 64]),
    }
)


def dealt(patterns, lengths):
    """Hand documents out to the patterns, length by length, in the order of their index."""
    packs = [[] for _ in range(patterns.packs)]
    for length in set(lengths) - {0}:
        documents = [document for document, other in enumerate(lengths) if other == length]
        for document, pack, place in zip(documents, *patterns.deal(length, 0, len(documents)), strict=True):
            packs[pack].append((place, document))
    assert all(sorted(place for place, _ in pack) == list(range(len(pack))) for pack in packs)
    return [[document for _, document in sorted(pack)] for pack in packs]


@given(document_lengths(budget=15, max_size=40), OPTIONS)
def test_the_patterns_deal_what_plan_packs_hands_out(lengths, options):
    patterns = plan_patterns(np.bincount(lengths, minlength=1), 16, **options)
    assert dealt(patterns, lengths) == [pack.documents.tolist() for pack in plan_packs(lengths, 16, **options)]


@given(document_lengths(budget=15, max_size=40), OPTIONS)
def test_patterns_say_how_many_packs_and_what_is_in_them(lengths, options):
    patterns = plan_patterns(np.bincount(lengths, minlength=1), 16, **options)
    plan = plan_packs(lengths, 16, **options)
    align = options["align"]
    loads = [sum(-(-length // align) * align for length in pack.lengths.tolist()) for pack in plan]
    assert np.repeat(patterns.documents, patterns.multiplicity).tolist() == np.diff(plan.bounds).tolist()
    assert np.repeat(patterns.slots, patterns.multiplicity).tolist() == loads
    assert (patterns.packs, patterns.tokens, patterns.fill) == (len(plan), sum(lengths), plan.fill)


@given(document_lengths(budget=12, max_size=30, empty=False), st.data())
def test_documents_may_be_dealt_in_any_portions(lengths, data):
    patterns = plan_patterns(np.bincount(lengths, minlength=1), 12)
    for length in set(lengths):
        count = lengths.count(length)
        cut = data.draw(st.integers(0, count))
        whole = patterns.deal(length, 0, count)
        parts = zip(patterns.deal(length, 0, cut), patterns.deal(length, cut, count - cut), strict=True)
        for portion, (one, other) in zip(whole, parts, strict=True):
            assert portion.tolist() == [*one.tolist(), *other.tolist()]


@given(st.lists(st.integers(0, 40), max_size=9), st.none() | st.integers(1, 6))
def test_many_documents_of_few_lengths_load_as_the_naive_oracle_says(counts, max_documents):
    patterns = plan_patterns(counts, 12, max_documents=max_documents)
    items = [(length, 1) for length, count in enumerate(counts) for _ in range(count) if length]
    naive = oracles.best_fit_decreasing(items, 12, max_documents)
    loads = sorted(np.repeat(patterns.slots, patterns.multiplicity).tolist())
    assert loads == sorted(sum(size for size, _ in pack) for pack in naive)


def test_a_billion_documents_need_few_patterns():
    rng = np.random.default_rng(0)
    counts = np.bincount(np.clip(rng.lognormal(6, 1, 100_000), 1, 8192).astype(int)) * 10_000
    patterns = plan_patterns(counts, 8192, max_documents=64)
    assert patterns.tokens == int(counts @ np.arange(len(counts)))
    assert len(patterns) < 100_000
    assert len(pickle.dumps(patterns)) < 10_000_000
    assert int((patterns.multiplicity * patterns.documents).sum()) == 1_000_000_000
    longest = len(counts) - 1
    pack, place = patterns.deal(longest, int(counts[longest]) - 2, 2)
    assert pack.dtype == place.dtype == np.int64


def test_a_budget_of_a_million_and_more():
    counts = np.zeros(1_048_577, dtype=np.int64)
    counts[[1_048_576, 700_000, 348_576, 348_575, 1]] = 2
    patterns = plan_patterns(counts, 1_048_576)
    assert patterns.packs == 5
    assert sorted(patterns.slots.tolist()) == [697_152, 1_048_576, 1_048_576]
    plan = plan_packs([2**31 - 1, 2**30, 2**30 - 1, 5, 2**29], 2**31 - 1)
    plan.check([2**31 - 1, 2**30, 2**30 - 1, 5, 2**29])
    assert len(plan) == 3


@pytest.mark.parametrize(("length", "first", "count"), [(4, 0, 1), (3, 2, 3), (0, 0, 1), (99, 0, 1)])
def test_documents_that_were_not_counted_are_not_dealt(length, first, count):
    patterns = plan_patterns([9, 0, 0, 4], budget=6)
    with pytest.raises(ValueError, match=f"the patterns hold [04] documents of length {length}"):
        patterns.deal(length, first, count)


@pytest.mark.parametrize("wrong", ["a", -1, 1.0, None, True])
@pytest.mark.parametrize("name", ["length", "first", "count"])
def test_what_is_dealt_is_said_in_integers(name, wrong):
    patterns = plan_patterns([9, 0, 0, 4], budget=6)
    with pytest.raises(ValueError, match=rf"{name} must be an integer of at least 0, got {wrong!r}"):
        patterns.deal(**{"length": 3, "first": 0, "count": 1, name: wrong})
    assert patterns.deal(np.uint8(3), np.int64(0), np.int32(4))[0].tolist() == [0, 0, 1, 1]


def test_nothing_to_plan():
    for counts in ([], [5], [0, 0], np.empty(0, dtype=np.uint8)):
        patterns = plan_patterns(counts, 8, packs_multiple_of=4)
        assert (len(patterns), patterns.packs, patterns.tokens, patterns.fill) == (0, 0, 0, 1.0)
    assert repr(patterns) == "Patterns(0 patterns for 0 packs of 8 tokens, 0 documents, 100.00% full)"

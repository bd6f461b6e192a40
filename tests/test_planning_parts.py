"""The parts that planning is made of, each against the obvious."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packdata.planning.blocks import index_dtype, unsigned_dtype
from packdata.planning.randomness import generator
from packdata.planning.rounding import round_up
from packdata.planning.sorting import distinct_descending, order_descending
from packdata.planning.spread import spread_bounds


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_rounding_up_is_the_next_multiple(value, multiple):
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert 0 <= rounded - value < multiple
    assert round_up(np.array([value]), multiple).tolist() == [rounded]


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 70_000), st.integers(0, 2**40)), max_size=60))
def test_entries_are_ordered_from_the_largest_down(keys):
    array = np.array(keys, dtype=np.int64)
    distinct, counts = distinct_descending(array)
    assert distinct.tolist() == sorted(set(keys) - {0}, reverse=True)
    assert counts.tolist() == [keys.count(key) for key in distinct.tolist()]
    order = order_descending(array, distinct, counts)
    assert order.tolist() == sorted((i for i, key in enumerate(keys) if key), key=lambda i: (-keys[i], i))
    permuted = order_descending(array, distinct, counts, generator(0))
    assert array[permuted].tolist() == array[order].tolist()
    assert sorted(permuted.tolist()) == sorted(order.tolist())


def test_permuting_is_fair():
    """Each of six documents of equal length comes first about equally often."""
    keys = np.full(6, 3)
    firsts = [int(order_descending(keys, np.array([3]), np.array([6]), generator(seed))[0]) for seed in range(1200)]
    assert np.bincount(firsts, minlength=6).min() > 140


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 9))
def test_packs_are_halved_until_they_are_a_multiple(sizes, multiple):
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    wider = spread_bounds(bounds, multiple)
    assert (len(wider) - 1) % multiple == 0
    assert set(bounds.tolist()) <= set(wider.tolist())
    assert len(wider) - len(bounds) < multiple
    added = len(wider) - len(bounds)
    could = sum(max(size - 1, 0) for size in sizes)
    assert np.count_nonzero(np.diff(wider)) == np.count_nonzero(np.diff(bounds)) + min(added, could)


@pytest.mark.parametrize(("size", "dtype"), [(0, np.int32), (2**31, np.int32), (2**31 + 1, np.int64)])
def test_indices_are_small_where_they_can_be(size, dtype):
    assert index_dtype(size) is dtype
    assert [unsigned_dtype(largest) for largest in (65_535, 65_536, 2**32)] == [np.uint16, np.uint32, np.uint64]


def test_generators_depend_on_the_seed_and_on_nothing_else():
    np.random.seed(0)  # noqa: NPY002  # the global state must not matter
    one = generator((3, 1)).permutation(50).tolist()
    np.random.seed(1)  # noqa: NPY002
    assert generator([np.int64(3), 1]).permutation(50).tolist() == one
    assert generator((3, 2)).permutation(50).tolist() != one

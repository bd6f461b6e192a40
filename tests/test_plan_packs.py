"""Every token once or in the ledger; every bound kept; best-fit as the naive algorithm; seeds that only permute."""

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import document_lengths, plan_requests

from packdata.planning import plan_packs


def rounded(lengths, align):
    return [-(-length // align) * align for length in lengths]


def loads(plan):
    return sorted(sum(rounded(pack.lengths.tolist(), plan.policy.align)) for pack in plan)


def packs_of_lengths(plan):
    return sorted(tuple(pack.lengths.tolist()) for pack in plan)


@given(plan_requests())
def test_every_token_is_packed_once_or_in_the_ledger(request_):
    lengths, budget, options = request_
    plan = plan_packs(lengths, budget, **options)
    places = oracles.where_tokens_go(plan)
    assert all(len(packs) == 1 for packs in places.values())
    assert all(0 <= token < lengths[document] for document, token in places)
    kept = {document: [token for other, token in places if other == document] for document, _ in places}
    lost = {document: length for document, length in enumerate(lengths) if length and document not in kept}
    cut = {document: lengths[document] - len(tokens) for document, tokens in kept.items()}
    ledger = plan.ledger
    assert ledger.documents_in == len(lengths) == ledger.documents_kept + len(lost) + lengths.count(0)
    assert (ledger.documents_dropped, ledger.documents_empty) == (len(lost), lengths.count(0))
    assert (ledger.tokens_dropped, ledger.tokens_truncated) == (sum(lost.values()), sum(cut.values()))
    assert ledger.tokens_in == sum(lengths) == ledger.tokens_kept + ledger.tokens_truncated + ledger.tokens_dropped
    assert ledger.documents_truncated == sum(missing > 0 for missing in cut.values())
    assert ledger.padding == len(plan) * budget - len(places)


@given(plan_requests())
def test_what_is_lost_is_what_the_policy_says(request_):
    lengths, budget, options = request_
    limit = budget // options["align"] * options["align"]
    plan = plan_packs(lengths, budget, **options)
    places = oracles.where_tokens_go(plan)
    for document, length in enumerate(lengths):
        tokens = sorted(token for other, token in places if other == document)
        if length <= limit and "groups" not in options:
            assert tokens == list(range(length))
        elif length > limit and options["overlong"].startswith("truncate"):
            first = 0 if options["overlong"] == "truncate" else length - limit
            assert tokens == list(range(first, first + limit))
        elif length > limit:
            assert tokens == (list(range(length)) if options["overlong"] == "split" else [])


@given(plan_requests())
def test_no_pack_breaks_a_bound(request_):
    lengths, budget, options = request_
    plan = plan_packs(lengths, budget, **options)
    assert len(plan) % options["packs_multiple_of"] == 0
    for pack in plan:
        assert len(pack) == len(pack.lengths) == len(pack.starts)
        assert sum(rounded(pack.lengths.tolist(), options["align"])) <= budget
        assert len(pack) <= (options["max_documents"] or len(pack))
        assert all(pack.lengths > 0)
        if options["window"] and len(pack):
            assert len(set((pack.documents // options["window"]).tolist())) == 1
    plan.check(lengths, groups=options.get("groups"))


@given(plan_requests(strategies=("best_fit", "sequential")), st.data())
def test_groups_stay_together_or_are_dropped_whole(request_, data):
    lengths, budget, options = request_
    groups = data.draw(st.lists(st.integers(-3, 6), min_size=len(lengths), max_size=len(lengths)))
    plan = plan_packs(lengths, budget, **{**options, "groups": groups, "overlong": "drop", "window": None})
    packs_of = {}
    for number, pack in enumerate(plan):
        for document in pack.documents.tolist():
            packs_of.setdefault(groups[document], set()).add(number)
    assert all(len(packs) == 1 for packs in packs_of.values())
    for document, length in enumerate(lengths):
        members = [other for other in range(len(lengths)) if groups[other] == groups[document] and lengths[other]]
        size = sum(rounded((lengths[other] for other in members), options["align"]))
        fits = size <= budget and len(members) <= (options["max_documents"] or len(members))
        assert (document in plan.documents) == (length > 0 and fits)


@given(document_lengths(budget=16, max_size=40), st.none() | st.integers(1, 6), st.sampled_from([1, 2, 3]))
def test_best_fit_gives_the_loads_of_the_naive_oracle(lengths, max_documents, align):
    lengths = [min(length, 16 // align * align) for length in lengths]
    plan = plan_packs(lengths, 16, max_documents=max_documents, align=align)
    items = [(length, 1) for length in rounded(lengths, align) if length]
    naive = oracles.best_fit_decreasing(items, 16, max_documents)
    assert loads(plan) == sorted(sum(size for size, _ in pack) for pack in naive)
    full = [
        pack for pack in naive if len(pack) == max_documents and sum(size for size, _ in pack) < 16 // align * align
    ]
    assert plan.ledger.packs_capped == len(full)


@given(st.lists(st.integers(1, 400), max_size=120), st.none() | st.integers(1, 12))
def test_best_fit_gives_the_loads_of_the_naive_oracle_with_few_equal_lengths(lengths, max_documents):
    plan = plan_packs(lengths, 400, max_documents=max_documents)
    naive = oracles.best_fit_decreasing([(length, 1) for length in lengths], 400, max_documents)
    assert loads(plan) == sorted(sum(size for size, _ in pack) for pack in naive)


@given(document_lengths(budget=8, max_size=40), st.none() | st.integers(3, 8), st.data())
def test_best_fit_of_groups_gives_the_loads_of_the_naive_oracle(lengths, max_documents, data):
    groups = data.draw(st.lists(st.integers(0, 20), min_size=len(lengths), max_size=len(lengths)))
    members = [
        [length for length, group in zip(lengths, groups, strict=True) if group == one and length] for one in range(21)
    ]
    items = [(sum(group), len(group)) for group in members if group]
    fitting = [item for item in items if item[0] <= 16 and item[1] <= (max_documents or 99)]
    plan = plan_packs(lengths, 16, groups=groups, max_documents=max_documents, overlong="drop")
    naive = oracles.best_fit_decreasing(fitting, 16, max_documents)
    assert loads(plan) == sorted(sum(size for size, _ in pack) for pack in naive)


@given(document_lengths(budget=16, empty=False), st.none() | st.integers(1, 4), st.sampled_from([1, 2, 5]))
def test_sequential_is_next_fit(lengths, max_documents, align):
    lengths = [min(length, 16 // align * align) for length in lengths]
    plan = plan_packs(lengths, 16, strategy="sequential", max_documents=max_documents, align=align)
    naive = oracles.next_fit([(length, 1) for length in rounded(lengths, align)], 16, max_documents)
    assert [rounded(pack.lengths.tolist(), align) for pack in plan] == [[size for size, _ in pack] for pack in naive]
    assert plan.documents.tolist() == list(range(len(lengths)))


@given(st.lists(st.integers(0, 30)), st.integers(1, 9), st.none() | st.integers(1, 3))
def test_concat_cuts_one_stream(lengths, budget, max_documents):
    plan = plan_packs(lengths, budget, strategy="concat", max_documents=max_documents)
    spans = [list(zip(*(part.tolist() for part in (p.documents, p.starts, p.lengths)), strict=True)) for p in plan]
    assert spans == oracles.cut_stream(lengths, budget, max_documents)
    assert plan.ledger.documents_split == len({d for pack in spans for d, start, _ in pack if start})


@given(plan_requests(), st.integers(0, 9))
def test_a_seed_permutes_only_equal_lengths_and_the_packs(request_, seed):
    lengths, budget, options = request_
    plans = [plan_packs(lengths, budget, **{**options, "seed": other}) for other in (None, seed, (seed, 1), seed)]
    assert len({str(packs_of_lengths(plan)) for plan in plans}) == 1
    assert len({len(plan) for plan in plans}) == 1
    assert plans[1].documents.tolist() == plans[3].documents.tolist()
    assert plans[1].bounds.tolist() == plans[3].bounds.tolist()
    assert plans[0].ledger == plans[1].ledger


def test_seeds_and_epochs_differ():
    orders = [plan_packs([3] * 50, 10, seed=seed).documents.tolist() for seed in (0, 1, (0, 0), (0, 1))]
    assert len({str(order) for order in orders}) == 3  # 0 and (0,) and (0, 0) are one seed sequence, padded with zeros


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64", ">i4"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 3, "budget": 1000, "align": 4},
        {"overlong": "split", "budget": 20},
        {"overlong": "truncate_left", "budget": 20, "targets": [1] * 4 + [0] * 6},
        {"overlong": "drop", "budget": 99, "strategy": "sequential", "packs_multiple_of": 7},
        {"strategy": "concat", "budget": 1000, "max_documents": 3},
        {"groups": [0, 1, 2, 3, 0, 1, 2, 4, 5, 6], "budget": 1000, "seed": 1},
    ],
)
def test_the_plan_is_the_same_for_any_integer_dtype(dtype, options):
    lengths = [5, 9, 64, 100, 0, 127, 33, 33, 33, 1]
    budget, options = options.get("budget", 128), {key: value for key, value in options.items() if key != "budget"}
    want = plan_packs(lengths, budget, **options)
    got = plan_packs(np.array(lengths, dtype=dtype), budget, **options)
    for name in ("bounds", "documents", "lengths"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist()
        assert getattr(got, name).dtype == getattr(want, name).dtype
    assert (got.ledger, got.fingerprint) == (want.ledger, want.fingerprint)


def test_lengths_of_any_kind(tmp_path):
    import pyarrow as pa

    lengths = np.array([3, 4, 2, 2])
    lengths.tofile(tmp_path / "lengths")
    frozen = lengths.copy()
    frozen.flags.writeable = False
    kinds = [
        tuple(lengths.tolist()),
        range(2, 5),
        torch.tensor(lengths),
        pa.array(lengths),
        pa.chunked_array([pa.array(lengths)]),
        np.memmap(tmp_path / "lengths", dtype=np.int64, mode="r"),
        frozen,
        np.repeat(lengths, 3)[::3],
    ]
    for kind in kinds:
        plan = plan_packs(kind, 6, seed=0)
        plan.check(kind)
        assert type(plan.documents) is np.ndarray
        assert plan.ledger.tokens_kept == sum(int(length) for length in np.asarray(kind))
    assert lengths.tolist() == [3, 4, 2, 2]


@pytest.mark.parametrize("multiple", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("strategy", ["best_fit", "sequential", "concat"])
def test_more_packs_are_opened_by_halving_the_fullest(multiple, strategy):
    lengths = [1] * 40 + [9, 8, 7]
    plan = plan_packs(lengths, 10, strategy=strategy, packs_multiple_of=multiple)
    plan.check(lengths)
    fewest = len(plan_packs(lengths, 10, strategy=strategy))
    assert len(plan) == -(-fewest // multiple) * multiple
    empty = sum(len(pack) == 0 for pack in plan)
    assert empty == max(0, len(plan) - len(plan.documents))


def test_packs_stay_in_their_order_when_more_are_opened():
    plan = plan_packs([1] * 10, 5, strategy="sequential", packs_multiple_of=4)
    assert plan.documents.tolist() == list(range(10))
    assert sorted(np.diff(plan.bounds).tolist()) == [2, 2, 3, 3]


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 12), st.data())
def test_the_ledger_counts_the_targets_that_cuts_cost(lengths, budget, data):
    targets = [data.draw(st.integers(0, max(length - 1, 0))) for length in lengths]
    strategy = data.draw(st.sampled_from(["best_fit", "sequential", "concat"]))
    overlong = data.draw(st.sampled_from(["truncate", "truncate_left", "split", "drop"]))
    plan = plan_packs(lengths, budget, strategy=strategy, overlong=overlong, targets=targets)
    whole = set(plan.documents.tolist())
    ledger = plan.ledger
    assert ledger.targets_in == sum(targets)
    assert ledger.targets_kept == oracles.targets_kept(plan, lengths, targets)
    dropped = sum(count for document, count in enumerate(targets) if document not in whole)
    assert ledger.targets_in == ledger.targets_kept + ledger.targets_lost_to_cuts + dropped


def test_totals_past_31_bits():
    plan = plan_packs([2_000_000_000] * 3 + [5_000_000_000, 7], 2_000_000_000, overlong="split")
    plan.check([2_000_000_000] * 3 + [5_000_000_000, 7])
    assert plan.starts.dtype == np.int64
    assert plan.starts.max() == 4_000_000_000
    assert plan.ledger.tokens_kept == 11_000_000_007
    plan = plan_packs([2**40, 5], 8, overlong="drop", strategy="concat")
    assert plan.ledger.tokens_dropped == 2**40


def test_blocks_do_not_show(monkeypatch):
    """The same plan when the arrays are worked through in many small blocks."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 70_000, 400)
    requests = [
        (80_000, options | {"seed": seed})
        for seed in (None, 1)
        for options in ({}, {"strategy": "sequential"}, {"strategy": "concat"}, {"window": 90}, {"max_documents": 2})
    ] + [(30_000, {"overlong": overlong, "seed": 1}) for overlong in ("split", "truncate_left", "drop")]
    targets = lengths // 2
    want = [plan_packs(lengths, budget, targets=targets, **options) for budget, options in requests]
    for module in ("blocks", "sorting", "packing", "strategies", "accounts", "checking"):
        monkeypatch.setattr(f"packdata.planning.{module}.BLOCK", 64)
    for plan, (budget, options) in zip(want, requests, strict=True):
        got = plan_packs(lengths, budget, targets=targets, **options)
        assert got.documents.tolist() == plan.documents.tolist(), options
        assert got.bounds.tolist() == plan.bounds.tolist()
        assert got.lengths.tolist() == plan.lengths.tolist()
        assert (got.starts is None) == (plan.starts is None)
        assert got.starts is None or got.starts.tolist() == plan.starts.tolist()
        assert (got.ledger, got.fingerprint) == (plan.ledger, plan.fingerprint)
        got.check(lengths)


def test_groups_of_equal_aligned_size_but_other_lengths_do_not_change_places():
    for seed in range(20):
        plan = plan_packs([3, 4, 3, 4], 8, align=2, groups=[0, 1, 2, 3], seed=seed)
        assert packs_of_lengths(plan) == [(3, 3), (4, 4)]

"""A plan as an object: a sequence of packs that pickles small, is saved whole, and proves itself."""

import copy
import json
import pickle
import shutil
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given
from strategies import plan_requests

from packdata.planning import Pack, Plan, plan_packs

LENGTHS = [7, 3, 2, 4, 4, 9, 0, 1]


def changed(plan, **arrays):
    return replace(plan, **{name: np.array(array, dtype=getattr(plan, name).dtype) for name, array in arrays.items()})


def with_entry(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def test_a_plan_is_a_sequence_of_packs():
    plan = plan_packs([6, 6, 4, 3, 3, 2], 10)
    assert len(plan) == len(list(plan)) == 3
    assert isinstance(plan[np.int64(1)], Pack)
    assert plan[-1].documents.tolist() == plan[2].documents.tolist() == [4, 5]
    assert (plan.budget, plan.fill) == (10, 0.8)
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"pack {index} of a plan of 3 packs"):
            plan[index]


def test_the_arrays_have_fixed_dtypes_and_cannot_be_written_to():
    plan = plan_packs(LENGTHS, 5, overlong="split")
    dtypes = [array.dtype.name for array in (plan.bounds, plan.documents, plan.lengths, plan.starts)]
    assert dtypes == ["int64", "int64", "int32", "int32"]
    with pytest.raises(ValueError, match="read-only"):
        plan[0].documents[0] = 5
    assert plan_packs([3, 2], 5).starts is None
    assert plan_packs([3, 2], 5)[0].starts.dtype == np.int32


def test_the_repr_shows_packs_fill_padding_and_what_was_lost():
    text = repr(plan_packs(LENGTHS, 6, overlong="drop"))
    assert text == (
        "Plan(3 packs of 6 tokens, 77.78% full, 4 slots of padding; 5 of 8 documents, 2 dropped, 1 empty; best_fit)"
    )


def test_offsets_count_the_packed_stream():
    plan = plan_packs([3, 3, 2], 5)
    assert plan.offsets.tolist() == [0, 5, 8]


def test_the_fingerprint_tells_lengths_policies_and_groups_apart():
    base = plan_packs([3, 2], 8).fingerprint
    others = [
        plan_packs([3, 3], 8),
        plan_packs([2, 3], 8),
        plan_packs([3, 2], 9),
        plan_packs([3, 2], 8, seed=0),
        plan_packs([3, 2], 8, max_documents=9),
        plan_packs([3, 2], 8, groups=[0, 1]),
        plan_packs([3, 2], 8, groups=[0, 0]),
        plan_packs([3, 2, 0], 8),
    ]
    assert len({base, *(plan.fingerprint for plan in others)}) == 9
    assert plan_packs(np.array([3, 2], dtype=np.uint8), 8).fingerprint == base


@given(plan_requests())
def test_a_saved_plan_loads_as_it_was(tmp_path_factory, request_):
    lengths, budget, options = request_
    folder = tmp_path_factory.mktemp("plan")
    plan = plan_packs(lengths, budget, **options)
    plan.save(folder)
    loaded = Plan.load(str(folder))
    for name in ("bounds", "documents", "lengths", "starts"):
        saved, read = getattr(plan, name), getattr(loaded, name)
        assert (saved is None) == (read is None)
        assert saved is None or (saved.dtype == read.dtype and saved.tolist() == read.tolist())
    assert (loaded.policy, loaded.ledger, loaded.fingerprint) == (plan.policy, plan.ledger, plan.fingerprint)
    loaded.check(lengths)
    shutil.rmtree(folder)


def test_a_plan_is_mapped_and_saved_over_itself(tmp_path):
    plan_packs([3, 2, 9], 4, overlong="split").save(tmp_path)
    plan = Plan.load(tmp_path)
    assert isinstance(plan.documents, np.memmap)
    plan.save(tmp_path)
    plan_packs([3, 2], 4).save(tmp_path)  # the starts of the older plan stay, and are not read
    assert Plan.load(tmp_path).starts is None
    assert plan.lengths.tolist() == [4, 4, 3, 1, 2]
    assert_pickles(plan)


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
@pytest.mark.parametrize("lengths", [[], [0, 0], [70_000, 3, 300, 1], [1] * 300])
def test_the_plan_that_comes_out_of_a_pickle_is_the_one_that_went_in(lengths, strategy):
    assert_pickles(plan_packs(lengths, 300, strategy=strategy, overlong="split", seed=1))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Annotated(Plan):
    note: object = None


@pytest.mark.parametrize("note", [(1, 2), np.array([0.5, 0.25]), np.array(["a"])], ids=["tuple", "floats", "texts"])
def test_a_plan_with_more_fields_keeps_them_in_a_pickle(note):
    plan = plan_packs([3, 2, 5], 8)
    annotated = Annotated(**{field.name: getattr(plan, field.name) for field in fields(plan)}, note=note)
    assert_pickles(annotated)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(annotated)).note, note)
    assert copy.copy(annotated) is annotated


def assert_pickles(plan):
    again = pickle.loads(pickle.dumps(plan))
    for name in ("bounds", "documents", "lengths", "starts"):
        ours, theirs = getattr(plan, name), getattr(again, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)
            assert (ours.dtype, theirs.flags.writeable) == (theirs.dtype, False)
    assert (again.policy, again.ledger, again.fingerprint) == (plan.policy, plan.ledger, plan.fingerprint)


@pytest.mark.parametrize("name", ["bounds", "documents", "lengths", "starts"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing", "dtype"])
def test_a_damaged_array_is_refused(tmp_path, name, damage):
    plan_packs(LENGTHS, 5, overlong="split").save(tmp_path)
    path = tmp_path / f"{name}.npy"
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "missing":
        path.unlink()
    elif damage == "dtype":
        np.save(path, np.load(path).astype(np.float64))
    else:
        path.write_bytes(content[:-4] if damage == "cut" else b"")
    with pytest.raises(ValueError, match="damaged plan in"):
        Plan.load(tmp_path)


def test_no_pickle_is_read(tmp_path):
    plan_packs([3, 2], 5).save(tmp_path)
    np.save(tmp_path / "documents.npy", np.array([0, {}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="damaged plan in"):
        Plan.load(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "no saved plan in"),
        ("{", "no saved plan in"),
        ("[]", "no saved plan in"),
        ('{"format": "other"}', "no saved plan in"),
        ({"version": 2}, "of version 2, and this is for 1"),
        ({"checksums": {"bounds": 1}}, "damaged plan in .*lacks arrays"),
        ({"checksums": {"../x": 1}}, "damaged plan in .*lacks arrays"),
        ({"policy": None}, "damaged plan in .*lacks policy"),
        ({"policy": {"budget": 5, "colour": 1}}, "damaged plan in"),
        ({"policy": {"budget": 0}}, "damaged plan in"),
        ({"ledger": {}}, "damaged plan in"),
    ],
)
def test_a_foreign_or_damaged_header_is_refused(tmp_path, header, message):
    plan_packs([3, 2], 5).save(tmp_path)
    path = tmp_path / "plan.json"
    if header is None:
        path.unlink()
    elif isinstance(header, str):
        path.write_text(header)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | header))
    with pytest.raises(ValueError, match=message):
        Plan.load(tmp_path)


def faults():
    """Plans with one fault each, the lengths they are checked against, and what the check says."""
    plan = plan_packs(LENGTHS, 10, max_documents=3)
    split = plan_packs([7, 12], 5, overlong="split")
    cut = plan_packs([7, 12], 5, overlong="truncate")
    aligned = plan_packs([4, 4, 4], 8, align=4)
    documents, lengths = plan.documents, plan.lengths
    yield (
        "duplicate",
        changed(plan, documents=with_entry(documents, 0, documents[1])),
        LENGTHS,
        r"is out of range|in 2 spans",
    )
    yield (
        "same length twice",
        changed(plan, documents=np.where(documents == 3, 4, documents)),
        LENGTHS,
        r"document 4 is in 2 spans",
    )
    yield (
        "short span",
        changed(plan, lengths=with_entry(lengths, 0, lengths[0] - 1)),
        LENGTHS,
        r"document 5 misses tokens: 8 of 9",
    )
    yield (
        "empty span",
        changed(plan, lengths=with_entry(lengths, 0, 0)),
        LENGTHS,
        r"a span of 0 from 0 on is out of range",
    )
    roomy = replace(plan, policy=replace(plan.policy, budget=20))
    yield (
        "too long a span",
        changed(roomy, lengths=with_entry(lengths, -1, 4)),
        LENGTHS,
        r"a span of 4 from 0 on is out of range",
    )
    yield (
        "no such document",
        changed(plan, documents=with_entry(documents, 2, 8)),
        LENGTHS,
        r"document 8 is out of range: there are 8",
    )
    yield (
        "negative document",
        changed(plan, documents=with_entry(documents, 2, -1)),
        LENGTHS,
        r"document -1 is out of range",
    )
    yield (
        "over budget",
        replace(plan, policy=replace(plan.policy, budget=9)),
        LENGTHS,
        r"pack 0 takes 10 slots, over the budget of 9",
    )
    yield "over budget, one pack", changed(plan, bounds=[0, len(documents)]), LENGTHS, r"over the budget of 10"
    yield (
        "too many documents",
        replace(plan, policy=replace(plan.policy, max_documents=1)),
        LENGTHS,
        r"over max_documents=1",
    )
    yield (
        "multiple",
        replace(plan, policy=replace(plan.policy, packs_multiple_of=2)),
        LENGTHS,
        r"no multiple of packs_multiple_of=2",
    )
    yield "alignment", replace(aligned, policy=replace(aligned.policy, align=8)), [4, 4, 4], r"pack 0 takes 16 slots"
    yield (
        "bounds go down",
        changed(plan, bounds=with_entry(plan.bounds, 1, 7)),
        LENGTHS,
        r"damaged plan: bounds must ascend",
    )
    yield "bounds too short", changed(plan, bounds=plan.bounds[:-1]), LENGTHS, r"damaged plan: bounds must ascend"
    yield (
        "bounds late",
        changed(plan, bounds=with_entry(plan.bounds, 0, 1)),
        LENGTHS,
        r"damaged plan: bounds must ascend",
    )
    yield (
        "missing span",
        changed(plan, bounds=[0, 2, 3], documents=documents[:3], lengths=lengths[:3]),
        LENGTHS,
        r"is missing",
    )
    yield "ragged", changed(plan, lengths=lengths[1:]), LENGTHS, r"damaged plan: lengths has 6 spans, documents has 7"
    yield "dtype", replace(plan, lengths=lengths.astype(np.int64)), LENGTHS, r"damaged plan: lengths must be 1-D int32"
    yield "2-D", replace(plan, documents=documents[None]), LENGTHS, r"damaged plan: documents must be 1-D int64"
    yield (
        "overlap",
        changed(split, starts=np.where(split.starts == 10, 9, split.starts)),
        [7, 12],
        r"overlap at token 9",
    )
    yield (
        "negative start",
        changed(split, starts=np.where(split.starts == 10, -1, split.starts)),
        [7, 12],
        r"out of range",
    )
    unasked = replace(split, policy=replace(split.policy, overlong="truncate"))
    yield "split unasked", unasked, [7, 12], r"document 0 is in several spans, which its policy does not call for"
    halves = changed(plan_packs([6, 2], 3, overlong="split"), documents=[0, 0, 1], lengths=[3, 3, 2], starts=[0, 3, 0])
    roomy_halves = replace(halves, policy=replace(halves.policy, budget=6))
    yield "split, though it fits", roomy_halves, [6, 2], r"document 0 is in several spans"
    yield "cut too short", changed(cut, lengths=[4, 5]), [7, 12], r"misses tokens: 4 of 7"
    yield (
        "ledger",
        replace(plan, ledger=replace(plan.ledger, tokens_kept=1)),
        LENGTHS,
        r"the ledger says tokens_kept=1, but",
    )
    yield (
        "ledger loses",
        replace(plan, ledger=replace(plan.ledger, documents_kept=8)),
        LENGTHS,
        r"ledger says documents_kept=8",
    )
    yield "ledger slots", replace(plan, ledger=replace(plan.ledger, slots=1)), LENGTHS, r"ledger says slots=1"
    yield "foreign", plan, [*LENGTHS, 3], r"the plan is of 8 documents, but lengths has 9"
    yield "foreign, same number", plan, LENGTHS[::-1], r"out of range|misses"
    yield "truncated differs", cut, [7, 13], r"ledger says tokens_in=19"


@pytest.mark.parametrize(("plan", "lengths", "message"), [pytest.param(*rest, id=name) for name, *rest in faults()])
def test_the_check_finds_a_planted_fault(plan, lengths, message):
    with pytest.raises(ValueError, match=message):
        plan.check(lengths)


def test_the_check_finds_a_torn_group():
    plan = plan_packs([4, 4, 4, 4], 8)
    plan.check([4, 4, 4, 4], groups=[0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"group 9 is torn: it has documents in packs 0 and 1|packs 1 and 0"):
        plan.check([4, 4, 4, 4], groups=[9, 1, 9, 2])

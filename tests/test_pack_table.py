import dataclasses
import inspect

import numpy as np
import oracles
import pyarrow as pa
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from packdata.planning import plan_packs
from packdata.sources import Documents, PackedDataset, pack_dataset, pack_table
from packdata.sources import planned as planned_module
from packdata.sources.planned import PLAN_OPTIONS


@st.composite
def packings(draw):
    """A table, its columns, and options to pack it with."""
    lengths, budget, options = draw(strategies.plan_requests())
    table, columns = draw(strategies.token_tables(lengths=lengths))
    return table, columns, budget, options


@given(packings())
def test_every_column_is_packed_in_step(case):
    table, columns, budget, options = case
    packed, ledger = pack_table(table, budget, **options)
    plan = plan_packs([len(row) for row in columns["input_ids"]], budget, **options)
    assert packed.to_pylist() == oracles.packed_rows(columns, plan)
    assert (
        ledger.tokens_kept == plan.ledger.tokens_kept == packed.column("input_ids").combine_chunks().flatten().__len__()
    )


@given(packings())
def test_the_ledger_counts_targets_exactly(case):
    table, columns, budget, options = case
    packed, ledger = pack_table(table, budget, **options)
    whole = sum(
        oracles.is_learnt_token(columns, document, place)
        for document, row in enumerate(columns["input_ids"])
        for place in range(1, len(row))
    )
    rows = oracles.rows_of(packed)
    if "labels" in packed.column_names:
        kept = sum(label != -100 for row in rows for label in row["labels"])
    else:
        kept = sum(length - 1 for row in rows for length in row["seq_lengths"])
    assert (ledger.targets_in, ledger.targets_kept) == (whole, kept)
    if not ledger.documents_dropped:
        assert ledger.targets_lost_to_cuts == whole - kept


@given(packings())
def test_no_pack_has_an_untargeted_document_when_those_are_dropped(case):
    table, columns, budget, options = case
    _, ledger = pack_table(table, budget, untargeted="drop", **options)
    assert ledger.documents_in == ledger.documents_kept + ledger.documents_dropped + ledger.documents_empty
    assert ledger.tokens_in == ledger.tokens_kept + ledger.tokens_dropped + ledger.tokens_truncated
    assert ledger.tokens_in == sum(map(len, columns["input_ids"]))
    plan = planned_module.plan_documents(Documents(table), budget, untargeted="drop", **options)
    plan.check([len(row) for row in columns["input_ids"]])
    targets = dict.fromkeys(plan.documents.tolist(), 0)
    for pack in plan:
        for document, start, length in zip(pack.documents, pack.starts, pack.lengths, strict=True):
            places = range(start + 1, start + length)
            targets[int(document)] += sum(oracles.is_learnt_token(columns, document, place) for place in places)
    assert all(targets.values())


@given(packings(), st.integers(1, 20))
def test_windows_change_nothing(case, window):
    table, _, budget, options = case
    before, planned_module.WINDOW = planned_module.WINDOW, window
    try:
        in_windows = pack_table(table, budget, **options)
    finally:
        planned_module.WINDOW = before
    at_once = pack_table(table, budget, **options)
    assert (in_windows[0].to_pylist(), in_windows[1]) == (at_once[0].to_pylist(), at_once[1])


@given(packings())
def test_the_lazy_twin_has_the_same_rows(case):
    table, _, budget, options = case
    documents = Documents(table)
    lazy = PackedDataset(documents, plan_packs(documents.lengths, budget, **options))
    expected = pack_table(table, budget, **options)[0].to_pylist()
    assert oracles.rows_of(lazy[number] for number in range(len(lazy))) == expected
    assert oracles.rows_of(lazy.__getitems__(range(len(lazy)))) == expected


def test_masks_become_labels():
    """J1: two documents with masks have four targets, and none is a document's first token."""
    table = pa.table({"input_ids": [[1, 2, 3, 4], [5, 6, 7]], "completion_mask": [[0, 0, 1, 1], [0, 1, 1]]})
    packed, ledger = pack_table(table, 8)
    assert packed.to_pylist() == [
        {"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": [-100, -100, 3, 4, -100, 6, 7], "seq_lengths": [4, 3]}
    ]
    assert ledger.targets_kept == 4


def test_an_answer_past_the_cut_is_not_trained_on_in_silence():
    """J4: a document of 6 tokens whose answer is cut off by a limit of 4."""
    table = pa.table({"input_ids": [[1, 2, 3, 4, 5, 6]], "completion_mask": [[0, 0, 0, 0, 1, 1]]})
    packed, ledger = pack_table(table, 4, overlong="truncate", untargeted="drop")
    assert (packed.num_rows, ledger.documents_untargeted, ledger.documents_dropped, ledger.tokens_dropped) == (
        0,
        1,
        1,
        6,
    )
    _, ledger = pack_table(table, 4, overlong="truncate", untargeted="keep")
    assert (ledger.targets_in, ledger.targets_kept, ledger.targets_lost_to_cuts) == (2, 0, 2)
    with pytest.raises(ValueError, match=r"1 of 1 documents are left without a target: 0; untargeted='drop'"):
        pack_table(table, 4, overlong="truncate", untargeted="error")
    packed, ledger = pack_table(table, 4, overlong="truncate_left", untargeted="error")
    assert packed.column("labels").to_pylist() == [[-100, -100, 5, 6]]


def test_documents_of_one_token_have_no_target():
    table = pa.table({"input_ids": [[1], [2, 3]]})
    packed, ledger = pack_table(table, 4, untargeted="drop")
    assert packed.column("input_ids").to_pylist() == [[2, 3]]
    assert ledger.documents_untargeted == 1


EMPTY = {
    "empty documents": pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int32()))}),
    "no documents": pa.table({"input_ids": pa.array([], pa.list_(pa.uint16()))}),
    "with a mask": pa.table(
        {
            "input_ids": pa.array([[], []], pa.large_list(pa.int64())),
            "completion_mask": pa.array([[], []], pa.list_(pa.bool_())),
        }
    ),
    "without types": pa.table({"input_ids": [[], []]}),
}


@pytest.mark.parametrize("table", EMPTY.values(), ids=EMPTY)
def test_nothing_to_pack_is_no_packs_of_the_same_type(table):
    """E5."""
    packed, ledger = pack_table(table, 8)
    assert packed.num_rows == 0
    assert packed.schema.field("input_ids").type == table.schema.field("input_ids").type
    assert packed.schema.field("seq_lengths").type == pa.list_(pa.int32())
    assert ledger.documents_in == ledger.documents_empty == table.num_rows
    assert ledger.slots == 0
    assert ("labels" in packed.column_names) == ("completion_mask" in table.column_names)


TYPES = [
    (pa.int32(), pa.int32()),
    (pa.int64(), pa.int64()),
    (pa.uint16(), pa.int32()),
    (pa.uint8(), pa.int16()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.int64()),
]


@pytest.mark.parametrize(("tokens", "labels"), TYPES, ids=[str(tokens) for tokens, _ in TYPES])
@pytest.mark.parametrize("make_list", [pa.list_, pa.large_list])
def test_types_are_kept_and_labels_are_signed(tokens, labels, make_list):
    """K3: dtype travels with the data."""
    table = pa.table(
        {
            "input_ids": pa.array([[1, 2], [3, 250]], make_list(tokens)),
            "completion_mask": [[True, True], [False, True]],
            "weights": pa.array([[0.5, 1], [2, 3]], pa.list_(pa.float32())),
        }
    )
    packed, _ = pack_table(table, 4)
    assert packed.schema.field("input_ids").type == make_list(tokens)
    assert packed.schema.field("labels").type == make_list(labels)
    assert packed.schema.field("weights").type == pa.list_(pa.float32())
    assert packed.column("labels").to_pylist() == [[-100, 2, -100, 250]]


TABLE = pa.table(
    {"input_ids": [[1, 2], [3], [4, 5]], "text": ["a", "b", "c"], "weights": [[0.1, 0.2], [0.3], [0.4, 0.5]]}
)
WRONG = [
    (TABLE, {}, r"columns \['text'\] have no value per token, .* name them in drop_columns"),
    (TABLE, {"drop_columns": ["txt"]}, r"drop_columns must name columns beside 'input_ids', got \['txt'\]"),
    (TABLE, {"drop_columns": ["input_ids", "text"]}, r"drop_columns must name columns beside 'input_ids'"),
    (
        TABLE.append_column("labels", [[[1, 2], [3], [4]]]),
        {"drop_columns": ["text"]},
        r"'labels' is out of step with 'input_ids': row 2 has 1 values for 2 tokens",
    ),
    (
        TABLE.append_column("attention_mask", [[[1, 1], [1], [1, 0]]]),
        {"drop_columns": ["text"]},
        r"attention_mask must be 1 on every token, .* 1 document; the first is 2, which has 0: take padding out",
    ),
    (
        TABLE.append_column("attention_mask", [[[1, 1], [1], [1, 2]]]),
        {"drop_columns": ["text"]},
        r"the first is 2, which has 2: .* cut packs apart if it numbers their documents",  # I8
    ),
    (
        TABLE,
        {"drop_columns": ["text"], "untargeted": "skip"},
        r"untargeted must be 'keep', 'drop' or 'error', got 'skip'",
    ),
    (TABLE, {"drop_columns": "text"}, r"drop_columns must be several names, such as \['text'\], got 'text'"),
    (TABLE, {"drop_columns": None}, r"drop_columns must be several names, .* got None"),
    (
        pa.table({"input_ids": [[1, 2]], "labels": [[1.0, 2.0]]}),
        {},
        r"'labels' must hold integers, got list<item: double",
    ),
    (
        pa.table({"input_ids": [[1, 2]], "labels": [[False, True]]}),
        {},
        r"'labels' must hold integers, got list<item: bool",
    ),
    (
        pa.table({"input_ids": [[1]], "completion_mask": [[0.5]]}),
        {},
        r"'completion_mask' must hold booleans or integers",
    ),
    (
        pa.table({"input_ids": [[1], [2, 3, 4]], "labels": [[1], [-1, 3, -1]]}),
        {},
        r"document 1: labels must be token ids or -100 \(not learnt\), got -1",
    ),
    (TABLE.select(["text"]), {}, r"no column 'input_ids' among \['text'\]"),
    (TABLE.select(["input_ids"]), {"budget": 1}, r"document 0"),
]


@pytest.mark.parametrize(("table", "options", "message"), WRONG, ids=[case[2] for case in WRONG])
def test_bad_input_is_named(table, options, message):
    with pytest.raises(ValueError, match=message):
        pack_table(table, **{"budget": 4} | options)


def test_text_may_be_dropped_and_weights_travel_in_step():
    """H3: five weights for five tokens, in one pack or in two."""
    packed, _ = pack_table(TABLE, 8, drop_columns=["text"])
    assert packed.column_names == ["input_ids", "weights", "seq_lengths"]
    order = [value for row in packed.column("input_ids").to_pylist() for value in row]
    weights = [value for row in packed.column("weights").to_pylist() for value in row]
    assert weights == [value / 10 for value in order]


def test_packing_twice_is_refused_by_name():
    packed, _ = pack_table(TABLE, 8, drop_columns=["text"])
    with pytest.raises(ValueError, match="'seq_lengths' says that these rows are packs"):
        pack_table(packed, 8)
    ones, _ = pack_table(pa.table({"input_ids": [[1], [2]]}), 2)  # as many lengths as tokens
    with pytest.raises(ValueError, match="'seq_lengths' says that these rows are packs"):
        pack_table(ones, 8)
    assert pack_table(ones, 8, drop_columns=["seq_lengths"])[0].column("seq_lengths").to_pylist() == [[2]]


def test_a_lazy_twin_of_another_plan_is_refused():
    documents = Documents([[1, 2], [3]])
    plan = plan_packs([2, 1, 1], 4)
    with pytest.raises(ValueError, match="the plan is about 3 documents, but there are 2"):
        PackedDataset(documents, plan)
    longer = dataclasses.replace(plan_packs([2, 3], 5))
    with pytest.raises(ValueError, match="wants tokens up to 3 of document 1, which has 1"):
        PackedDataset(documents, longer)[0]


def test_packs_past_two_billion_tokens_keep_the_list_type():
    """H7: the packs of 2.2 billion one-byte tokens stand in several chunks, whose offsets are 32-bit."""
    chunk = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 220_000_001, 1_000_000, dtype=np.int32)), pa.array(np.zeros(220_000_000, np.uint8))
    )
    table = pa.table({"input_ids": pa.chunked_array([chunk] * 10)})
    packed, ledger = pack_table(table, 4_000_000)
    column = packed.column("input_ids")
    assert column.type == pa.list_(pa.uint8())
    assert sum(len(part.flatten()) for part in column.chunks) == ledger.tokens_kept == 2_200_000_000
    assert (packed.num_rows, ledger.fill) == (550, 1.0)


def test_an_unknown_option_is_named_beside_the_known_ones():
    message = r"pack_table has no option 'over_long'; those of plan_packs are strategy, .*, packs_multiple_of"
    with pytest.raises(TypeError, match=message):
        pack_table(TABLE, 4, over_long="drop")


@pytest.mark.parametrize("function", [pack_table, pack_dataset])
def test_the_docstring_lists_the_options_with_their_defaults(function):
    defaults = inspect.signature(plan_packs).parameters
    for name in PLAN_OPTIONS:
        assert f"``{name}={defaults[name].default!r}``: ".replace("'", '"') in function.__doc__
    assert "help(packdata.plan_packs)" in function.__doc__

"""The drawing in characters: boundaries, targets and attention of every slot can be read back."""

import io
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.batches import PackingCollator
from packdata.planning import plan_packs
from packdata.report import show

WORDS = ["–", "the", "cat", "sat", ".", "a", "dog", "barked", "at", "it"]


def words(ids):
    return " ".join(WORDS[i] for i in ids)


def test_the_picture_of_a_packed_batch():
    batch = PackingCollator(pad_to=9)([{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6, 7, 4]}])
    assert show(batch, words).split("\n\n")[1:3] == [
        """\
row 0
slot      │0   1   2   3│4   5      6      7│8│
document  │0   0   0   0│1   1      1      1│–│
position  │0   1   2   3│0   1      2      3│0│
token     │the cat sat .│a   dog    barked .│–│
predicts  │cat sat .   ·│dog barked .      ·│·│""",
        """\
slot        attends to the slots marked ■
0    the    ■
1    cat    ■ ■
2    sat    ■ ■ ■
3    .      ■ ■ ■ ■
4    a      · · · · ■
5    dog    · · · · ■ ■
6    barked · · · · ■ ■ ■
7    .      · · · · ■ ■ ■ ■
8    –      · · · · · · · · ■""",
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans())
def test_the_grid_is_the_attention_mask(lengths, across):
    collate = PackingCollator(pad_to=28, cross_document_attention=across)
    batch = collate([{"input_ids": [7] * length} for length in lengths])
    segment = np.repeat(np.arange(len(batch["cu_seqlens"]) - 1), np.diff(batch["cu_seqlens"].numpy()))
    lines = re.findall(r"^\d+ +\d* +([■· ]+)$", show(batch), flags=re.MULTILINE)
    drawn = [[mark == "■" for mark in line.split()] for line in lines]
    assert drawn == [[bool(segment[k] == segment[q]) for k in range(q + 1)] for q in range(28)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(50, 120))
def test_lines_keep_to_the_width(lengths, width):
    batch = PackingCollator()([{"input_ids": [65] * length} for length in lengths])
    drawing = show(batch, "bytes", width=width).split("row 0")[1].split("From slots")[0]
    assert max(map(len, drawing.splitlines())) <= width


def test_a_long_row_lists_its_documents():
    batch = PackingCollator(pad_to=100)([{"input_ids": [65] * 40}, {"input_ids": [66] * 50}])
    text = show(batch, "bytes")
    assert re.search(r"^documents A+B+\.+$", text, flags=re.MULTILINE)
    assert re.search(r"A document 0 +slots 0–39 +40 tokens +39 targets  A+$", text, flags=re.MULTILINE)
    assert re.search(r"\. padding +slots 90–99 +10 slots", text)


def test_one_is_counted_as_one():
    text = show(PackingCollator(pad_to=36)([{"input_ids": [65] * 32}, {"input_ids": [66] * 2}, {"input_ids": [67]}]))
    assert re.search(r"slots 32–33 +2 tokens +1 target  ", text)
    assert re.search(r"slots 34–34 +1 token +0 targets", text)
    assert re.search(r"\. padding +slots 35–35 +1 slot$", text, flags=re.MULTILINE)


def test_documents_are_counted_not_packs():  # O5
    assert "1 row of 8 slots: 4 documents" in show(PackingCollator()([{"input_ids": [1, 2]}] * 4))
    assert re.search(r"documents as packed +4\n", show(plan_packs([2] * 4, budget=8)))


def test_a_plan_without_packs_is_full_and_shows():  # E7
    assert re.search(r"fill +100.00%", show(plan_packs([], budget=8)))


def test_dropped_tokens_are_named_and_not_counted_as_packed():  # E7
    text = show(plan_packs([10, 10, 10, 10, 17], budget=10, overlong="drop"))
    assert re.search(r"fill +100.00%", text)
    assert "Dropped: 1 document with 17 tokens." in text


@pytest.mark.parametrize("token", ["\x1b[2J", "\r", "\u202e", "\x9b1m", "\ud800"])
def test_no_token_acts_on_the_terminal(token):
    batch = PackingCollator()([{"input_ids": [1, 2, 3]}])
    text = show(batch, lambda ids: token * len(ids))
    assert token not in text
    io.TextIOWrapper(io.BytesIO(), encoding="utf-8").write(text)


class Tokenizer:
    eos_token_id, pad_token_id = 9, 9

    def decode(self, ids):
        return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("features", "warning"),
    [
        ([{"input_ids": [1, 2, 9]}, {"input_ids": [3, 4]}], "1 of 2 documents do not end with the EOS token 9"),
        ([{"input_ids": [1, 2, 9]}], "The padding token is the EOS token 9"),
        ([{"input_ids": [1, 9], "labels": [-100, -100]}], "1 of 1 documents have no target"),
    ],
)
def test_a_batch_warns(features, warning):
    assert f"⚠ {warning}" in show(PackingCollator()(features), Tokenizer())


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"lengths": [5, 5], "budget": 8}, "37.5% of the slots are padding (over 10%)"),
        ({"lengths": [9], "budget": 8, "overlong": "truncate"}, "Truncated: 1 token of 1 document;"),
        ({"lengths": [9, 8], "budget": 8, "overlong": "drop"}, "Dropped: 1 document with 9 tokens."),
        ({"lengths": [0, 8], "budget": 8}, "Empty, and in no pack: 1 document."),
    ],
)
def test_a_plan_warns(options, warning):
    assert f"⚠ {warning}" in show(plan_packs(**options))


@pytest.mark.parametrize("choice", ["cross_document_attention", "cross_document_targets"])
def test_crossed_boundaries_are_named(choice):
    features = [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}]
    assert f"as was asked for ({choice})" in show(PackingCollator(**{choice: True})(features))


def test_a_good_packing_does_not_warn():
    assert "⚠" not in show(plan_packs([8, 4, 4], budget=8))
    assert "⚠" not in show(PackingCollator()([{"input_ids": [1, 2, 3]}]))


@pytest.mark.parametrize("obj", [5, "plan", [[1, 2]], torch.ones(3)])
def test_other_objects_are_refused(obj):
    with pytest.raises(TypeError, match=r"Plan, a packed datasets\.Dataset, a PackedDataset or a PackedBatch"):
        show(obj)


def test_there_must_be_such_a_row():
    with pytest.raises(ValueError, match="pack must be from 0 to 0, got 1"):
        show(PackingCollator()([{"input_ids": [1, 2, 3]}]), pack=1)

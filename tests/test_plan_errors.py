"""Bad input is refused with the argument, the rule, the value, the document, and the way out."""

import numpy as np
import pytest
import torch

from packdata.planning import estimate, plan_packs, plan_patterns

BAD_LENGTHS = [
    ([1.0, 2.0], r"lengths must be integers, got dtype float64"),
    ([1, float("nan")], r"lengths must be integers"),
    ([True, False], r"lengths must be integers, got dtype bool"),
    (np.array([1, 2], dtype=object), r"lengths must be integers, got dtype object"),
    (["3"], r"lengths must be integers"),
    ([3, -1], r"lengths must not be negative, got -1 for document 1"),
    ([[1, 2], [3]], r"lengths must be a 1-D array of integers"),
    ([[1, 2], [3, 4]], r"lengths must be 1-D, one number per document, got shape \(2, 2\)"),
    (np.ones((3, 1), dtype=int), r"lengths must be 1-D.*got shape \(3, 1\)"),
    (torch.ones(2, 2, dtype=torch.int64), r"lengths must be 1-D"),
    (7, r"lengths must be 1-D"),
    (None, r"lengths must be"),
    ([2**62, 2**62], r"lengths must add up to less than 2\*\*62, .* for document 0"),
    (np.array([2**64 - 1], dtype=np.uint64), r"lengths must add up to less than 2\*\*62, .* for document 0"),
    ([2**70], r"lengths must be"),
]

BAD_OPTIONS = [
    ({"budget": 0}, r"budget must be at least 1, got 0"),
    ({"budget": -4}, r"budget must be at least 1, got -4"),
    ({"budget": 8.0}, r"budget must be an integer, got 8.0"),
    ({"budget": True}, r"budget must be an integer, got True"),
    ({"budget": None}, r"budget must be an integer, got None"),
    ({"budget": 2**31}, r"budget must be at most 2147483647"),
    ({"strategy": "first_fit"}, r"strategy must be one of 'best_fit', 'sequential', 'concat', got 'first_fit'"),
    ({"strategy": ["best_fit"]}, r"strategy must be one of"),
    ({"overlong": "cut"}, r"overlong must be one of 'error', 'truncate', 'truncate_left', 'split', 'drop', got 'cut'"),
    ({"max_documents": 0}, r"max_documents must be at least 1, got 0"),
    ({"max_documents": 2.5}, r"max_documents must be an integer, got 2.5"),
    ({"align": 0}, r"align must be at least 1, got 0"),
    ({"align": 9}, r"align must not be over the budget of 8, got 9"),
    ({"packs_multiple_of": 0}, r"packs_multiple_of must be at least 1"),
    ({"window": 0}, r"window must be at least 1"),
    ({"seed": -1}, r"seed must be an integer from 0 or a tuple of them"),
    ({"seed": 1.5}, r"seed must be an integer from 0"),
    ({"seed": "abc"}, r"seed must be an integer from 0"),
    ({"seed": ()}, r"seed must be an integer from 0"),
    ({"seed": (1, None)}, r"seed must be an integer from 0"),
    ({"groups": [0]}, r"groups must have one number for each of 3 documents, got shape \(1,\)"),
    ({"groups": [[0], [1], [2]]}, r"groups must have one number for each of 3 documents, got shape \(3, 1\)"),
    ({"groups": [0.0, 1.0, 2.0]}, r"groups must be integers, got dtype float64"),
    ({"groups": [[0], [1, 2], []]}, r"groups must be a 1-D array of integers"),
    ({"groups": [5, 5, 5]}, r"group 5 has 9 tokens, over the budget of 8.*overlong='drop'"),
    ({"groups": [4, 5, 5], "max_documents": 1}, r"group 5 has 2 documents, over max_documents=1.*raise max_documents"),
    ({"groups": [5, 5, 4], "align": 8}, r"group 5 has 16 tokens after alignment, over the budget of 8"),
    ({"groups": [5, 4, 5], "window": 2}, r"documents 0 and 2 are of one group but of different windows.*window=2"),
    ({"groups": [1, 2, 3], "strategy": "concat"}, r"strategy='concat' cuts documents.*groups together"),
    ({"targets": [1, 1]}, r"targets must have one count for each of 3 documents, got 2"),
    ({"targets": [1, 4, 1]}, r"targets must not be more than the tokens: document 1 has 4 of 3"),
    ({"targets": [1.0, 1.0, 1.0]}, r"targets must be integers"),
]


@pytest.mark.parametrize(("lengths", "message"), BAD_LENGTHS)
def test_lengths_that_are_none(lengths, message):
    with pytest.raises(ValueError, match=message):
        plan_packs(lengths, 8)


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        plan_packs([3, 3, 3], **{"budget": 8, **options})


def test_an_over_long_document_is_named():
    with pytest.raises(ValueError, match=r"document 1 has 17 tokens, over the budget of 16; raise the budget"):
        plan_packs([3, 17], budget=16)


def test_the_first_of_many_over_long_documents_are_named_and_counted():
    message = r"document 0 has 20 tokens, .* document 4 has 24 tokens and 15 more documents, over the budget of 16 "
    with pytest.raises(ValueError, match=message + r"\(20 of 21 documents\)(.|\n)*overlong='truncate'(.|\n)*'drop'"):
        plan_packs([*range(20, 40), 3], budget=16)


def test_alignment_lowers_the_budget_and_says_so():
    with pytest.raises(
        ValueError, match=r"document 0 has 10 tokens, over the budget of 10 \(8 after rounding down to align=4"
    ):
        plan_packs([10], budget=10, align=4)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([0.5], r"counts must be integers"),
        ([[1]], r"counts must be 1-D"),
        ([1, -1], r"counts must not be negative, got -1 for document 1"),
        ([0, 1, 0, 2, 3], r"counts has 5 documents of more tokens than the budget of 2, the longest of 4"),
    ],
)
def test_counts_that_are_none(counts, message):
    with pytest.raises(ValueError, match=message):
        plan_patterns(counts, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either lengths or counts"),
        ({"lengths": [1], "counts": [1]}, "give either lengths or counts"),
        ({"counts": [0, 1], "strategies": ["concat"]}, r"strategy='concat' depends on the order of documents"),
        ({"lengths": [5000], "overlong": "error"}, r"document 0 has 5000 tokens, over the budget of 2048"),
        ({"counts": [0] * 5000 + [1], "overlong": "error"}, r"counts has 1 document of more tokens than the budget"),
        ({"lengths": [1], "budgets": None}, r"budget must be an integer, got None"),
        ({"lengths": [1], "budgets": "8192"}, r"budget must be an integer, got '8192'"),
        ({"lengths": [1], "strategies": "bestfit"}, r"strategy must be one of 'best_fit'.*got 'bestfit'"),
        ({"lengths": [1], "strategies": 3}, r"strategy must be one of .*got 3"),
        ({"lengths": [0.5]}, r"lengths must be integers"),
        ({"lengths": [1], "budgets": [0]}, r"budget must be at least 1"),
    ],
)
def test_an_estimate_of_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        estimate(**arguments)

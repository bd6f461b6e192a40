"""Ledgers add up, print as a table, and travel as plain dicts."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from strategies import plan_requests

from packdata.planning import Ledger, plan_packs


@given(plan_requests(groups=False), plan_requests(groups=False))
def test_the_ledgers_of_parts_add_up_and_balance(one, other):
    ledgers = [plan_packs(lengths, budget, **options).ledger for lengths, budget, options in (one, other)]
    total = sum(ledgers)
    assert total == ledgers[0] + ledgers[1] == sum(ledgers, Ledger())
    assert total.documents_in == total.documents_kept + total.documents_dropped + total.documents_empty
    assert total.tokens_in == total.tokens_kept + total.tokens_truncated + total.tokens_dropped
    assert total.padding == ledgers[0].padding + ledgers[1].padding == total.slots - total.tokens_kept


@given(plan_requests(groups=False))
def test_a_ledger_survives_json(request_):
    lengths, budget, options = request_
    for targets in (None, [0] * len(lengths)):
        ledger = plan_packs(lengths, budget, **options, targets=targets).ledger
        assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


def test_targets_are_known_where_both_parts_know_them():
    known = plan_packs([3, 2], 8, targets=[2, 1]).ledger
    unknown = plan_packs([3, 2], 8).ledger
    assert (known + known).targets_in == 6
    assert (known + unknown).targets_in is None
    assert (Ledger() + known).targets_in == (known + Ledger()).targets_in == 3
    assert (Ledger() + Ledger()).targets_in is None


def test_the_table_shows_every_count():
    text = str(plan_packs([9, 3, 0], 8, overlong="truncate", targets=[8, 1, 0]).ledger)
    for line in (
        "documents_in                             3",
        "documents_truncated                      1",
        "tokens_truncated                         1",
        "targets_lost_to_cuts                     1",
        "padding                                  5",
        "fill                              68.7500%",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "not a ledger: its entries must be"),
        (None, "not a ledger: its entries must be"),
        (Ledger().to_dict() | {"colour": 1}, "not a ledger: its entries must be"),
        (Ledger().to_dict() | {"slots": 1.5}, "not a ledger: slots must be an integer, got 1.5"),
        (Ledger().to_dict() | {"slots": None}, "not a ledger: slots must be an integer, got None"),
        (Ledger().to_dict() | {"slots": True}, "not a ledger: slots must be an integer, got True"),
    ],
)
def test_what_is_no_ledger_is_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        Ledger.from_dict(counts)


def test_only_ledgers_add_up():
    with pytest.raises(TypeError, match="unsupported operand"):
        Ledger() + 1
    assert replace(Ledger(), slots=4).fill == 0.0
    assert Ledger().fill == 1.0

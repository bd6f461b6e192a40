"""Plan documents by their lengths, and count their targets exactly.

A planner that sees lengths alone knows the targets only where every token is one. Where masks or labels say what is
learnt, they are read here, in windows, once: the ledger's counts of targets are then exact, and documents that are left
without a target can be kept, left out or refused.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np

from packdata.planning import Ledger, Pack, Plan, plan_packs
from packdata.planning.edge import no_type_check
from packdata.planning.plan import Array
from packdata.planning.policy import Overlong, Strategy
from packdata.planning.randomness import Seed

from .documents import Documents
from .supervision import is_supervised, learnt

WINDOW = 1 << 22
"""Tokens that are handled at a time, where they need not be held all at once."""

Untargeted = Literal["keep", "drop", "error"]


class PlanOptions(TypedDict, total=False):
    """What ``plan_packs`` takes beside lengths, budget and targets; see there."""

    strategy: Strategy
    overlong: Overlong
    max_documents: int | None
    align: int
    groups: Any
    packs_multiple_of: int
    window: int | None
    seed: Seed | None


PLAN_OPTIONS = tuple(PlanOptions.__annotations__)
"""Their names."""


@no_type_check
def plan_documents(
    documents: Documents, budget: int, *, untargeted: Untargeted = "keep", **policy: Unpack[PlanOptions]
) -> Plan:
    """Plan documents, with exact counts of targets in the ledger.

    Args:
        documents: The documents.
        budget: The most tokens in a pack.
        untargeted: What happens to documents that are left without a target, after any cut: they stay, are left out
            (and counted as dropped and untargeted), or raise.
        **policy: As ``plan_packs`` takes it.

    Raises:
        ValueError: As ``plan_packs`` does, and with ``untargeted="error"`` if such a document is left (it is named).
    """
    check_untargeted(untargeted)
    lengths = documents.lengths
    supervised = is_supervised(documents.columns)
    plan = plan_packs(lengths, budget, targets=lengths, **policy)
    if untargeted == "keep" and not supervised:
        return plan  # every token is a target, which the planner has counted
    targets = _targets_kept(documents, plan)
    left_out = np.zeros(len(lengths), np.bool_)
    while untargeted != "keep" and len(bare := _untargeted(plan, targets)):
        if untargeted == "error":
            raise ValueError(_untargeted_message(bare, len(lengths)))
        left_out[bare] = True  # leaving documents out moves the cuts of "concat", hence the loop
        rest = np.where(left_out, 0, lengths)
        plan = plan_packs(rest, budget, targets=rest, **policy)
        targets = _targets_kept(documents, plan)
    return replace(plan, ledger=_ledger(documents, plan, targets, left_out))


def refuse_unknown(caller: str, options: Mapping[str, Any], known: Collection[str] = PLAN_OPTIONS) -> None:
    """Raise a TypeError for the first of some options of ``plan_packs`` that the caller does not know."""
    for name in options:
        if name not in known:
            which = "are" if known is PLAN_OPTIONS else "that it takes are"
            raise TypeError(
                f"{caller} has no option {name!r}; those of plan_packs {which} {', '.join(known)} "
                f"(help(packdata.{caller}) shows its own)"
            )


def check_untargeted(untargeted: str) -> None:
    """Raise if that is no way to deal with documents that have no target."""
    if untargeted not in get_args(Untargeted):
        raise ValueError(f"untargeted must be 'keep', 'drop' or 'error', got {untargeted!r}")


def windows(plan: Plan) -> Iterator[slice]:
    """Cut a plan into runs of packs that hold at most ``WINDOW`` tokens, or one pack."""
    step = max(1, WINDOW // plan.budget)
    for first in range(0, len(plan), step):
        yield slice(first, min(first + step, len(plan)))


def spans_of(plan: Plan, packs: slice) -> Pack:
    """Return the spans of a run of packs, one after another; views of the plan."""
    spans = slice(int(plan.bounds[packs.start]), int(plan.bounds[packs.stop]))
    lengths = plan.lengths[spans]
    starts = np.zeros(len(lengths), np.int32) if plan.starts is None else plan.starts[spans]
    return Pack(documents=plan.documents[spans], starts=starts, lengths=lengths)


def _targets_kept(documents: Documents, plan: Plan) -> Array:
    """Count the targets of each document that are left in the packs, int64 ``(documents,)``."""
    kept = np.zeros(len(documents), np.int64)
    for packs in windows(plan):
        spans = spans_of(plan, packs)
        np.add.at(kept, spans.documents, _count(documents, spans))
    return kept


def _count(documents: Documents, spans: Pack) -> Array:
    """Count the targets in each span, int64 ``(spans,)``."""
    lengths = spans.lengths.astype(np.int64)
    if not is_supervised(documents.columns):
        return np.maximum(lengths - 1, 0)
    targets = learnt(lambda name: documents.gather(name, spans), documents.columns, lengths)
    before: Array = np.concatenate([np.zeros(1, np.int64), np.cumsum(targets, dtype=np.int64)])
    ends = np.cumsum(lengths)
    counts: Array = before[ends] - before[ends - lengths]
    return counts


def _untargeted(plan: Plan, targets: Array) -> Array:
    """Return the packed documents that have no target left, ascending."""
    bare: Array = np.unique(plan.documents[targets[plan.documents] == 0])
    return bare


def _untargeted_message(bare: Array, count: int) -> str:
    named = ", ".join(map(str, bare[:5].tolist())) + (", …" if len(bare) > 5 else "")
    return (
        f"{len(bare)} of {count} documents are left without a target: {named}; untargeted='drop' leaves them out, "
        "'keep' packs them all the same"
    )


def _ledger(documents: Documents, plan: Plan, targets: Array, left_out: Array) -> Ledger:
    """Put exact targets, and the documents that were left out for lack of them, into a plan's ledger."""
    lengths, ledger = documents.lengths, plan.ledger
    targets_in = targets.copy()
    for some in _changed(lengths, plan):
        whole = Pack(documents=some, starts=np.zeros(len(some), np.int32), lengths=lengths[some])
        targets_in[some] = _count(documents, whole)
    kept = np.zeros(len(lengths), np.bool_)
    kept[plan.documents] = True
    bare, tokens = int(left_out.sum()), int(lengths[left_out].sum(dtype=np.int64))
    return replace(
        ledger,
        documents_dropped=ledger.documents_dropped + bare,
        documents_untargeted=bare,
        documents_empty=ledger.documents_empty - bare,
        tokens_in=ledger.tokens_in + tokens,
        tokens_dropped=ledger.tokens_dropped + tokens,
        targets_in=int(targets_in.sum()),
        targets_kept=int(targets.sum()),
        targets_lost_to_cuts=int(targets_in[kept].sum() - targets.sum()),
    )


def _changed(lengths: Array, plan: Plan) -> Iterator[Array]:
    """Yield the documents that are not one whole span, in runs of about ``WINDOW`` tokens."""
    whole = np.zeros(len(lengths), np.bool_)
    whole[plan.documents[plan.lengths == lengths[plan.documents]]] = True
    changed = np.flatnonzero(~whole & (lengths > 0))
    totals = np.cumsum(lengths[changed], dtype=np.int64)
    cuts = np.searchsorted(totals, np.arange(WINDOW, int(totals[-1]) if len(totals) else 0, WINDOW))
    yield from (run for run in np.split(changed, np.unique(cuts)) if len(run))

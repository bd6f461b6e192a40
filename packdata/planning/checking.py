"""Prove a plan again from the lengths: exactly once, within every bound, and as the ledger says.

Nothing is taken from the way the plan was made: coverage comes from sorting the spans by document and start, and
each rule is checked on its own. The first violation is raised, with the document or the pack that breaks it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from packdata.layout import as_lengths

from .accounts import pack_slots
from .blocks import BLOCK, Array, blocks
from .items import as_groups
from .wording import counted

if TYPE_CHECKING:
    from .plan import Plan


def check_plan(plan: "Plan", lengths: Any, groups: Any = None) -> None:
    """Raise on the first thing that is wrong; see ``Plan.check``."""
    array = as_lengths(lengths)
    check_arrays(plan)
    if plan.ledger.documents_in != len(array):
        raise ValueError(
            f"the plan is of {counted(plan.ledger.documents_in, 'document')}, but lengths has {len(array)}"
        )
    _check_packs(plan)
    _check_spans(plan, array)
    kept = _check_coverage(plan, array)
    _check_ledger(plan, array, kept)
    if groups is not None:
        _check_groups(plan, as_groups(groups, len(array)))


def check_arrays(plan: "Plan") -> None:
    """Check what can be said of the arrays without the lengths.

    Raises:
        ValueError: If their shapes, dtypes or bounds cannot be a plan's.
    """
    arrays = {"bounds": plan.bounds, "documents": plan.documents, "lengths": plan.lengths, "starts": plan.starts}
    dtypes = {"bounds": ["int64"], "documents": ["int64"], "lengths": ["int32"], "starts": ["int32", "int64"]}
    for name, array in arrays.items():
        if array is not None and (array.ndim != 1 or array.dtype.name not in dtypes[name]):
            raise ValueError(f"damaged plan: {name} must be 1-D {dtypes[name][0]}, got {array.dtype} {array.shape}")
        if array is not None and name != "bounds" and len(array) != len(plan.documents):
            raise ValueError(f"damaged plan: {name} has {len(array)} spans, documents has {len(plan.documents)}")
    bounds = plan.bounds
    if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != len(plan.documents) or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(f"damaged plan: bounds must ascend from 0 to the number of spans, {len(plan.documents)}")


def _check_packs(plan: "Plan") -> None:
    policy = plan.policy
    if len(plan) % policy.packs_multiple_of:
        raise ValueError(f"{len(plan)} packs are no multiple of packs_multiple_of={policy.packs_multiple_of}")
    for packs in blocks(len(plan), BLOCK >> 5):
        slots = pack_slots(plan.bounds, plan.lengths, policy.align, packs)
        if (slots > policy.budget).any():
            index = int(np.argmax(slots > policy.budget))
            raise ValueError(
                f"pack {packs.start + index} takes {slots[index]} slots, over the budget of {policy.budget}"
            )
        spans = np.diff(plan.bounds[packs.start : packs.stop + 1])
        if policy.max_documents is not None and (spans > policy.max_documents).any():
            index = int(np.argmax(spans > policy.max_documents))
            raise ValueError(
                f"pack {packs.start + index} has {spans[index]} documents, over max_documents={policy.max_documents}"
            )


def _check_spans(plan: "Plan", lengths: Array) -> None:
    for block in blocks(len(plan.documents)):
        documents = plan.documents[block]
        outside = (documents < 0) | (documents >= len(lengths))
        if outside.any():
            raise ValueError(
                f"document {documents[np.argmax(outside)]} is out of range: there are {len(lengths)} documents"
            )
        starts = np.zeros(len(documents), np.int64) if plan.starts is None else plan.starts[block].astype(np.int64)
        spans = plan.lengths[block].astype(np.int64)
        outside = (spans < 1) | (starts < 0) | (starts + spans > lengths[documents])
        if outside.any():
            index = int(np.argmax(outside))
            document = documents[index]
            raise ValueError(
                f"document {document} has {lengths[document]} tokens, so a span of {spans[index]} from {starts[index]} "
                "on is out of range"
            )


def _check_coverage(plan: "Plan", lengths: Array) -> Array:
    """Check that no token is there twice, and return how many tokens of each document are kept, int64."""
    kept = np.zeros(len(lengths), dtype=np.int64)
    if plan.starts is None:
        kept[plan.documents] = plan.lengths
        many = np.bincount(plan.documents, minlength=len(lengths))
        if (many > 1).any():
            raise ValueError(f"document {np.argmax(many > 1)} is in {many.max()} spans, and its tokens there twice")
        return kept
    order = np.lexsort((plan.starts, plan.documents))
    documents, starts, spans = plan.documents[order], plan.starts[order].astype(np.int64), plan.lengths[order]
    twice = (documents[1:] == documents[:-1]) & (starts[1:] < starts[:-1] + spans[:-1])
    if twice.any():
        index = int(np.argmax(twice))
        raise ValueError(f"document {documents[index]} has spans that overlap at token {starts[index + 1]}")
    again = documents[1:][documents[1:] == documents[:-1]]
    if plan.policy.strategy != "concat":
        uncalled = again if plan.policy.overlong != "split" else again[lengths[again] <= plan.policy.limit]
        if len(uncalled):
            raise ValueError(f"document {uncalled[0]} is in several spans, which its policy does not call for")
    np.add.at(kept, documents, spans)
    return kept


def _check_ledger(plan: "Plan", lengths: Array, kept: Array) -> None:
    """Check that what is not kept may be missing, and that the ledger counts it."""
    policy, ledger = plan.policy, plan.ledger
    over = lengths > policy.limit
    cut = (kept > 0) & (kept < lengths)
    allowed = over & (kept == policy.limit) if policy.overlong.startswith("truncate") else np.zeros_like(cut)
    if (cut & ~allowed).any():
        index = int(np.argmax(cut & ~allowed))
        raise ValueError(f"document {index} misses tokens: {kept[index]} of {lengths[index]} are in the plan")
    missing = (kept == 0) & (lengths > 0)
    counts = {
        "documents_in": len(lengths),
        "documents_kept": int(np.count_nonzero(kept)),
        "documents_truncated": int(np.count_nonzero(cut)),
        "documents_dropped": int(np.count_nonzero(missing)),
        "documents_empty": int(np.count_nonzero(lengths == 0)),
        "tokens_in": int(lengths.sum(dtype=np.int64)),
        "tokens_kept": int(kept.sum()),
        "tokens_truncated": int((lengths[cut].astype(np.int64) - kept[cut]).sum()),
        "tokens_dropped": int(lengths[missing].sum(dtype=np.int64)),
        "slots": len(plan) * policy.budget,
    }
    if counts["documents_dropped"] > ledger.documents_dropped:
        raise ValueError(f"document {np.argmax(missing)} is missing: the ledger does not count it as dropped")
    for name, value in counts.items():
        if getattr(ledger, name) != value:
            raise ValueError(
                f"the ledger says {name}={getattr(ledger, name)}, but the plan and the lengths say {value}"
            )


def _check_groups(plan: "Plan", groups: Array) -> None:
    pack = np.repeat(np.arange(len(plan)), np.diff(plan.bounds))
    ids, group = np.unique(groups, return_inverse=True)
    first = np.full(len(ids), -1)
    first[group[plan.documents]] = pack
    torn = first[group[plan.documents]] != pack
    if torn.any():
        index = int(np.argmax(torn))
        raise ValueError(
            f"group {ids[group[plan.documents[index]]]} is torn: it has documents in packs {pack[index]} and "
            f"{first[group[plan.documents[index]]]}"
        )

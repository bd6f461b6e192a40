"""``plan_packs``: from the lengths of documents to packs.

    lengths --over-long policy--> spans --groups--> items --strategy, window by window--> packs of items
            --more packs, seed--> packs of spans --ledger, fingerprint--> Plan

Items of equal key are interchangeable for every strategy. So a seed may permute them, and may shuffle the finished
packs; the lengths in the packs, and so their number, depend on the lengths alone.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from packdata.layout import as_lengths

from .accounts import account
from .blocks import Array
from .edge import no_type_check
from .fingerprints import fingerprint
from .items import Items, as_groups, group_spans, groups_within
from .overlong import Spans, cut_overlong
from .packing import PlanArrays, assemble, join, shuffled_packs, ungroup
from .plan import Plan
from .policy import Overlong, Policy, Strategy
from .randomness import Seed, generator
from .spread import spread_bounds
from .strategies import STRATEGIES


@no_type_check
def plan_packs(
    lengths: Any,
    budget: int,
    *,
    strategy: Strategy = "best_fit",
    overlong: Overlong = "error",
    max_documents: int | None = None,
    align: int = 1,
    groups: Any = None,
    packs_multiple_of: int = 1,
    window: int | None = None,
    seed: Seed | None = None,
    targets: Any = None,
) -> Plan:
    """Decide which documents share a pack, losing none of them in silence.

    Args:
        lengths: Tokens per document: any 1-D integer array-like, shape ``(documents,)``. Documents of no tokens are not
            packed; the ledger counts them.
        budget: The most tokens in a pack, up to 2³¹ − 1.
        strategy: ``"best_fit"`` takes the documents from the longest down, each into the fullest pack that has room;
            ``"sequential"`` keeps their order and closes a pack at the first document that does not fit;
            ``"concat"`` cuts one stream of all of them every ``budget`` tokens (and so cuts over-long documents
            unless ``overlong`` truncates or drops them first).
        overlong: What happens to documents over the budget: ``"error"``; ``"truncate"`` keeps their first tokens,
            ``"truncate_left"`` their last; ``"split"`` makes full spans and a rest; ``"drop"`` leaves them out.
        max_documents: The most documents in a pack. Among equally tight packs best-fit takes the one with most left.
        align: Each span takes a multiple of this many slots, and the budget bounds the rounded sum.
        groups: Each document's group, integers, shape ``(documents,)``. Documents of one group share a pack; a group
            that does not fit raises, or is left out whole with ``overlong="drop"``.
        packs_multiple_of: Open more packs until their number is a multiple of this, by halving those with the most
            documents; where documents run out they are empty.
        window: Plan every so many consecutive documents on their own.
        seed: Permutes documents of equal length and shuffles the packs (inside each window): an integer or a tuple such
            as ``(seed, epoch)``. The number of packs and the lengths in them are the same for every seed.
        targets: Targets per document, integers, shape ``(documents,)``; the ledger then counts what cuts cost, taking
            them to be the document's last tokens. The first token of a document is never one.

    Returns:
        The plan. The same for any integer dtype of the lengths.

    Raises:
        ValueError: If the lengths are not 1-D non-negative integers, an option is unknown or out of range, a document
            is over the budget and ``overlong`` is ``"error"``, or a group does not fit a pack or a window.

    Example:
        >>> plan = plan_packs([6, 6, 4, 3, 3, 2], budget=10)
        >>> [pack.documents.tolist() for pack in plan]
        [[0, 2], [1, 3], [4, 5]]
        >>> plan.ledger.padding
        6
    """
    policy = Policy(
        budget=budget,
        strategy=strategy,
        overlong=overlong,
        max_documents=max_documents,
        align=align,
        packs_multiple_of=packs_multiple_of,
        window=window,
        seed=seed,
    )
    array = as_lengths(lengths)
    counted = None if targets is None else _target_counts(targets, array)
    families = None if groups is None else as_groups(groups, len(array))
    arrays, truncated, split = _pack(array, families, policy)
    ledger = account(array, policy, arrays, truncated=truncated, split=split, targets=counted)
    bounds, documents, span_lengths, starts = arrays
    return Plan(
        bounds=bounds,
        documents=documents,
        lengths=span_lengths,
        starts=starts,
        policy=policy,
        ledger=ledger,
        fingerprint=fingerprint(array, policy, families),
    )


def _pack(lengths: Array, groups: Array | None, policy: Policy) -> tuple[PlanArrays, int, int]:
    """Pack the spans; return the plan's arrays, and how many documents were cut short and how many are in pieces."""
    rng = None if policy.seed is None else generator(policy.seed)
    spans, items = _items(lengths, groups, policy)
    pack = STRATEGIES[policy.strategy]
    windows = [pack(items, window, policy, rng) for window in _windows(items, spans, len(lengths), policy.window)]
    packing = join(windows)
    packing = replace(packing, bounds=spread_bounds(packing.bounds, policy.packs_multiple_of))
    ends = np.cumsum([len(window.items) for window in windows]).tolist()
    order = None if rng is None else shuffled_packs(packing, ends, rng)
    arrays = assemble(ungroup(packing, items), spans, order)
    return arrays, spans.truncated, spans.split + packing.split


def _items(lengths: Array, groups: Array | None, policy: Policy) -> tuple[Spans, Items]:
    if groups is None:
        spans = cut_overlong(lengths, policy)
        return spans, Items(keys=spans.lengths, align=policy.align)
    if policy.strategy == "concat":
        raise ValueError("strategy='concat' cuts documents wherever a pack ends, so it cannot keep groups together")
    whole = policy.overlong in ("split", "drop")  # a group is not split, and is dropped whole
    spans = Spans(lengths=lengths) if whole else cut_overlong(lengths, policy)
    return spans, group_spans(spans.lengths, groups, policy)


def _windows(items: Items, spans: Spans, documents: int, size: int | None) -> list[slice]:
    """The items of each window; one window of all where none is asked for."""
    if size is None:
        return [slice(0, len(items.keys))]
    firsts = np.arange(0, documents, size)
    if items.members is not None:
        firsts = np.searchsorted(groups_within(items.members, size), firsts)
    elif spans.documents is not None:
        firsts = np.searchsorted(spans.documents, firsts)
    ends = [*firsts.tolist(), len(items.keys)]
    return [slice(first, last) for first, last in pairwise(ends)] or [slice(0, 0)]


def _target_counts(targets: Any, lengths: Array) -> Array:
    counts = as_lengths(targets, name="targets")
    if len(counts) != len(lengths):
        raise ValueError(f"targets must have one count for each of {len(lengths)} documents, got {len(counts)}")
    if (counts > lengths).any():
        index = int(np.argmax(counts > lengths))
        raise ValueError(
            f"targets must not be more than the tokens: document {index} has {counts[index]} of {lengths[index]}"
        )
    return counts

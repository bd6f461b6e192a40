"""``plan_packs``: from the lengths of documents to packs."""

from typing import Any

import numpy as np

from ..layout import as_lengths
from .ledger import Ledger
from .plan import Array, Plan
from .policy import Overlong, Policy, Strategy
from .randomness import Seed


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
    """Decide which documents share a pack (a first, slow version)."""
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
    limit = policy.limit
    spans: list[tuple[int, int, int]] = []
    dropped = truncated = tokens_dropped = tokens_truncated = split = 0
    for document, length in enumerate(array.tolist()):
        if length <= limit:
            spans += [(document, 0, length)] if length else []
        elif overlong == "error":
            raise ValueError(f"document {document} has {length} tokens, over the budget of {budget}")
        elif overlong == "drop":
            dropped, tokens_dropped = dropped + 1, tokens_dropped + length
        elif overlong == "split":
            split += 1
            spans += [(document, s, min(limit, length - s)) for s in range(0, length, limit)]
        else:
            truncated, tokens_truncated = truncated + 1, tokens_truncated + length - limit
            spans.append((document, 0 if overlong == "truncate" else length - limit, limit))
    if strategy == "best_fit":
        spans.sort(key=lambda span: -span[2])
    packs: list[list[tuple[int, int, int]]] = []
    loads: list[int] = []
    for span in spans:
        size = -(-span[2] // align)
        fits = [
            (policy.units - loads[i] - size, len(packs[i]), i)
            for i in range(len(packs) if strategy == "best_fit" else 0)
            if loads[i] + size <= policy.units and len(packs[i]) < (max_documents or 1 << 62)
        ]
        last = len(packs) - 1
        if strategy != "best_fit" and packs and loads[last] + size <= policy.units:
            fits = [(0, 0, last)] if len(packs[last]) < (max_documents or 1 << 62) else []
        if fits:
            where = min(fits)[2]
            packs[where].append(span)
            loads[where] += size
        else:
            packs.append([span])
            loads.append(size)
    while len(packs) % packs_multiple_of:
        packs.append([])
    flat = [span for pack in packs for span in pack]
    kept = sum(span[2] for span in flat)
    starts: Array = np.array([span[1] for span in flat], dtype=np.int32)
    ledger = Ledger(
        documents_in=len(array),
        documents_kept=len({span[0] for span in flat}),
        documents_truncated=truncated,
        documents_split=split,
        documents_dropped=dropped,
        documents_empty=int((array == 0).sum()),
        tokens_in=sum(array.tolist()),
        tokens_kept=kept,
        tokens_truncated=tokens_truncated,
        tokens_dropped=tokens_dropped,
        slots=len(packs) * budget,
    )
    return Plan(
        bounds=np.cumsum([0, *map(len, packs)], dtype=np.int64),
        documents=np.array([span[0] for span in flat], dtype=np.int64),
        lengths=np.array([span[2] for span in flat], dtype=np.int32),
        starts=starts if starts.any() else None,
        policy=policy,
        ledger=ledger,
        fingerprint="",
    )

"""What an epoch's dealing keeps and drops, as a ``Ledger``."""

from dataclasses import replace

import numpy as np

from packdata.planning import Ledger, Plan
from packdata.planning.blocks import Array


def without_packs(plan: Plan, packs: Array, *, slots: int) -> Ledger:
    """Count packs of a plan as dropped.

    Args:
        plan: The plan, with its own ledger.
        packs: Numbers of the packs that are left out, shape ``(dropped,)``.
        slots: Slots that these packs take.

    Returns:
        The plan's ledger with their documents and tokens moved from kept to dropped. A document of which another pack
        holds a span stays among the kept ones. Target counts are no longer known: None.
    """
    if not len(packs):
        return plan.ledger
    mask = np.zeros(len(plan), dtype=bool)
    mask[packs] = True
    spans = np.repeat(mask, np.diff(plan.bounds))
    documents, tokens = np.unique(plan.documents[spans]), int(plan.lengths[spans].sum(dtype=np.int64))
    if plan.ledger.documents_split:
        documents = np.setdiff1d(documents, plan.documents[~spans])
    ledger = plan.ledger
    return replace(
        ledger,
        documents_kept=ledger.documents_kept - len(documents),
        documents_dropped=ledger.documents_dropped + len(documents),
        tokens_kept=ledger.tokens_kept - tokens,
        tokens_dropped=ledger.tokens_dropped + tokens,
        targets_in=None,
        targets_kept=None,
        targets_lost_to_cuts=None,
        slots=ledger.slots - slots,
    )

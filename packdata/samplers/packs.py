"""``PackBatchSampler``: batches of packs."""

from typing import Any, Literal

from ..layout import as_lengths
from ..planning import Plan
from ..planning.policy import Overlong, Strategy
from .dealing import Dealing, Share
from .epochs import EpochSampler
from .forming import Former, PlannedPacks, ReadyPacks


class PackBatchSampler(EpochSampler):
    """Batches of packs."""

    def __init__(
        self,
        lengths: Any,
        budget: int | None = None,
        *,
        strategy: Strategy = "best_fit",
        overlong: Overlong = "error",
        max_documents: int | None = None,
        align: int = 1,
        groups: Any = None,
        packs_multiple_of: int = 1,
        window: int | None = None,
        packs_per_batch: int = 1,
        items: Literal["documents", "packs"] = "documents",
        balance: Literal["attention"] | None = None,
        balance_window: int = 64,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | Literal["all"] | None = None,
        world_size: int | None = None,
        uneven: Literal["pad", "drop"] = "pad",
    ) -> None:
        policy = {
            "strategy": strategy,
            "overlong": overlong,
            "max_documents": max_documents,
            "align": align,
            "groups": groups,
            "packs_multiple_of": packs_multiple_of,
            "window": window,
        }
        dealing = Dealing(
            share=Share.of(rank, world_size),
            shuffle=shuffle,
            seed=seed,
            uneven=uneven,
            balance=balance,
            balance_window=balance_window,
            packs_per_batch=packs_per_batch,
        )
        former: Former
        if isinstance(lengths, Plan):
            former = ReadyPacks(lengths)
        elif budget is None:
            raise ValueError("budget must be given unless the packs come from a plan")
        else:
            former = PlannedPacks(as_lengths(lengths), budget, policy)
        super().__init__(former, dealing, items=items)

"""``LengthBucketBatchSampler``: batches of documents of similar length."""

from collections.abc import Sequence
from typing import Any, Literal

from ..layout import as_lengths
from .buckets import Buckets, as_boundaries
from .dealing import Dealing, Share
from .epochs import EpochSampler


class LengthBucketBatchSampler(EpochSampler):
    """Batches of documents of similar length."""

    def __init__(
        self,
        lengths: Any,
        budget: int,
        *,
        boundaries: Sequence[int] = (770, 1216, 1728, 2432, 3296, 8192),
        padded: bool = False,
        overlong: Literal["error", "drop"] = "error",
        balance: Literal["attention"] | None = None,
        balance_window: int = 64,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | Literal["all"] | None = None,
        world_size: int | None = None,
        uneven: Literal["pad", "drop"] = "pad",
    ) -> None:
        former = Buckets(
            lengths=as_lengths(lengths),
            budget=budget,
            boundaries=as_boundaries(boundaries),
            padded=padded,
            overlong=overlong,
        )
        dealing = Dealing(
            share=Share.of(rank, world_size),
            shuffle=shuffle,
            seed=seed,
            uneven=uneven,
            balance=balance,
            balance_window=balance_window,
        )
        super().__init__(former, dealing, items="documents")

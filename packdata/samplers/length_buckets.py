"""``LengthBucketBatchSampler``: batches of documents of similar length."""

from collections.abc import Iterable
from typing import Any, Literal

from packdata.layout import as_lengths
from packdata.planning.edge import no_type_check

from .buckets import Buckets
from .dealing import Dealing, Share
from .epochs import EpochSampler


class LengthBucketBatchSampler(EpochSampler):
    """Batches of documents of similar length, within a budget of tokens or of slots.

    A bucket's documents have lengths in (previous boundary, boundary]; above the last boundary up to the budget is one
    more. How many documents a batch has comes from the histogram of lengths; an epoch's shuffle decides which of the
    documents of equal length it has, and the order of the batches. So every epoch has the same number of batches.

    Every rank computes the same batches with no communication, and takes its share. For
    ``DataLoader(batch_sampler=...)``; yields lists of document numbers, for any map-style dataset.

    Args:
        lengths: Tokens of each document, shape ``(documents,)``.
        budget: The most tokens in a batch, or slots if ``padded``.
        boundaries: The longest length of each bucket, ascending. Those from the budget on have no effect.
        padded: Whether the budget bounds documents times the longest of them (a batch that is padded to a rectangle)
            instead of the sum of their lengths (a packed stream).
        overlong: "error" refuses documents over the budget, "drop" leaves them out and counts them in ``ledger``.
        balance: "attention" gives the ranks of a step batches of about the same Σ length², so that they hardly wait for
            each other. The order of the steps then depends on the number of ranks.
        balance_window: Steps within which batches are sorted for that; beyond, the order is as random as without.
        shuffle: Whether each epoch has its own batches in its own order.
        seed: Of the shuffle; no global random state has a part in it.
        rank: The data-parallel rank; None asks ``torch.distributed``, then ``RANK``, else it is 0. "all" yields the
            batches of all ranks in dealing order, a multiple of their number, for loaders that a framework shards
            (``accelerator.prepare``).
        world_size: The number of data-parallel ranks; None asks the same places.
        uneven: "pad" fills the last step up with empty lists, of which ``PackingCollator`` makes batches without
            targets: nothing is repeated, nothing dropped. "drop" leaves out what does not fill a step; ``ledger``
            counts it.

    Raises:
        ValueError: If an argument is out of range, a document is over the budget, or ``uneven="drop"`` would drop
            everything.

    Example:
        >>> sampler = LengthBucketBatchSampler([5, 2, 3, 2], 6, boundaries=(3,), padded=True, shuffle=False)
        >>> list(sampler)
        [[0], [2, 1], [3]]
    """

    @no_type_check
    def __init__(
        self,
        lengths: Any,
        budget: int,
        *,
        boundaries: Iterable[int] = (770, 1216, 1728, 2432, 3296, 8192),
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
            boundaries=boundaries,
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

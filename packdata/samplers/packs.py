"""``PackBatchSampler``: batches of packs, planned anew for each epoch."""

from typing import Any, Literal

from packdata.layout import as_lengths
from packdata.planning import Plan
from packdata.planning.edge import no_type_check
from packdata.planning.items import as_groups
from packdata.planning.policy import Overlong, Policy, Strategy
from packdata.planning.wording import counted

from .dealing import Dealing, Share
from .epochs import EpochSampler
from .forming import Former, PlannedPacks, ReadyPacks


class PackBatchSampler(EpochSampler):
    """Batches of packs: as few as the documents allow, the same number on every rank, in every epoch.

    Every rank computes the same plan from the lengths, the seed and the epoch, with no communication, and takes its
    share. For ``DataLoader(batch_sampler=...)``; call ``set_epoch`` or not: a finished epoch is followed by the next.

    Args:
        lengths: Tokens of each document, shape ``(documents,)``; or a ready ``Plan``, whose packs are then shuffled as
            they are.
        budget: The most tokens in a pack; left out with a ready plan.
        strategy: As of ``plan_packs``.
        overlong: As of ``plan_packs``.
        max_documents: As of ``plan_packs``.
        align: As of ``plan_packs``.
        groups: As of ``plan_packs``.
        packs_multiple_of: As of ``plan_packs``.
        window: As of ``plan_packs``.
        packs_per_batch: Packs in a batch; more than one needs ``items="packs"``.
        items: "documents" yields lists of document numbers, for any map-style dataset. "packs" yields lists of
            ``Pack``, for ``Documents``; only these can say which part of a document is meant. A plain dataset has no
            item of that name: give the loader ``Documents(dataset)``.
        balance: "attention" gives the ranks of a step packs of about the same Σ length², so that they hardly wait for
            each other. The order of the steps then depends on the number of ranks.
        balance_window: Steps within which packs are sorted for that; beyond, the order is as random as without.
        shuffle: Whether each epoch has its own packs in its own order.
        seed: Of the shuffle; no global random state has a part in it.
        rank: The data-parallel rank; None asks ``torch.distributed``, then ``RANK``, else it is 0. "all" yields the
            batches of all ranks in dealing order, a multiple of their number, for loaders that a framework shards
            (``accelerator.prepare``).
        world_size: The number of data-parallel ranks; None asks the same places.
        uneven: "pad" fills the last step up with empty lists, of which ``PackingCollator`` makes batches without
            targets: nothing is repeated, nothing dropped. "drop" leaves out what does not fill a step; ``ledger``
            counts it.

    Raises:
        ValueError: If an argument is out of range, a document is over the budget, documents are cut although
            ``items="documents"``, or ``uneven="drop"`` would drop everything.

    Example:
        >>> sampler = PackBatchSampler([5, 5, 3, 3, 8], 8, rank=0, world_size=2, shuffle=False)
        >>> len(sampler), list(sampler)
        (2, [[4], [1, 3]])
    """

    @no_type_check
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
        dealing = Dealing(
            share=Share.of(rank, world_size),
            shuffle=shuffle,
            seed=seed,
            uneven=uneven,
            balance=balance,
            balance_window=balance_window,
            packs_per_batch=packs_per_batch,
        )
        policy = {
            "strategy": strategy,
            "overlong": overlong,
            "max_documents": max_documents,
            "align": align,
            "packs_multiple_of": packs_multiple_of,
            "window": window,
        }
        former = _former(lengths, budget, groups, policy)
        if items not in ("documents", "packs"):
            raise ValueError(f'items must be "documents" or "packs", got {items!r}')
        if items == "documents":
            _refuse_what_needs_packs(former, dealing)
        super().__init__(former, dealing, items=items)
        if items == "documents":
            _refuse_cut_documents(self._form(0).plan)


def _former(lengths: Any, budget: Any, groups: Any, policy: dict[str, Any]) -> Former:
    if not isinstance(lengths, Plan):
        if budget is None:
            raise ValueError("budget must be given, unless a ready plan is")
        checked = Policy(budget=budget, **policy)
        array = as_lengths(lengths)
        groups = None if groups is None else as_groups(groups, len(array))
        return PlannedPacks(lengths=array, groups=groups, policy=checked)
    changed = [name for name, value in policy.items() if value != getattr(Policy, name)]
    changed += [] if groups is None else ["groups"]
    if changed:
        raise ValueError(f"{changed[0]} has no effect on a ready plan: give it to plan_packs")
    if budget is not None and budget != lengths.budget:
        raise ValueError(f"budget must be left out with a ready plan, or be its {lengths.budget}, got {budget}")
    return ReadyPacks(lengths)


def _refuse_what_needs_packs(former: Former, dealing: Dealing) -> None:
    if dealing.packs_per_batch > 1:
        raise ValueError(
            f'packs_per_batch must be 1 with items="documents", whose batch is one pack, got '
            f'{dealing.packs_per_batch}: give items="packs"'
        )
    if isinstance(former, PlannedPacks) and former.policy.strategy == "concat":
        raise ValueError('strategy="concat" cuts documents, which items="documents" cannot say: give items="packs"')


def _refuse_cut_documents(plan: Plan) -> None:
    cut = plan.ledger.documents_truncated + plan.ledger.documents_split
    if cut or plan.starts is not None:
        raise ValueError(
            f'the plan cuts {counted(cut, "document")}, which items="documents" cannot say: give items="packs"'
        )

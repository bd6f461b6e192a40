"""``BatchPacker``: pack inside ``Dataset.map``, each map batch on its own."""

from collections.abc import Collection, MutableMapping
from typing import Any, Literal, Never

import numpy as np
import pyarrow as pa

from packdata.planning.edge import no_type_check
from packdata.planning.policy import Policy, Strategy

from .packing import named_columns, pack_table
from .planned import refuse_unknown
from .tables import open_source


@no_type_check
class BatchPacker:
    """``pack_table`` as a function for ``dataset.map(packer, batched=True, batch_size=…)``.

    Each batch is packed on its own, so the result depends on ``batch_size`` and ``num_proc``; ``pack_dataset`` is free
    of that. Nothing is lost: a ledger cannot come back from map's workers, so over-long documents raise or are split.
    Works on batches of Python lists and of Arrow (``with_format("arrow")``, faster), on a ``Dataset`` and on a stream.
    It pickles, and hashes by its options alone, so that ``datasets`` finds its cache again.

    Args:
        budget: The most tokens in a pack.
        strategy: As for ``plan_packs``, like the next three; ``help(packdata.plan_packs)`` explains them.
        overlong: ``"error"`` or ``"split"``.
        max_documents: The most documents in a pack.
        align: Each span takes a multiple of this many slots.
        drop_columns: Columns to leave behind. Each that is not per token must be named.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing.

    Raises:
        ValueError: If an option is out of range, or ``overlong`` would lose tokens.
        TypeError: If an option is unknown.

    Example:
        >>> packed = BatchPacker(budget=4)({"input_ids": [[1, 2, 3], [4, 5], [6]]})
        >>> packed
        {'input_ids': [[1, 2, 3, 6], [4, 5]], 'seq_lengths': [[3, 1], [2]]}
    """

    def __init__(
        self,
        budget: int,
        *,
        strategy: Strategy = "best_fit",
        overlong: Literal["error", "split"] = "error",
        max_documents: int | None = None,
        align: int = 1,
        drop_columns: Collection[str] = (),
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        **unknown: Never,
    ):
        refuse_unknown("BatchPacker", unknown, ("strategy", "overlong", "max_documents", "align"))
        if overlong not in ("error", "split"):
            raise ValueError(
                f"overlong must be 'error' or 'split' in a map, which has no ledger to count losses in, got "
                f"{overlong!r}: pack_dataset truncates and drops"
            )
        policy = Policy(budget=budget, strategy=strategy, overlong=overlong, max_documents=max_documents, align=align)
        self.budget = policy.budget
        self.policy: dict[str, Any] = {"strategy": strategy, "overlong": overlong}
        self.policy |= {"max_documents": policy.max_documents, "align": policy.align}
        self.drop_columns = named_columns(drop_columns)
        markers = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        self.markers: dict[str, Any] = {
            name: int(token) if isinstance(token, np.integer) else token for name, token in markers.items()
        }

    def __repr__(self) -> str:
        return f"BatchPacker({self.budget}, {', '.join(f'{name}={value!r}' for name, value in self.policy.items())})"

    def __call__(self, batch: Any) -> Any:
        """Pack a batch: a dict of columns gives a dict of lists, an Arrow table gives a table.

        Raises:
            ValueError: As ``pack_table`` does.
        """
        if isinstance(batch, pa.Table):
            return self._pack(batch)
        packed = self._pack(open_source({name: batch[name] for name in batch}).table).to_pydict()
        for name in list(batch):
            # map() would merge a column that is not in the result with the packs, of which there are fewer
            if name not in packed and isinstance(batch, MutableMapping):
                del batch[name]
        return packed

    def _pack(self, table: pa.Table) -> pa.Table:
        return pack_table(table, self.budget, drop_columns=self.drop_columns, **self.markers, **self.policy)[0]

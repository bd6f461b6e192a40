"""``PackedDataset``: packs gathered when they are asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from packdata.planning import Pack, Plan
from packdata.planning.edge import no_type_check
from packdata.planning.plan import Array
from packdata.planning.wording import counted

from .documents import Documents
from .packing import gather_spans


@no_type_check
class PackedDataset:
    """A map-style dataset whose item *i* is pack *i* of a plan: the lazy twin of ``pack_dataset``, nothing written.

    Args:
        documents: The documents.
        plan: Made from ``documents.lengths``.

    Raises:
        TypeError: If they are no ``Documents`` and no ``Plan``.
        ValueError: If the plan is about other lengths.

    Example:
        >>> from packdata.planning import plan_packs
        >>> documents = Documents({"input_ids": [[1, 2, 3], [4, 5], [6]]})
        >>> packed = PackedDataset(documents, plan_packs(documents.lengths, budget=4))
        >>> {name: column.tolist() for name, column in packed[0].items()}
        {'input_ids': [1, 2, 3, 6], 'seq_lengths': [3, 1]}
    """

    def __init__(self, documents: Any, plan: Any):
        if not isinstance(documents, Documents) or not isinstance(plan, Plan):
            got = f"{type(documents).__name__} and {type(plan).__name__}"
            raise TypeError(f"PackedDataset takes Documents and a Plan of their lengths, got {got}")
        if plan.ledger.documents_in != len(documents):
            raise ValueError(
                f"the plan is about {counted(plan.ledger.documents_in, 'document')}, but there are {len(documents)}"
            )
        self.documents: Documents = documents
        self.plan: Plan = plan

    def __len__(self) -> int:
        return len(self.plan)

    def __repr__(self) -> str:
        return f"PackedDataset({self.documents!r}, {self.plan!r})"

    def __getitem__(self, index: int) -> dict[str, Array]:
        """Gather one pack: the columns of ``pack_table`` as numpy arrays, new ones."""
        pack = self.plan[index]
        self.documents.check_spans(pack)
        return gather_spans(self.documents, pack)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Array]]:
        """Gather several packs in one go."""
        packs = [self.plan[index] for index in indices]
        if not packs:
            return []
        joined = join_spans(packs)
        self.documents.check_spans(joined)
        flat = gather_spans(self.documents, joined)
        spans = np.cumsum([len(pack) for pack in packs])[:-1]
        tokens = np.cumsum([int(pack.lengths.sum(dtype=np.int64)) for pack in packs])[:-1]
        columns = [np.split(values, spans if name == "seq_lengths" else tokens) for name, values in flat.items()]
        return [dict(zip(flat, values, strict=True)) for values in zip(*columns, strict=True)]


def join_spans(packs: Sequence[Pack]) -> Pack:
    """Line up the spans of several packs."""
    none = np.empty(0, np.int32)
    return Pack(
        documents=np.concatenate([none.astype(np.int64), *(pack.documents for pack in packs)]),
        starts=np.concatenate([none, *(pack.starts for pack in packs)]),
        lengths=np.concatenate([none, *(pack.lengths for pack in packs)]),
    )

"""Padding that is still in the documents, which would be taken for text."""

import numpy as np

from packdata.planning.wording import counted

from .ragged import RaggedColumn
from .tables import Source


def refuse_padding(source: Source) -> None:
    """Raise if an ``attention_mask`` marks padding, or numbers the documents of packs.

    Args:
        source: The documents; without such a column, each is all text.

    Raises:
        ValueError: If a token's value is not 1; the first such document is named.
    """
    if "attention_mask" not in source.table.column_names:
        return
    mask = RaggedColumn(source.table.column("attention_mask"), name="attention_mask")
    rows = mask.rows_with_others(1)
    odd = rows if source.rows is None else np.flatnonzero(np.isin(source.rows, rows))
    if len(odd):
        first = mask.views(odd[:1] if source.rows is None else source.rows[odd[:1]])[0]
        raise ValueError(
            f"attention_mask must be 1 on every token, and is not in {counted(len(odd), 'document')}; the first is "
            f"{odd[0]}, which has {first[first != 1][0]}: take padding out; cut packs apart if it numbers their "
            "documents (lengths_from_segment_ids); if it means something else, take the column out"
        )

"""Hypothesis strategies: what users may hand to packdata."""

from hypothesis import strategies as st


def document_lengths(*, budget: int = 16, min_size: int = 0, max_size: int = 24, empty: bool = True):
    """Lists of document lengths that fit the budget."""
    return st.lists(st.integers(0 if empty else 1, budget), min_size=min_size, max_size=max_size)


# --- drafting


@st.composite
def draft_streams(draw, *, max_length: int = 12, max_documents: int = 6, max_padding: int = 6):
    """One packed stream as plain lists: lengths, and per slot the document, its number, its labels and positions.

    Documents may be empty, a document may be followed by alignment slots of its segment, padding by more padding.
    """
    lengths = draw(st.lists(st.integers(0, max_length), max_size=max_documents))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    padding = draw(st.integers(0 if sum(lengths) else 1, max_padding))
    position_offset = draw(st.integers(0, 3))
    document_ids, positions, offsets = [], [], [0]
    for document, (length, gap) in enumerate(zip(lengths, gaps, strict=True)):
        document_ids += [document] * length + [-1] * (gap if length else 0)
        positions += [position_offset + slot for slot in range(length + (gap if length else 0))]
        offsets.append(len(document_ids))
    document_ids += [-1] * padding
    positions += list(range(padding))
    offsets += [len(document_ids)] * draw(st.integers(1, 3))
    trained = draw(st.lists(st.booleans() | st.just(True), min_size=len(document_ids), max_size=len(document_ids)))
    labels = [
        100 + slot if learn and document >= 0 and slot > 0 and document_ids[slot - 1] == document else -100
        for slot, (learn, document) in enumerate(zip(trained, document_ids, strict=True))
    ]
    return {
        "lengths": lengths,
        "document_ids": document_ids,
        "position_ids": positions,
        "cu_seqlens": offsets,
        "labels": labels,
    }

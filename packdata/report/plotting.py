"""A packing as a matplotlib drawing, for notebooks and papers."""

from typing import Any

from .overviews import overview_of
from .rows import Row

PACKS = 12
"""Most packs drawn."""


def plot(obj: Any, ax: Any = None, *, packs: int = PACKS) -> Any:
    """Draw packs as bars coloured by document, padding in grey; the row of a batch also shows what is learnt.

    Args:
        obj: A ``Plan``, a packed ``datasets.Dataset``, a ``PackedDataset`` or a ``PackedBatch``.
        ax: Matplotlib axes to draw on; None for new ones.
        packs: Most packs drawn, evenly spaced over all.

    Returns:
        The axes.

    Raises:
        TypeError: If ``obj`` is something else.
    """
    import matplotlib.pyplot as plt  # an extra, loaded where it is used

    overview = overview_of(obj)
    if ax is None:
        ax = plt.subplots(figsize=(8, 0.6 + 0.35 * min(packs, overview.packs)), layout="constrained")[1]
    shown = overview.spread(packs)
    for height, index in enumerate(shown):
        _bar(ax, overview.row(index), height)
    ax.set_yticks(range(len(shown)), [f"{overview.unit} {index:,}" for index in shown])
    ax.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    ax.set_xlim(0, overview.budget)
    ax.set_xlabel(f"slots ({overview.fill:.1%} hold a token)")
    ax.set_title(overview.title)
    return ax


def _bar(ax: Any, row: Row, height: int) -> None:
    runs = row.runs()
    colours = [f"C{run.document % 10}" if run.document >= 0 else "0.85" for run in runs]
    ax.broken_barh(
        [(run.start, run.slots) for run in runs], (height - 0.4, 0.8), color=colours, edgecolor="white", linewidth=0.5
    )
    learnt = [(run.start, run.slots) for run in row.target_runs() if run.target]
    ax.broken_barh(learnt, (height + 0.3, 0.1), color="black")

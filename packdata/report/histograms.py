"""Histograms of lengths and fills: counts, edges, bars and the words under them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64, Integer, Shaped

from .boxes import SIZE, Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bars and the words under them.

    Attributes:
        key: Name for machines.
        title: Heading.
        counts: Things in each bar.
        edges: Edges of the bars, one more than bars.
        boxes: The bars.
        ticks: Texts under the axis, evenly spaced.
    """

    key: str
    title: str
    counts: list[int]
    edges: list[int] | list[float]
    boxes: list[Box]
    ticks: list[str]


def length_histogram(lengths: Integer[np.ndarray, " spans"]) -> Histogram:
    """Count lengths in bars of equal ratio: lengths of documents spread over orders of magnitude."""
    longest = int(lengths.max(initial=1))
    edges = np.unique(np.geomspace(1, max(longest, 2) + 1, 33).round().astype(np.int64))
    counts = np.histogram(lengths, edges)[0]
    names = [f"lengths {a:,}–{b - 1:,}" if b - a > 1 else f"length {a:,}" for a, b in pairwise(edges.tolist())]
    middle = int(edges[len(edges) // 2])
    ticks = ["1", f"{middle:,}" if 1 < middle < longest else "", f"{longest:,} tokens"]
    return _histogram("lengths", "Documents by length, as packed", counts, edges, names, ticks, what="documents")


def fill_histogram(fills: Float64[np.ndarray, " packs"]) -> Histogram:
    """Count packs by fill, in bars of 5 %."""
    edges = np.arange(21) / 20
    counts = np.histogram(fills, edges)[0]
    names = [f"{a:.0%}–{b:.0%} full" for a, b in pairwise(edges.tolist())]
    return _histogram("fills", "Packs by fill", counts, edges, names, ["0 %", "50 %", "100 % full"], what="packs")


def _histogram(
    key: str,
    title: str,
    counts: Int64[np.ndarray, " bars"],
    edges: Shaped[np.ndarray, " edges"],
    names: list[str],
    ticks: list[str],
    *,
    what: str,
) -> Histogram:
    step, top = SIZE / len(counts), max(int(counts.max(initial=0)), 1)
    boxes = [
        Box(
            x=i * step + 1,
            width=step - 2,
            y=SIZE * (1 - count / top),
            height=SIZE * count / top,
            style="bar",
            title=f"{name}: {count:,} {what}",
        )
        for i, (count, name) in enumerate(zip(counts.tolist(), names, strict=True))
    ]
    return Histogram(key=key, title=title, counts=counts.tolist(), edges=edges.tolist(), boxes=boxes, ticks=ticks)

"""How long a block mask takes, and how much memory: from boundaries, against `create_block_mask`.

python recipes/benchmark_masks.py            # 49,152 slots against 16,384: needs 3 GB for the latter
python recipes/benchmark_masks.py --smoke
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packdata import document_block_mask, document_ids_from_lengths
from packdata.attention import refresh_block_mask
from packdata.layout import cu_seqlens_from_lengths


def draw_lengths(slots: int) -> np.ndarray:
    """Draw document lengths, log-normal with a median of 450, that add up to ``slots``."""
    lengths = np.random.Generator(np.random.Philox(0)).lognormal(np.log(450), 1, slots).astype(int) + 1
    ends = np.minimum(np.cumsum(lengths), slots)
    return np.diff(ends[: np.searchsorted(ends, slots) + 1], prepend=0)


def build_from_a_predicate(lengths: np.ndarray) -> BlockMask:
    """Build the mask as flex attention's documentation does: over all pairs of slots."""
    documents = torch.from_numpy(document_ids_from_lengths(lengths))

    def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (documents[query] == documents[key])

    return create_block_mask(mask_mod, 1, 1, len(documents), len(documents), device="cpu")


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_bytes() -> int:
    """Most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table_bytes(mask: BlockMask) -> int:
    """Memory of the mask's own tables."""
    return sum(table.nbytes for table in mask.as_tuple() if isinstance(table, torch.Tensor))


def main() -> int:
    """Measure; fail if a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=49_152)
    parser.add_argument("--eager-slots", type=int, default=16_384)
    parser.add_argument("--smoke", action="store_true", help="few slots, and a tenth of the ratio")
    arguments = parser.parse_args()
    slots, eager_slots, ratio = arguments.slots, arguments.eager_slots, 200
    if arguments.smoke:
        slots, eager_slots, ratio = 12_288, 4_096, 20

    torch.set_num_threads(1)  # threads that wait for each other measure how busy the machine is
    document_block_mask([0, 1_000])  # loads what torch loads once
    cu_seqlens = torch.from_numpy(cu_seqlens_from_lengths(draw_lengths(slots)))
    before = peak_bytes()
    mask = document_block_mask(cu_seqlens)
    above = peak_bytes() - before - table_bytes(mask)
    analytic = seconds(lambda: document_block_mask(cu_seqlens), 20)
    refresh = seconds(lambda: refresh_block_mask(mask, document_block_mask(cu_seqlens)), 20)
    before = peak_bytes()
    eager = seconds(lambda: build_from_a_predicate(draw_lengths(eager_slots)), 1 if eager_slots > 8_192 else 3)
    print(f"document_block_mask, {slots:,} slots: {1e3 * analytic:.1f} ms, {above / 2**20:.1f} MB above its tables")
    print(f"built anew and copied into a fixed mask: {1e3 * refresh:.1f} ms")
    print(
        f"create_block_mask, {eager_slots:,} slots: {1e3 * eager:.0f} ms, {(peak_bytes() - before) / 2**20:.0f} MB more"
    )
    print(f"1/{eager / analytic:.0f} of the time (at most 1/{ratio}), {above / 2**20:.1f} MB (at most 64)")
    return int(analytic * ratio > eager or above > 64 * 2**20)


if __name__ == "__main__":
    sys.exit(main())

"""Which ways of calling a model keep documents apart, for each attention implementation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from packdata.attention.dense import document_mask
from packdata.attention.kwargs import BACKENDS, attention_kwargs, layer_windows
from packdata.batches.collator import PackingCollator
from packdata.batches.dialects import to_transformers
from packdata.batches.packed_batch import PackedBatch

from .isolation import check_isolation
from .report import IsolationReport

Inputs = Callable[[PackedBatch], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWay:
    """One way of calling a model with one attention implementation, and what came of it."""

    implementation: str
    way: str
    report: IsolationReport


def ways_to_call(implementation: str, config: Any) -> dict[str, Inputs]:
    """List the ways in which packed batches are handed to a transformers model, safe and unsafe.

    Args:
        implementation: The model's attention implementation, ``"sdpa"``.
        config: The model's config.

    Returns:
        For each way its ``inputs`` function, by a short description.
    """
    backend = BACKENDS[implementation]
    window = None if backend == "flash" else layer_windows(config)

    def positions(batch: PackedBatch) -> dict[str, Any]:
        return {"input_ids": batch.input_ids, "position_ids": batch.position_ids}

    ways: dict[str, Inputs] = {
        "to_transformers(batch)": to_transformers,
        "to_transformers(batch, seq_idx=True)": lambda batch: to_transformers(batch, seq_idx=True),
        f'position_ids, attention_kwargs(backend="{backend}")': lambda batch: {
            **positions(batch),
            **attention_kwargs(batch, backend=backend, window=window),
        },
        "position_ids, use_cache=False": lambda batch: {**positions(batch), "use_cache": False},
        "position_ids": positions,
        "to_transformers(batch), attention_mask of ones": lambda batch: {
            **to_transformers(batch),
            "attention_mask": torch.ones_like(batch.input_ids),
        },
    }
    if backend in ("eager", "sdpa"):
        ways["to_transformers(batch), 4-D bool mask"] = lambda batch: {
            **to_transformers(batch),
            "attention_mask": document_mask(batch.cu_seqlens, rows=batch.input_ids.shape[0]),
        }
    return ways


def check_ways(
    make_model: Callable[[str], Any],
    *,
    implementations: Iterable[str] = ("eager", "sdpa", "flex_attention"),
    lengths: Sequence[int] = (6, 9, 6, 9),
) -> Iterator[CheckedWay]:
    """Check every way of calling a model with every attention implementation.

    Args:
        make_model: From an attention implementation to a model (:func:`model_maker`).
        implementations: Names of attention implementations, as transformers has them.
        lengths: Tokens of the documents that are packed for the check. Flex attention compiles for every length.

    Yields:
        A row for each, as soon as it is known. A model that cannot take the implementation is one row, which says so in
        the model's own words.

    Raises:
        ValueError: If an implementation is unknown.
    """
    for implementation in implementations:
        if implementation not in BACKENDS:
            raise ValueError(f"implementations must be among {', '.join(BACKENDS)}, got {implementation!r}")
        try:
            model = make_model(implementation)
        except (ImportError, ValueError) as error:
            refusal = IsolationReport(verdict="refuses", message=f"{type(error).__name__}: {error}")
            yield CheckedWay(implementation=implementation, way="every way", report=refusal)
            continue
        batch = _random_batch(lengths, model.config.get_text_config().vocab_size)
        for way, inputs in ways_to_call(implementation, model.config).items():
            torch.compiler.reset()  # flex attention on a CPU fails to compile for a second kind of mask
            report = check_isolation(model, batch, inputs=inputs)
            yield CheckedWay(implementation=implementation, way=way, report=report)


def _random_batch(lengths: Sequence[int], vocabulary: int) -> PackedBatch:
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(3, vocabulary, (length,), generator=generator) for length in lengths]
    batch: PackedBatch = PackingCollator(pad_to=sum(lengths) + 9)([{"input_ids": ids} for ids in documents])
    return batch

"""What to pass to a model or an attention function, by backend."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from packdata.attention.dense import document_mask

if TYPE_CHECKING:
    from packdata.batches import PackedBatch

Backend = Literal["eager", "sdpa", "flex", "flash", "varlen"]


def attention_kwargs(batch: "PackedBatch", *, backend: Backend = "sdpa") -> dict[str, Any]:
    """Say in a backend's own words which slots of a batch attend to which.

    Args:
        batch: The packed batch.
        backend: The attention implementation of the model.

    Returns:
        Keyword arguments for a transformers model: ``attention_mask`` for eager (float32: 0 where a query attends,
        the lowest number elsewhere, since transformers adds it) and SDPA (bool, True = attend).

    Raises:
        ValueError: If the backend is unknown.
    """
    rows, slots = batch["input_ids"].shape
    mask = document_mask(batch["cu_seqlens"], rows=rows, slots=slots)
    if backend == "sdpa":
        return {"attention_mask": mask}
    if backend == "eager":
        return {"attention_mask": additive_mask(mask)}
    raise ValueError(f"backend must be 'eager' or 'sdpa', got {backend!r}")


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn True = attend into the number that is added to the attention scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)

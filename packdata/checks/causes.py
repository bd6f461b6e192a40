"""Why documents leak: mend one suspect after the other until the leak is gone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from packdata.attention.kwargs import BACKENDS, additive_mask, attention_kwargs, layer_windows
from packdata.batches.packed_batch import PackedBatch

from .calls import Refusal
from .report import Leak

Repair = Callable[[dict[str, Any]], dict[str, Any]]
Suspect = tuple[str, Repair]


def find_cause(
    model: Callable[..., Any],
    batch: PackedBatch,
    kwargs: Mapping[str, Any],
    leaks: Sequence[Leak],
    leaks_after: Callable[[Repair], Sequence[Leak]],
) -> str:
    """Name the causes of a leak, each with its remedy.

    What stands in the arguments is proved: the named repairs together end the leak, or most of it where layers that
    carry state leak as well.

    Args:
        model: The model.
        batch: The batch.
        kwargs: What the model was called with.
        leaks: What was found.
        leaks_after: Calls the model with mended arguments and says what still leaks.
    """
    suspects = _suspects(kwargs, batch)
    for count in range(1, len(suspects) + 1):
        if _after(suspects[:count], leaks_after) == []:
            return _texts(suspects[:count])
    mask = _mask_for(model, batch)
    if mask is not None and _after([("", lambda kwargs: kwargs | mask)], leaks_after) == []:
        return "no document mask reaches the attention: hand the model attention_kwargs(batch, backend=...)"
    layers = _stateful_layers(model)
    if layers:
        helped = _some_shrink(leaks, _after(suspects, leaks_after))
        stateful = _stateful_cause(layers, batch, leaks_after)
        return f"{_texts(suspects)}; {stateful}" if helped else stateful
    if any(leak.source > leak.target for leak in leaks):
        return "attention in both directions without a document mask: hand it attention_kwargs(batch, causal=False)"
    return "nothing tells the model where documents begin: hand it attention_kwargs(batch, backend=...)"


def _suspects(kwargs: Mapping[str, Any], batch: PackedBatch) -> list[Suspect]:
    mask = kwargs.get("attention_mask")
    found: list[Suspect] = []
    if isinstance(mask, Tensor) and mask.ndim == 2:
        text = "the 2-D attention_mask keeps transformers from finding documents in position_ids: leave it out"
        found.append((text, _without("attention_mask")))
    if isinstance(mask, Tensor) and mask.ndim == 4 and (not mask.is_floating_point() or bool((mask >= 0).all())):
        text = "eager attention adds the attention_mask of ones and zeros to the scores: give it as 0 and -inf"
        found.append((f"{text} (attention_kwargs(batch, backend='eager'))", _with("attention_mask", _as_numbers)))
    if kwargs.get("use_cache") is not False:
        text = "use_cache is on (the config's default), which keeps transformers from finding documents in position_ids"
        found.append((f"{text}: pass use_cache=False", _with("use_cache", lambda _: False)))
    positions = kwargs.get("position_ids")
    if not isinstance(positions, Tensor) or not torch.equal(positions.cpu(), batch.position_ids.cpu()):
        text = "position_ids do not restart at each document: pass the batch's"
        found.append((text, _with("position_ids", lambda _: batch.position_ids)))
    return found


def _texts(suspects: Sequence[Suspect]) -> str:
    return "; ".join(text for text, _ in suspects)


def _without(name: str) -> Repair:
    return lambda kwargs: {key: value for key, value in kwargs.items() if key != name}


def _with(name: str, change: Callable[[Any], Any]) -> Repair:
    return lambda kwargs: {**kwargs, name: change(kwargs.get(name))}


def _as_numbers(mask: Tensor) -> Tensor:
    return additive_mask(mask.bool())


def _after(suspects: Sequence[Suspect], leaks_after: Callable[[Repair], Sequence[Leak]]) -> list[Leak] | None:
    """What leaks once all suspects are mended; None if the model does not take the mended arguments."""

    def repair(kwargs: dict[str, Any]) -> dict[str, Any]:
        for _, step in suspects:
            kwargs = step(kwargs)
        return kwargs

    try:
        return list(leaks_after(repair))
    except (Refusal, ValueError):
        return None


def _some_shrink(leaks: Sequence[Leak], remaining: Sequence[Leak] | None) -> bool:
    """Whether mending made one of the leaks much smaller."""
    if remaining is None:
        return False
    left = {(leak.source, leak.target): leak.difference for leak in remaining}
    tried = {leak.source for leak in remaining}
    return any(
        left.get((leak.source, leak.target), 0.0) < leak.difference / 10 for leak in leaks if leak.source in tried
    )


def _stateful_layers(model: Callable[..., Any]) -> list[str]:
    """Name the kinds of layers that carry something along the row other than by attention."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return sorted({type(module).__name__ for module in modules if _is_stateful(module)})


def _is_stateful(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase) or any(isinstance(child, nn.Conv1d) for child in module.children()):
        return True
    return any(name in ("A_log", "time_decay") for name, _ in module.named_parameters(recurse=False))


def _stateful_cause(layers: list[str], batch: PackedBatch, leaks_after: Callable[[Repair], Sequence[Leak]]) -> str:
    carry, ignore = ("carries", "ignores") if len(layers) == 1 else ("carry", "ignore")
    text = f"{' and '.join(layers)} {carry} state from slot to slot (a convolution or scan) past the end of a document"
    seq_idx = batch.document_ids.to(torch.int32)
    try:
        leaking = leaks_after(_with("seq_idx", lambda _: seq_idx))
    except Refusal as refusal:
        return f"{text}; with seq_idx the model refuses: {refusal}"
    if leaking:
        return f"{text}, and {ignore} seq_idx on this machine: train such a model on one document a row"
    return f"{text} unless told: pass to_transformers(batch, seq_idx=True)"


def _mask_for(model: Callable[..., Any], batch: PackedBatch) -> dict[str, Any] | None:
    config = getattr(model, "config", None)
    backend = BACKENDS.get(getattr(config, "_attn_implementation", ""))
    if backend is None:
        return None
    window = None if backend == "flash" else layer_windows(config)
    return attention_kwargs(batch, backend=backend, window=window)

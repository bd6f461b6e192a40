"""Reading hidden states out of a running model, by hooks that are gone when the block ends."""

from collections.abc import Callable, Sequence
from numbers import Integral
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from packdata.drafting.layers import check_layer, find_decoder

Layer = int | str


class HiddenStateCapture:
    """A context manager that keeps the hidden states of chosen layers from the model's latest forward.

    Args:
        model: The target model.
        layers: Which layers, in the order wanted: numbers as ``at`` counts them, or names of modules
            (``"model.layers.3"``).
        at: ``"output"`` or ``"input"`` of each layer, or transformers' ``hidden_states[i]`` (``"hf_index"``, numbers
            only; not the last one, which is post-norm). `convert_layer` translates.
        last_hidden: Whether to keep the states after the last layer too, before (``"pre_norm"``) or after
            (``"post_norm"``) the final norm.

    Attributes:
        last_hidden_norm: ``last_hidden`` as given: which of the two that tensor is.

    Raises:
        ValueError: If a layer is unknown or asked for twice, or none is asked for.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 5))
        >>> with HiddenStateCapture(model, ["1", "0"]) as capture:
        ...     logits = model(torch.ones(1, 3, 2))
        >>> list(capture.states), capture.hidden_states.shape
        (['1', '0'], torch.Size([1, 3, 4]))
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        *,
        at: Literal["output", "input", "hf_index"] = "output",
        last_hidden: Literal["pre_norm", "post_norm"] | None = None,
    ) -> None:
        if at not in ("output", "input", "hf_index"):
            raise ValueError(f'at must be "output", "input" or "hf_index", got {at!r}')
        if last_hidden not in (None, "pre_norm", "post_norm"):
            raise ValueError(f'last_hidden must be "pre_norm", "post_norm" or None, got {last_hidden!r}')
        self.last_hidden_norm = last_hidden
        self._model = model
        self._at = at
        self._modules = _resolve_layers(model, layers, at)
        if last_hidden is not None:
            decoder, stack = find_decoder(model)
            self._last_module = decoder if last_hidden == "post_norm" else stack[-1]
        self._handles: list[RemovableHandle] = []
        self._states: dict[Layer, Tensor] = {}
        self._last_hidden: Tensor | None = None

    def __enter__(self) -> "HiddenStateCapture":
        if self._handles:
            raise RuntimeError("this HiddenStateCapture is already active: make another one")
        self._handles.append(self._model.register_forward_pre_hook(self._forget))
        for layer, module in self._modules.items():
            if self._at == "output":
                self._handles.append(module.register_forward_hook(self._keep_output(layer)))
            else:
                self._handles.append(module.register_forward_pre_hook(self._keep_input(layer), with_kwargs=True))
        if self.last_hidden_norm is not None:
            self._handles.append(self._last_module.register_forward_hook(self._keep_last))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    @property
    def states(self) -> dict[Layer, Tensor]:
        """The states of each layer in the requested order, ``(R, S, H)`` each, not copied.

        Raises:
            RuntimeError: If no forward has finished since the block began, or it left a layer out.
        """
        missing = [layer for layer in self._modules if layer not in self._states]
        if missing:
            raise RuntimeError(f"no hidden states of layers {missing} yet: run the model inside the with block first")
        return {layer: self._states[layer] for layer in self._modules}

    @property
    def hidden_states(self) -> Tensor:
        """All layers side by side in the requested order, shape ``(R, S, K * H)``, a new tensor."""
        return torch.cat(list(self.states.values()), dim=-1)

    @property
    def last_hidden(self) -> Tensor:
        """The states after the last layer, shape ``(R, S, H)``; ``last_hidden_norm`` says which."""
        if self._last_hidden is None:
            raise RuntimeError("no last_hidden: ask for it by last_hidden=..., and run the model inside the with block")
        return self._last_hidden

    def _forget(self, module: nn.Module, args: Any) -> None:
        self._states.clear()
        self._last_hidden = None

    def _keep_output(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._states[layer] = _first_tensor(output)

        return hook

    def _keep_input(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            self._states[layer] = args[0] if args else kwargs["hidden_states"]

        return hook

    def _keep_last(self, module: nn.Module, args: Any, output: Any) -> None:
        self._last_hidden = _first_tensor(output)


def _first_tensor(output: Any) -> Tensor:
    """A layer returns its states, or a tuple or mapping that begins with them."""
    return output if isinstance(output, Tensor) else output[0]


def _resolve_layers(
    model: nn.Module, layers: Sequence[Layer], at: Literal["output", "input", "hf_index"]
) -> dict[Layer, nn.Module]:
    if len(layers) == 0:
        raise ValueError("layers must name at least one layer, got none")
    modules: dict[Layer, nn.Module] = {}
    for layer in layers:
        module = _resolve_layer(model, layer, at)
        if any(module is other for other in modules.values()):
            raise ValueError(f"layers must not repeat, got layer {layer!r} twice in {list(layers)}")
        modules[layer] = module
    return modules


def _resolve_layer(model: nn.Module, layer: Any, at: Literal["output", "input", "hf_index"]) -> nn.Module:
    if isinstance(layer, str):
        if at == "hf_index":
            raise ValueError(f'layers counted by at="hf_index" must be numbers, got the name {layer!r}')
        try:
            return model.get_submodule(layer)
        except AttributeError as error:
            raise ValueError(f"layers must be modules of {type(model).__name__}, got {layer!r}: {error}") from None
    if isinstance(layer, bool) or not isinstance(layer, Integral):
        raise ValueError(f"layers must be numbers or module names, got {layer!r}")
    stack = find_decoder(model)[1]
    check_layer(int(layer), at, len(stack))
    return stack[int(layer)]

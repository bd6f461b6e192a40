"""Layer numbers: the same states go by three numbers, and one of them is a trap.

For a stack of ``n`` decoder layers (0 … n − 1), the states between layers are called:

    =====================  ==========  =========  ==========  ========
    state                  "output"    "input"    "hf_index"  "vllm"
    =====================  ==========  =========  ==========  ========
    embeddings             none        0          0           0
    after layer i          i           i + 1      i + 1       i + 1
    after the last layer   n − 1       none       none        n
    =====================  ==========  =========  ==========  ========

``hidden_states[n]`` of transformers is *not* the output of the last layer: it has been through the final norm. vLLM
counts how many layers have run (``aux_hidden_state_layers``).
"""

from typing import Any, Literal

from torch import nn

LayerNumber = Literal["output", "input", "hf_index", "vllm"]

_LAYERS_RUN = {"output": 1, "input": 0, "hf_index": 0, "vllm": 0}


def convert_layer(layer: int, *, source: LayerNumber, to: LayerNumber, num_layers: int) -> int:
    """Give a layer's number in another way of counting.

    Args:
        layer: The number, counted as ``source`` says.
        source: ``"output"`` of layer i, ``"input"`` of layer i, transformers' ``hidden_states[i]`` (``"hf_index"``),
            or after i layers (``"vllm"``).
        to: How to count instead.
        num_layers: Decoder layers of the model.

    Returns:
        The number of the same state.

    Raises:
        ValueError: If there is no such state, or it has no such number: the embeddings are the output of no layer,
            and the last layer's output before the final norm is not among transformers' ``hidden_states``.

    Example:
        >>> convert_layer(1, source="output", to="hf_index", num_layers=4)
        2
    """
    for name, value in (("source", source), ("to", to)):
        if value not in _LAYERS_RUN:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, _LAYERS_RUN))}, got {value!r}")
    check_layer(layer, source, num_layers)
    converted = layer + _LAYERS_RUN[source] - _LAYERS_RUN[to]
    check_layer(converted, to, num_layers, described=f"layer {layer} counted as {source!r} has no number as {to!r}: ")
    return converted


def check_layer(layer: Any, at: LayerNumber, num_layers: int, *, described: str = "") -> None:
    """Raise unless ``layer`` is the number of a state between layers."""
    if isinstance(layer, bool) or not hasattr(layer, "__index__"):
        raise ValueError(f"layers must be numbers, got {layer!r}")
    last = num_layers if at == "vllm" else num_layers - 1
    if 0 <= layer <= last:
        return
    hint = ""
    if at == "hf_index" and layer == num_layers:
        hint = (
            f"; hidden_states[{num_layers}] is post-norm and must not be mixed with the pre-norm states of the other "
            f'layers: ask for last_hidden="post_norm" instead'
        )
    raise ValueError(
        f"{described}layers counted as {at!r} must be from 0 to {last} for {num_layers} layers, got {layer}{hint}"
    )


def find_decoder(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Find a model's decoder and its stack of layers.

    The stack is the outermost ``ModuleList`` of ``num_hidden_layers`` modules, where the model's config says how many;
    the decoder is the module that holds it, and returns the states after the final norm.

    Args:
        model: A transformers model, bare or wrapped, or any other module.

    Returns:
        ``(decoder, layers)``.

    Raises:
        ValueError: If there is no such stack.
    """
    get_decoder: Any = getattr(model, "get_decoder", None)
    root: nn.Module = model if get_decoder is None else get_decoder()  # without encoders and vision towers
    stacks = [(name, module) for name, module in root.named_modules() if isinstance(module, nn.ModuleList)]
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        count = config.get_text_config().num_hidden_layers
        stacks = [(name, stack) for name, stack in stacks if len(stack) == count]
    if not stacks:
        raise ValueError(f"{type(model).__name__} has no nn.ModuleList of decoder layers to number")
    name, stack = min(stacks, key=lambda found: (found[0].count("."), -len(found[1])))
    return root.get_submodule(name.rpartition(".")[0]), stack

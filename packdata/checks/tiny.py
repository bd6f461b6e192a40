"""Tiny models of any architecture that transformers knows: what isolates depends on the code, not on the weights."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": 4,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    # state-space and linear-attention layers
    "state_size": 8,
    "num_heads": 8,
    "n_groups": 2,
    "chunk_size": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    # other names of the above
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
}


def tiny_config(name: str) -> Any:
    """Make a config of a transformers config class, small enough for a test.

    Args:
        name: Name of the class, ``"LlamaConfig"``.

    Returns:
        A config whose layers alternate between the kinds that the architecture has.

    Raises:
        ValueError: If transformers has no such config class, or no causal language model for it.
    """
    import transformers

    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PretrainedConfig):
        raise ValueError(f"model must be a config class of transformers or a local folder, got {name!r}")
    if kind not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{name} has no causal language model in transformers; take its text config")
    default = kind()
    small = {key: value for key, value in _SMALL.items() if getattr(default, key, None) is not None}
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if kinds:
        small |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    if "mamba_n_heads" in small:
        small["attn_layer_indices"] = [1]
    return kind(**small)


def model_maker(model: str, *, dtype: torch.dtype = torch.float32) -> Callable[[str], Any]:
    """Say how to make a model with a given attention implementation.

    Args:
        model: A config class of transformers, made tiny with random weights, or the folder of a saved model.
        dtype: Floating-point type of the weights.

    Returns:
        A function from an attention implementation (``"eager"``, ``"sdpa"``, ``"flex_attention"``, …) to the model.

    Raises:
        ValueError: If ``model`` is neither.
    """
    from transformers import AutoModelForCausalLM

    if Path(model).is_dir():
        return lambda implementation: AutoModelForCausalLM.from_pretrained(
            model, attn_implementation=implementation, dtype=dtype
        )
    config = tiny_config(model)

    def make(implementation: str) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            # a model keeps the config it is given and changes its attention, so that every one needs its own
            made = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=implementation)
        return made.to(dtype)

    return make

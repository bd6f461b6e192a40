"""Tiny models of any architecture that transformers knows: what isolates depends on the code, not on the weights."""

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# What the many configs call their sizes. A class gets those that it knows.
_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 32,
    "n_embd": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "sliding_window": 4,
    "attention_window_size": 4,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    # state-space and linear-attention layers, and where attention comes between them
    "state_size": 8,
    "ssm_state_size": 8,
    "num_heads": 8,
    "n_groups": 2,
    "chunk_size": 8,
    "lru_width": 32,
    "n_mamba_heads": 8,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 8,
    "mamba_head_dim": 8,
    "mamba_d_state": 8,
    "mamba_d_ssm": 64,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "block_types": ("recurrent", "attention"),
    "attn_layer_indices": [1],
    "full_attn_idxs": [1],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "block_multiple_of": 16,
}

# Multi-head latent attention has sizes of its own, and a key and value for every head.
_SMALL_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}


def tiny_config(name: str) -> Any:
    """Make a config of a transformers config class, small enough for a test.

    Args:
        name: Name of the class, ``"LlamaConfig"``.

    Returns:
        A config with one layer of each kind that the architecture has, or two.

    Raises:
        ValueError: If transformers has no such config class, or no causal language model for it.
    """
    import transformers

    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedConfig):
        raise ValueError(f"model must be a config class of transformers or a local folder, got {name!r}")
    if kind not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{name} has no causal language model in transformers; perhaps its text config has")
    known = inspect.signature(kind).parameters
    sizes = _SMALL | (_SMALL_LATENT if "kv_lora_rank" in known else {})
    small = {key: value for key, value in sizes.items() if key in known}
    for key in {"layer_types", "layers_block_type"} & set(known):
        kinds = list(dict.fromkeys(getattr(kind(), key) or ()))
        if len(kinds) > 1:
            small |= {key: kinds, "num_hidden_layers": len(kinds)}
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
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    if Path(model).is_dir():
        return lambda implementation: auto.from_pretrained(model, attn_implementation=implementation, dtype=dtype)
    config = tiny_config(model)

    def make(implementation: str) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            # a model keeps the config it is given and changes its attention, so that every one needs its own
            made = auto.from_config(copy.deepcopy(config), attn_implementation=implementation)
        return made.to(dtype)

    return make

"""Captured states are those that transformers returns, and nothing of the hooks stays behind."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM as AutoModel
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, Qwen3Config

from packdata.drafting import HiddenStateCapture, convert_layer

LAYERS = 3
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
CONFIGS = {
    "qwen3": Qwen3Config(**SIZES, intermediate_size=32, num_key_value_heads=1, head_dim=8),
    "llama": LlamaConfig(**SIZES, intermediate_size=32),
    "gpt2": GPT2Config(vocab_size=50, n_embd=16, n_layer=LAYERS, n_head=2, bos_token_id=0, eos_token_id=0),
    "gpt_neox": GPTNeoXConfig(**SIZES, intermediate_size=32),
}
IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
MASKS = {"right": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), "left": torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    return AutoModel.from_config(copy.deepcopy(CONFIGS[request.param])).eval()


@pytest.fixture(params=MASKS)
def inputs(request):
    mask = MASKS[request.param]
    return {"input_ids": IDS if request.param == "right" else IDS.flip(1), "attention_mask": mask, "use_cache": False}


def hooks_of(model):
    return [
        hook
        for module in model.modules()
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    ]


def blocks_of(model):
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == LAYERS)


@torch.no_grad()
def test_states_between_layers_are_those_that_transformers_returns(model, inputs):
    expected = model(**inputs, output_hidden_states=True).hidden_states
    before = hooks_of(model)
    captures = {
        "output": HiddenStateCapture(model, [1, 0], at="output"),
        "input": HiddenStateCapture(model, [2, 1], at="input"),
        "hf_index": HiddenStateCapture(model, [2, 1], at="hf_index"),
    }
    for at, capture in captures.items():
        with capture:
            model(**inputs)
        assert hooks_of(model) == before
        assert torch.equal(capture.hidden_states, torch.cat([expected[2], expected[1]], -1)), at
        assert list(capture.states) == ([1, 0] if at == "output" else [2, 1])
    with HiddenStateCapture(model, [0], at="input") as embeddings:
        model(**inputs)
    assert torch.equal(embeddings.hidden_states, expected[0])


@torch.no_grad()
def test_last_hidden_is_before_or_after_the_final_norm_as_asked(model, inputs):
    expected = model(**inputs, output_hidden_states=True).hidden_states[-1]
    with HiddenStateCapture(model, [LAYERS - 1], last_hidden="post_norm") as after:
        model(**inputs)
    with HiddenStateCapture(model, [0], last_hidden="pre_norm") as before:
        model(**inputs)
    assert torch.equal(after.last_hidden, expected)
    assert torch.equal(before.last_hidden, after.hidden_states)
    assert not torch.allclose(before.last_hidden, after.last_hidden)
    assert (before.last_hidden_norm, after.last_hidden_norm) == ("pre_norm", "post_norm")


@torch.no_grad()
def test_only_the_latest_forward_is_kept(model):
    with HiddenStateCapture(model, [1]) as capture:
        model(IDS[:, :2])
        model(IDS[:1])
    assert capture.hidden_states.shape == (1, 4, 16)


@torch.no_grad()
def test_an_exception_leaves_no_hook_and_no_half_of_a_forward(model):
    before = hooks_of(model)
    capture = HiddenStateCapture(model, [0, 2])
    broken = blocks_of(model)[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division by zero"), capture:
        model(IDS)
    broken.remove()
    assert hooks_of(model) == before
    with pytest.raises(
        RuntimeError, match=r"no hidden states of layers \[2\] yet: run the model inside the with block"
    ):
        capture.hidden_states  # noqa: B018


def test_layers_may_go_by_the_names_of_their_modules():
    model = AutoModel.from_config(copy.deepcopy(CONFIGS["qwen3"])).eval()
    with HiddenStateCapture(model, ["model.layers.2", "model.layers.0"]) as by_name:
        model(IDS)
    with HiddenStateCapture(model, [2, 0]) as by_number:
        model(IDS)
    assert torch.equal(by_name.hidden_states, by_number.hidden_states)


def test_a_wrapped_model_and_a_layer_that_takes_keywords_are_read_too():
    class Block(nn.Module):
        def forward(self, hidden_states):
            return (hidden_states + 1, "more")

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.inner.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for block in self.inner.blocks:
                x, _ = block(hidden_states=x)
            return x

    model = Wrapped()
    for at, expected in (("input", 1.0), ("output", 2.0)):
        with HiddenStateCapture(model, [1], at=at) as capture:
            model(torch.zeros(1, 2, 3))
        assert torch.equal(capture.hidden_states, torch.full((1, 2, 3), expected))


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, r"layers must name at least one layer"),
        ([1, 1], {}, r"layers must not repeat, got layer 1 twice in \[1, 1\]"),
        ([1, "model.layers.1"], {}, r"must not repeat, got layer 'model.layers.1' twice"),
        ([3], {}, r"layers counted as 'output' must be from 0 to 2 for 3 layers, got 3$"),
        ([-1], {}, r"must be from 0 to 2 for 3 layers, got -1"),
        ([3], {"at": "hf_index"}, r"hidden_states\[3\] is post-norm and must not be mixed.*last_hidden=\"post_norm\""),
        (["model.layer.1"], {}, r"layers must be modules of Qwen3ForCausalLM, got 'model.layer.1'"),
        (["model.layers.1"], {"at": "hf_index"}, r'counted by at="hf_index" must be numbers, got the name'),
        ([True], {}, r"layers must be numbers or module names, got True"),
        ([1.0], {}, r"layers must be numbers or module names, got 1.0"),
        ([1], {"at": "after"}, r'at must be "output", "input" or "hf_index", got \'after\''),
        ([1], {"last_hidden": True}, r'last_hidden must be "pre_norm", "post_norm" or None, got True'),
    ],
)
def test_wrong_layers_are_refused(layers, options, message):
    with pytest.raises(ValueError, match=message):
        HiddenStateCapture(AutoModel.from_config(copy.deepcopy(CONFIGS["qwen3"])), layers, **options)


def test_a_model_without_a_stack_of_layers_needs_names():
    with pytest.raises(ValueError, match=r"Linear has no nn.ModuleList of decoder layers to number"):
        HiddenStateCapture(nn.Linear(2, 2), [0])


def test_what_was_not_captured_is_not_given():
    model = AutoModel.from_config(copy.deepcopy(CONFIGS["llama"]))
    with HiddenStateCapture(model, [0]) as capture:
        with pytest.raises(RuntimeError, match=r"no hidden states of layers \[0\] yet"):
            capture.states  # noqa: B018
        model(IDS)
        with pytest.raises(RuntimeError, match=r"no last_hidden: ask for it by last_hidden="):
            capture.last_hidden  # noqa: B018
        with pytest.raises(RuntimeError, match=r"already active"), capture:
            pass


@pytest.mark.parametrize(
    ("layer", "source", "to", "expected"),
    [
        (1, "output", "hf_index", 2),
        (1, "output", "input", 2),
        (1, "output", "vllm", 2),
        (3, "output", "vllm", 4),
        (2, "hf_index", "output", 1),
        (0, "vllm", "hf_index", 0),
        (4, "vllm", "output", 3),
    ],
)
def test_layer_numbers_are_translated(layer, source, to, expected):
    assert convert_layer(layer, source=source, to=to, num_layers=4) == expected


@pytest.mark.parametrize(
    ("layer", "source", "to", "message"),
    [
        (3, "output", "hf_index", r"layer 3 counted as 'output' has no number as 'hf_index'.*post-norm"),
        (0, "input", "output", r"layer 0 counted as 'input' has no number as 'output'"),
        (4, "output", "vllm", r"layers counted as 'output' must be from 0 to 3 for 4 layers, got 4"),
        (0.5, "output", "vllm", r"layers must be numbers, got 0.5"),
        (0, "after", "vllm", r"source must be one of 'output', 'input', 'hf_index', 'vllm', got 'after'"),
    ],
)
def test_a_state_without_such_a_number_is_refused(layer, source, to, message):
    with pytest.raises(ValueError, match=message):
        convert_layer(layer, source=source, to=to, num_layers=4)

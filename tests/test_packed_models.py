"""Packed documents give the logits, losses and gradients that they give alone, through real (tiny) models."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata import PackingCollator, attention_kwargs, to_transformers
from packdata.attention import layer_windows
from packdata.checks import model_maker

VOCABULARY = 96
# Qwen3 without a window, Gemma 2 with a sliding window and softcaps (no SDPA), Gemma 3 with a sliding window and SDPA.
MODELS = {
    ("LlamaConfig", "eager"),
    ("LlamaConfig", "sdpa"),
    ("Qwen3Config", "eager"),
    ("Qwen3Config", "sdpa"),
    ("Gemma2Config", "eager"),
    ("Gemma3TextConfig", "sdpa"),
}
WAYS = {
    "to_transformers alone": lambda batch, model, backend: to_transformers(batch),
    "packdata's masks": lambda batch, model, backend: {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        **attention_kwargs(batch, backend=backend, window=layer_windows(model.config)),
    },
}


@pytest.fixture(scope="module")
def models():
    return {(name, backend): model_maker(name)(backend).eval() for name, backend in sorted(MODELS)}


def documents_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in lengths]


def collate(documents, **options):
    return PackingCollator(**options)([{"input_ids": ids} for ids in documents])


def losses_of_documents(model, batch, inputs):
    logits = model(**{key: value for key, value in inputs.items() if key != "labels"}).logits
    losses = F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten(), reduction="none")
    return batch.document_sums(losses.view_as(batch.targets))


def losses_one_by_one(model, documents):
    losses = []
    for ids in documents:
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        losses.append(F.cross_entropy(logits[:-1].float(), ids[1:], reduction="sum"))
    return torch.stack(losses)


@settings(max_examples=12)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "backend"), sorted(MODELS))
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    padding=st.integers(0, 9),
    layout=st.sampled_from(["stream", "rows"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed_losses_equal_those_one_by_one(models, name, backend, way, lengths, padding, layout, seed):
    model, documents = models[name, backend], documents_of(lengths, seed)
    width = padding + (max(lengths) if layout == "rows" else sum(lengths))
    batch = collate(documents, layout=layout, pad_to=width)
    with torch.no_grad():
        packed = losses_of_documents(model, batch, WAYS[way](batch, model, backend))
        torch.testing.assert_close(packed, losses_one_by_one(model, documents), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "backend"), sorted(MODELS))
def test_packed_gradients_equal_those_one_by_one(models, name, backend, way):
    model, documents = models[name, backend], documents_of([5, 7, 1, 9])
    batch = collate(documents, pad_to=30)
    parameters = list(model.parameters())
    packed = torch.autograd.grad(losses_of_documents(model, batch, WAYS[way](batch, model, backend)).sum(), parameters)
    alone = torch.autograd.grad(losses_one_by_one(model, documents).sum(), parameters)
    for got, expected in zip(packed, alone, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:_compile flag:DeprecationWarning"
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["LlamaConfig", "Qwen3Config", "Gemma2Config", "Gemma3TextConfig"])
def test_flex_attention_gives_the_logits_of_each_document(name, way):
    # Uncompiled: the predicate decides. That the compiled kernel follows the tables is tested with the block masks.
    model, documents = model_maker(name)("flex_attention").eval(), documents_of([5, 7, 1, 9])
    batch = collate(documents, pad_to=30)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        logits = model(**WAYS[way](batch, model, "flex")).logits
        for packed, ids in zip(batch.unpack(logits), documents, strict=True):
            alone = model(input_ids=ids[None], use_cache=False).logits[0]
            torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["LlamaConfig", "Qwen3Config"])
def test_flex_attention_gives_the_gradients_of_each_document(name):
    model = model_maker(name)("flex_attention").cuda()
    documents = [ids.cuda() for ids in documents_of([50, 70, 1, 90])]
    batch = collate([ids.cpu() for ids in documents], pad_to=256).to("cuda")
    parameters = list(model.parameters())
    inputs = WAYS["packdata's masks"](batch, model, "flex")
    packed = torch.autograd.grad(losses_of_documents(model, batch, inputs).sum(), parameters)
    alone = torch.autograd.grad(losses_one_by_one(model, documents).sum(), parameters)
    for got, expected in zip(packed, alone, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)

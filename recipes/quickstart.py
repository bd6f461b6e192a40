"""Real text through the whole trip: documents, plan, packed batches, model, the head on targets only, loss.

Trains a tiny, randomly initialised Qwen3-style model for about a minute on Python's own help topics, and measures what
packing gave: the share of wasted slots and the tokens per second against padded batches, and the packed loss against
the loss of the same documents one by one (they must agree, or the recipe fails).
"""

import argparse
import itertools
import statistics
import time

import datasets
import numpy as np
import tokenizers
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

import packdata
from packdata.kernels.registry import kernel_registry
from packdata.losses import LossSum, loss_scale
from packdata.sources.topics import topic_paragraphs

BUDGET = 2048
BUCKETS = (32, 64, 128, 256, 512, 1024)
pack = kernel_registry.get_op("pack")


def read_documents(vocabulary: int) -> packdata.Documents:
    """Make one document of each paragraph: its topic's name as a prompt, its text as what is to be learnt."""
    paragraphs = topic_paragraphs()
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator((part for _, part in paragraphs), vocab_size=vocabulary, show_progress=False)
    prompts = [tokenizer.encode(f"{name}: ").ids for name, _ in paragraphs]
    texts = [tokenizer.encode(part).ids for _, part in paragraphs]
    columns = {
        "input_ids": [prompt + text for prompt, text in zip(prompts, texts, strict=True)],
        "completion_mask": [[0] * len(prompt) + [1] * len(text) for prompt, text in zip(prompts, texts, strict=True)],
    }
    return packdata.Documents(datasets.Dataset.from_dict(columns))


def packed_loss(model: Qwen3ForCausalLM, batch: packdata.PackedBatch) -> tuple[LossSum, torch.Tensor]:
    """Run the model on a packed batch and its head on the slots that predict a target.

    Returns:
        The summed loss with its number of targets, and the loss of each slot, shape ``(rows, slots)``, 0 where none is.
    """
    inputs = packdata.to_transformers(batch)
    del inputs["labels"]
    hidden, _ = pack(model.model(**inputs).last_hidden_state, batch.loss_mask)
    targets, _ = pack(batch.targets, batch.loss_mask)
    losses = functional.cross_entropy(model.lm_head(hidden).float(), targets, reduction="none")
    return LossSum(losses.sum(), batch.num_targets), pack.unpack(losses, batch.loss_mask)


def padded_loss(model: Qwen3ForCausalLM, batch: packdata.PackedBatch) -> tuple[LossSum, torch.Tensor]:
    """Run the same model the usual way: a row per document, padded to the longest, the head on every slot."""
    mask = (batch["document_ids"] >= 0).long()
    logits = model(batch["input_ids"], attention_mask=mask, use_cache=False).logits.float()
    losses = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")
    return LossSum(losses.sum(), batch.num_targets), losses.view_as(batch["targets"])


def train_step(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, batch: packdata.PackedBatch, loss_of
) -> float:
    """Take one step and return the mean loss, in nats per target."""
    loss, _ = loss_of(model, batch)
    mean = loss.total * loss_scale(loss.count, averaged_over=1)
    mean.backward()
    optimizer.step()
    optimizer.zero_grad()
    return mean.item()


def train(model: Qwen3ForCausalLM, loader: DataLoader, *, seconds: float) -> list[float]:
    """Train on packed batches until the time is up; return the mean loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses, start, told = [], time.perf_counter(), 0.0
    print(f"\ntraining for {seconds:.0f} s")
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):  # each pass over the loader is an epoch
        losses.append(train_step(model, optimizer, batch, packed_loss))
        taken = time.perf_counter() - start
        if taken > told + 10:
            told = taken
            print(f"  {taken:3.0f} s, {len(losses):>4} steps: loss {losses[-1]:.3f}")
        if taken > seconds and len(losses) >= 20:
            break
    return losses


def measure(ways: dict, *, vocabulary: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Train one model a way, a step each in turn, so that a busy machine slows all of them alike.

    Returns:
        For each way the median of tokens per second, and the share of slots that held no token.
    """
    models = {name: tiny_model(vocabulary) for name in ways}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=2e-3) for name, model in models.items()}
    loaders = {name: itertools.chain.from_iterable(itertools.repeat(loader)) for name, (loader, _) in ways.items()}
    speeds, seen, over = {name: [] for name in ways}, {name: [] for name in ways}, time.perf_counter() + seconds
    while time.perf_counter() < over or len(seen["packed"]) < 3:
        for name, (_, loss_of) in ways.items():
            start, batch = time.perf_counter(), next(loaders[name])
            train_step(models[name], optimizers[name], batch, loss_of)
            speeds[name].append(batch.num_tokens / (time.perf_counter() - start))
            seen[name].append((batch.num_tokens, batch["input_ids"].numel()))
    waste = {
        name: 1 - sum(tokens for tokens, _ in counts) / sum(slots for _, slots in counts)
        for name, counts in seen.items()
    }
    return {name: (statistics.median(speeds[name]), waste[name]) for name in ways}


def largest_difference(model: Qwen3ForCausalLM, batch: packdata.PackedBatch) -> float:
    """Compare each document's summed loss inside the packed batch with its loss when it is alone, relatively."""
    collate = packdata.PackingCollator()
    with torch.no_grad():
        _, losses = packed_loss(model, batch)
        packed = [document.sum().item() for document in batch.unpack(losses)]
        documents = zip(batch.unpack(batch["input_ids"]), batch.unpack(batch.labels), strict=True)
        lone = [collate([{"input_ids": ids, "labels": labels}]) for ids, labels in documents]
        alone = [packed_loss(model, document)[0].total.item() for document in lone]
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(packed, alone, strict=True))


def print_histogram(lengths: np.ndarray) -> None:
    """Print how many documents there are of each length, a line per bucket."""
    counts, edges = np.histogram(lengths, bins=[0, *BUCKETS, BUDGET])
    for count, (low, high) in zip(counts, itertools.pairwise(edges), strict=True):
        print(f"  {low:>5} to {high:>5} tokens: {count:>5} {'#' * int(np.ceil(count / counts.max() * 40))}")


def tiny_model(vocabulary: int) -> Qwen3ForCausalLM:
    """Make a randomly initialised Qwen3-style model of a few hundred thousand parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=96, intermediate_size=256, num_hidden_layers=2, head_dim=32,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=BUDGET, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def main() -> None:
    """Run the whole trip and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train on packed batches")
    parser.add_argument("--vocabulary", type=int, default=2048, help="size of the BPE vocabulary trained on the spot")
    parser.add_argument("--smoke", action="store_true", help="a few steps only")
    options = parser.parse_args()
    seconds = 8.0 if options.smoke else options.seconds

    documents = read_documents(options.vocabulary)
    print(f"{len(documents)} documents, {int(documents.lengths.sum())} tokens")
    print_histogram(np.asarray(documents.lengths))
    print("\nThe plan: every document in a pack, and what that costs")
    print(packdata.plan_packs(documents.lengths, BUDGET).ledger)

    sampler = packdata.LengthBucketBatchSampler(documents.lengths, BUDGET, boundaries=BUCKETS)
    packed = DataLoader(documents, batch_sampler=sampler, collate_fn=packdata.PackingCollator())
    shuffle = torch.Generator().manual_seed(0)
    rows = packdata.PackingCollator(layout="rows")
    padded = DataLoader(documents, batch_size=32, shuffle=True, generator=shuffle, collate_fn=rows)

    model = tiny_model(options.vocabulary)
    batch = next(iter(packed))
    print(f"\nA packed batch\n{batch}")
    difference = largest_difference(model, batch)
    print(f"packed against one by one: losses differ by at most {difference:.1e} (relative)")

    losses = train(model, packed, seconds=seconds)
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    print(f"loss per target: {first:.3f} at the start, {last:.3f} after {len(losses)} steps")
    ways = {"packed": (packed, packed_loss), "padded": (padded, padded_loss)}
    measured = measure(ways, vocabulary=options.vocabulary, seconds=seconds / 3)
    print(f"{'':8}{'tokens/s':>10}{'wasted slots':>15}")
    for name, (speed, waste) in measured.items():
        print(f"{name:8}{speed:>10,.0f}{waste:>15.1%}")
    print(f"packed trains on {measured['packed'][0] / measured['padded'][0]:.1f} times the tokens per second")
    if difference > 1e-5:
        raise SystemExit(f"a packed document's loss differs from its loss alone by {difference:.1e}, over 1e-5")
    if not last < first:
        raise SystemExit(f"the loss did not fall: {first:.3f} at the start, {last:.3f} at the end")


if __name__ == "__main__":
    main()

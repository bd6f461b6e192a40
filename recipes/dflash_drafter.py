"""Train a small speculative-decoding drafter in the manner of DFlash, and count the tokens that its drafts save.

A tiny Qwen3-style target learns Python's help topics, byte by byte. It then runs on dense batches of documents of
similar length; the states of two of its layers are captured and packed into one stream of fixed shape, from which a
drafter with a geometry of its own learns to fill blocks of bytes in one pass. Printed: the loss, how many bytes one
pass of the target yields on held-out text (1 without drafts), tokens per second of the packed step against one pass
per document, and how often the step was compiled.
"""

import argparse
import itertools
import shutil
import statistics
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from benchmark_drafting import per_document_loss, seconds_of
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from packdata import Column, LengthBucketBatchSampler, PackedBatch, PackingCollator, StaticBuffers, to_transformers
from packdata.drafting import (
    BlockDrafter,
    DrafterGeometry,
    HiddenStateCapture,
    StaticBlocks,
    acceptance_length,
    add_noise,
    draft_loss,
    pack_hidden_states,
)
from packdata.losses import loss_scale
from packdata.sources.topics import topic_texts

BUDGET, BUCKETS, SHORTEST, LONGEST = 4096, (48, 64, 96, 128, 192), 32, 256
WIDTH, LAYERS, ANCHORS, BLOCK, DECAY = 128, ("model.layers.1", "model.layers.2"), 64, 8, 4.0
GEOMETRY = DrafterGeometry(hidden_size=WIDTH, captured=len(LAYERS), layers=2, heads=6, kv_heads=3, head_dim=24)
PROMPT, CONTINUED = 64, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
to_rows = PackingCollator(layout="rows")


def read_documents() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Cut the topics into documents of at most 256 bytes, and every tenth topic into prompts that are held out."""
    documents, prompts = [], []
    for number, text in enumerate(topic_texts().values()):
        for paragraph in [text] if number % 10 == 0 else text.split("\n\n"):
            codes = np.frombuffer(paragraph.encode(), np.uint8).astype(np.int64)
            pieces = [codes[start : start + LONGEST] for start in range(0, len(codes), LONGEST)]
            if number % 10 == 0:
                prompts += [piece[:PROMPT] for piece in pieces if len(piece) >= PROMPT]
            else:
                documents += [piece for piece in pieces if len(piece) >= SHORTEST]
    return documents, prompts


def dense_batches(documents: list[np.ndarray], seed: int) -> Iterator[PackedBatch]:
    """Yield dense batches of documents of similar length, epoch after epoch."""
    lengths = [len(document) for document in documents]
    sampler = LengthBucketBatchSampler(lengths, BUDGET, boundaries=(*BUCKETS, LONGEST), padded=True, seed=seed)
    while True:
        yield from (batch.to(DEVICE) for batch in DataLoader(documents, batch_sampler=sampler, collate_fn=to_rows))


def train_target(documents: list[np.ndarray], steps: int) -> Qwen3ForCausalLM:
    """Train a target of half a million parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256, hidden_size=WIDTH, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    target = Qwen3ForCausalLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(target.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _, batch in zip(range(steps), dense_batches(documents, seed=0), strict=False):
        loss = target(**to_transformers(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    print(f"target: {loss.item():.3f} nats per byte after {steps} steps")
    return target.eval().requires_grad_(False)


def capture(target: Qwen3ForCausalLM, batch: PackedBatch, out: StaticBuffers | None = None) -> PackedBatch:
    """Run the target on a dense batch, and pack what two of its layers put out."""
    with torch.no_grad(), HiddenStateCapture(target, LAYERS) as states:
        target(**to_transformers(batch))
    return pack_hidden_states(states.hidden_states, batch, out=out)


class DrafterStep:
    """A drafter and its training step, whose every input stays at its address and in its shape: one compilation."""

    def __init__(self, embedding: Tensor, *, backend: str) -> None:
        states = Column(per="token", dtype=torch.float32, tail=(len(LAYERS) * WIDTH,))
        self.buffers = StaticBuffers(BUDGET, BUDGET // SHORTEST, columns={"hidden_states": states}, device=DEVICE)
        self.stream, self.embedding, self.drafter = self.buffers.batch, embedding, BlockDrafter(GEOMETRY).to(DEVICE)
        kind = "flex" if DEVICE == "cuda" else "windows"  # as wide as the longest document: that hides nothing
        options = {"num_anchors": ANCHORS, "block_size": BLOCK, "window": LONGEST, "decay": DECAY}
        self.blocks = StaticBlocks(self.stream, mask=kind, **options)
        self.key = torch.zeros((), dtype=torch.int64, device=DEVICE)
        compiles = DEVICE == "cuda" or shutil.which("g++") is not None
        self.loss = torch.compile(self.eager_loss, fullgraph=True, backend=backend) if compiles else self.eager_loss

    def eager_loss(self) -> tuple[Tensor, Tensor]:
        """Run the drafter once, on all blocks of all documents; the sum of the losses and of their weights."""
        stream, blocks = self.stream, self.blocks
        noisy = add_noise(stream["hidden_states"], document_ids=stream["document_ids"], key=self.key)
        anchors = self.embedding[stream["input_ids"][0, blocks.anchors]]
        states = self.drafter(noisy, stream["position_ids"], anchors, blocks.targets.slot_positions, blocks.mask)
        loss = draft_loss(states, self.embedding, blocks.targets, stream["input_ids"])
        return loss.total, loss.count

    def __call__(self, number: int) -> float:
        """Draw the blocks of this step from what the buffers hold, and add up gradients; the mean loss."""
        self.blocks.draw(self.key.fill_(number))
        total, count = self.loss()
        mean = total * loss_scale(count, averaged_over=1)
        mean.backward()
        return mean.item()

    def one_by_one(self) -> float:
        """Add up the same gradients the old way, one pass per document; the mean loss."""
        anchors = self.blocks.anchors[self.blocks.anchor_valid]
        stream = self.buffers.batch  # what the host knows of this batch, beside the same tensors
        noisy = add_noise(stream["hidden_states"], document_ids=stream.document_ids, key=self.key)
        stream = PackedBatch(stream | {"hidden_states": noisy})
        loss = per_document_loss(self.drafter, self.embedding, stream, anchors, block_size=BLOCK, decay=DECAY)
        mean = loss.total * loss_scale(loss.count, averaged_over=1)
        mean.backward()
        return mean.item()


def train_drafter(
    step: DrafterStep, target: Qwen3ForCausalLM, documents: list[np.ndarray], seed: int, steps: int
) -> str:
    """Train the drafter from this seed, and say how its loss went."""
    torch.manual_seed(seed)
    step.drafter.load_state_dict(BlockDrafter(GEOMETRY).state_dict())
    optimizer = torch.optim.AdamW(step.drafter.parameters(), lr=3e-3)
    losses = []
    for number, batch in zip(range(steps), dense_batches(documents, seed), strict=False):
        capture(target, batch, out=step.buffers)
        losses.append(step(number))
        optimizer.step()
        optimizer.zero_grad()
    few = max(1, steps // 10)
    return f"loss {statistics.mean(losses[:few]):.3f} -> {statistics.mean(losses[-few:]):.3f}"


def print_speed(step: DrafterStep, batches: Iterable[PackedBatch], target: Qwen3ForCausalLM, repeats: int) -> None:
    """Print tokens per second, packed and one by one, forward and backward."""
    tokens, seconds = 0, {"packed": 0.0, "one by one": 0.0}
    for batch in batches:
        tokens += capture(target, batch, out=step.buffers).num_tokens
        difference = abs(step(0) - step.one_by_one())
        if difference > 1e-4:
            raise SystemExit(f"the packed loss differs from the loss document by document by {difference:.1e}")
        taken = seconds_of({"packed": lambda: step(0), "one by one": step.one_by_one}, repeats)
        seconds = {name: seconds[name] + taken[name] for name in seconds}
    print(*(f"{name}: {tokens / taken:,.0f} tokens/s" for name, taken in seconds.items()), sep=", ", end="; ")
    print(f"packed is {seconds['one by one'] / seconds['packed']:.1f} times as fast")


def main() -> None:
    """Train the target, then the drafter from three seeds, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100, help="of the drafter, for each of three seeds")
    parser.add_argument("--prompts", type=int, default=32, help="how many held-out texts to draft on")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--smoke", action="store_true", help="a few steps only, traced but not compiled")
    options = parser.parse_args()
    if options.smoke:
        options.target_steps, options.steps, options.prompts, options.backend = 6, 4, 2, "eager"
        torch.set_num_threads(1)  # threads that wait for each other are slow where other tests run beside this one

    documents, prompts = read_documents()
    print(f"{len(documents)} documents, {sum(map(len, documents))} bytes; {len(prompts)} prompts held out")
    target = train_target(documents, options.target_steps)
    prompt = torch.from_numpy(np.stack(prompts[:: len(prompts) // options.prompts])).to(DEVICE)
    continued = target.generate(prompt, max_new_tokens=CONTINUED, do_sample=False, use_cache=True)
    held_out = capture(target, to_rows(list(continued.cpu())).to(DEVICE))

    step = DrafterStep(target.get_input_embeddings().weight.detach(), backend=options.backend)
    drafting = {"prompt_length": PROMPT, "block_size": BLOCK}
    gains = []
    for seed in range(3):
        untrained = acceptance_length(BlockDrafter(GEOMETRY).to(DEVICE), step.embedding, held_out, **drafting)
        losses = train_drafter(step, target, documents, seed, options.steps)
        trained = acceptance_length(step.drafter, step.embedding, held_out, **drafting)
        gains.append(trained - untrained)
        print(
            f"seed {seed}: {losses}; bytes per pass: 1 without drafts, {untrained:.2f} untrained, {trained:.2f} trained"
        )
    print(f"gain over an untrained drafter: {statistics.mean(gains):.2f} ± {statistics.stdev(gains):.2f} (three seeds)")
    batches = itertools.islice(dense_batches(documents, seed=3), 1 if options.smoke else 12)
    print_speed(step, batches, target, 1 if options.smoke else 3)
    print(f"compilations of the step: {torch._dynamo.utils.counters['stats']['unique_graphs']}")
    if not options.smoke and min(gains) <= 0:
        raise SystemExit(f"a trained drafter was no better than an untrained one: {gains}")


if __name__ == "__main__":
    main()

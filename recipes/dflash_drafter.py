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
from collections.abc import Callable, Iterator

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
from packdata.losses import LossSum
from packdata.sources.topics import topic_texts

BUDGET, BUCKETS, SHORTEST, LONGEST = 4096, (48, 64, 96, 128, 192), 32, 256
WIDTH, LAYERS, ANCHORS, BLOCK, DECAY = 128, (1, 2), 64, 8, 4.0
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


def compiled_step(
    drafter: BlockDrafter, embedding: Tensor, stream: PackedBatch, blocks: StaticBlocks, key: Tensor, backend: str
) -> Callable[[], LossSum]:
    """Make the loss of one step, compiled where there is a compiler; all that it reads stays at its address."""

    def step() -> tuple[Tensor, Tensor]:
        noisy = add_noise(stream["hidden_states"], document_ids=stream["document_ids"], key=key)
        anchors = embedding[stream["input_ids"][0, blocks.anchors]]
        states = drafter(noisy, stream["position_ids"], anchors, blocks.targets.slot_positions, blocks.mask)
        loss = draft_loss(states, embedding, blocks.targets, stream["input_ids"])
        return loss.total, loss.count

    compiles = DEVICE == "cuda" or shutil.which("g++") is not None
    run = torch.compile(step, fullgraph=True, backend=backend) if compiles else step
    return lambda: LossSum(*run())


def main() -> None:
    """Train the target, then the drafter from three seeds, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=150, help="of the drafter, for each of three seeds")
    parser.add_argument("--prompts", type=int, default=32, help="how many held-out texts to draft on")
    parser.add_argument("--smoke", action="store_true", help="a few steps only, traced but not compiled to code")
    options = parser.parse_args()
    target_steps, steps, prompts_used = options.target_steps, options.steps, options.prompts
    if options.smoke:
        target_steps, steps, prompts_used = 6, 4, 2

    documents, prompts = read_documents()
    print(f"{len(documents)} documents, {sum(map(len, documents))} bytes; {len(prompts)} prompts held out")
    target = train_target(documents, target_steps)
    embedding = target.get_input_embeddings().weight.detach()
    prompt = torch.from_numpy(np.stack(prompts[:: len(prompts) // prompts_used])).to(DEVICE)
    continued = target.generate(prompt, max_new_tokens=CONTINUED, do_sample=False, use_cache=True)
    held_out = capture(target, to_rows(list(continued.cpu())).to(DEVICE))

    geometry = DrafterGeometry(hidden_size=WIDTH, captured=len(LAYERS), layers=2, heads=6, kv_heads=3, head_dim=24)
    drafter = BlockDrafter(geometry).to(DEVICE)
    states = Column(per="token", dtype=torch.float32, tail=(len(LAYERS) * WIDTH,))
    buffers = StaticBuffers(BUDGET, BUDGET // SHORTEST, columns={"hidden_states": states}, device=DEVICE)
    kind = "flex" if DEVICE == "cuda" else "windows"  # a window of the longest document hides nothing
    blocks = StaticBlocks(buffers.batch, num_anchors=ANCHORS, block_size=BLOCK, mask=kind, window=LONGEST, decay=DECAY)
    key = torch.zeros((), dtype=torch.int64, device=DEVICE)
    step_loss = compiled_step(
        drafter, embedding, buffers.batch, blocks, key, "aot_eager" if options.smoke else "inductor"
    )

    def step(number: int) -> LossSum:
        blocks.draw(key.fill_(number))
        loss = step_loss()
        (loss.total / loss.count.clamp(min=1)).backward()
        return loss

    gains = []
    for seed in range(3):
        torch.manual_seed(seed)
        drafter.load_state_dict(BlockDrafter(geometry).state_dict())
        untrained = acceptance_length(drafter, embedding, held_out, prompt_length=PROMPT, block_size=BLOCK)
        optimizer, losses = torch.optim.AdamW(drafter.parameters(), lr=3e-3), []
        for number, batch in zip(range(steps), dense_batches(documents, seed), strict=False):
            capture(target, batch, out=buffers)
            loss = step(number)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.total.item() / loss.count.item())
        trained = acceptance_length(drafter, embedding, held_out, prompt_length=PROMPT, block_size=BLOCK)
        gains.append(trained - untrained)
        few = max(1, steps // 10)
        first, last = statistics.mean(losses[:few]), statistics.mean(losses[-few:])
        print(
            f"seed {seed}: loss {first:.3f} -> {last:.3f}, bytes per pass of the target: "
            f"1 without drafts, {untrained:.2f} untrained, {trained:.2f} trained"
        )
    print(f"gain over an untrained drafter: {statistics.mean(gains):.2f} ± {statistics.stdev(gains):.2f} (three seeds)")

    tokens, seconds = 0, {"packed": 0.0, "one by one": 0.0}
    for batch in itertools.islice(dense_batches(documents, seed=3), 1 if options.smoke else 12):
        stream = capture(target, batch, out=buffers)

        def one_by_one(stream: PackedBatch = stream) -> None:
            anchors = blocks.anchors[blocks.anchor_valid]
            per_document_loss(drafter, embedding, stream, anchors, block_size=BLOCK, decay=DECAY).total.backward()

        taken = seconds_of({"packed": lambda: step(0), "one by one": one_by_one}, 1 if options.smoke else 3)
        seconds = {name: seconds[name] + taken[name] for name in seconds}
        tokens += stream.num_tokens
    print(*(f"{name}: {tokens / taken:,.0f} tokens/s" for name, taken in seconds.items()), sep=", ")
    print(f"packed is {seconds['one by one'] / seconds['packed']:.1f} times as fast")
    print(f"compilations of the step: {torch._dynamo.utils.counters['stats']['unique_graphs']}")
    if not options.smoke and min(gains) <= 0:
        raise SystemExit(f"a trained drafter was no better than an untrained one: {gains}")


if __name__ == "__main__":
    main()

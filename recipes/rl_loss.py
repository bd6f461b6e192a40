"""A GRPO-style step on packed completions: every way to average, checked against the dense computation.

    python recipes/rl_loss.py

A tiny, randomly initialised model writes a few completions per prompt. A prompt's completions share a pack, every rank
gets equally many packs, the head runs on completion tokens only, and the clipped loss is averaged over the whole step,
not over micro-batches. Then the same loss is made the slow way, one document at a time with all logits; loss and
gradients must agree, or the recipe fails.
"""

import argparse

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import packdata
from packdata.kernels import token_logprobs
from packdata.losses import loss_scale, masked_sum, target_weights

MODES = ("token_mean", "sequence_mean", "sequence_sum", "constant", "group_mean")
VOCABULARY, RANKS, CLIP = 256, 2, 0.2


def tiny_model() -> Qwen3ForCausalLM:
    """Make a randomly initialised model."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


@torch.no_grad()
def roll_out(model: Qwen3ForCausalLM, prompts: int, completions: int, longest: int) -> list[dict]:
    """Write several completions of different lengths per prompt, and compare each one's reward with its group's."""
    random = np.random.Generator(np.random.Philox(0))
    documents = []
    for group in range(prompts):
        prompt = torch.from_numpy(random.integers(0, VOCABULARY, (1, random.integers(4, 16))))
        written = []
        for length in random.integers(0, longest + 1, completions):  # a completion of no tokens has no target
            ids = prompt
            for _ in range(length):
                ids = torch.cat([ids, model(ids).logits[:, -1].softmax(-1).multinomial(1)], 1)
            mask = torch.arange(ids.shape[1]) >= prompt.shape[1]
            written.append({"input_ids": ids[0], "completion_mask": mask, "group": group})
        rewards = torch.tensor([float((document["input_ids"] % 2).sum()) for document in written])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        documents += [document | {"advantages": float(a)} for document, a in zip(written, advantages, strict=True)]
    return documents


def micro_batches(documents: list[dict], budget: int) -> list[packdata.PackedBatch]:
    """Pack the documents, a prompt's completions together, into equally many micro-batches on every rank."""
    groups = [document["group"] for document in documents]
    lengths = [len(document["input_ids"]) for document in documents]
    plan = packdata.plan_packs(lengths, budget, groups=groups, packs_multiple_of=RANKS)
    print(plan.ledger)
    collate = packdata.PackingCollator(columns={"advantages": packdata.Column(per="document", dtype=torch.float32)})
    batches = []
    for pack in plan:
        batch = collate([{k: v for k, v in documents[d].items() if k != "group"} for d in pack.documents])
        batches.append(packdata.PackedBatch(batch, groups=tuple(groups[d] for d in pack.documents)))
    return batches


def packed_logprobs(model: Qwen3ForCausalLM, batch: packdata.PackedBatch) -> torch.Tensor:
    """Log-probability of every target, 0 on the other slots; the head sees rows with a target only."""
    inputs = packdata.to_transformers(batch)
    del inputs["labels"]
    hidden = model.model(**inputs).last_hidden_state
    return token_logprobs(hidden, model.lm_head.weight, batch.targets, num_targets=batch.num_targets)


def clipped(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Policy-gradient loss per token: −min(ratio · A, clip(ratio) · A)."""
    ratio = (logprobs - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)


def packed_step(model: Qwen3ForCausalLM, batches, old, mode: str, longest: int) -> float:
    """Backward every micro-batch; the loss is that of the whole step, whatever packs and ranks there are."""
    more = {"constant": lambda batch: {"max_length": longest}, "group_mean": lambda batch: {"groups": batch["groups"]}}
    weights = [target_weights(batch, mode, **more.get(mode, lambda batch: {})(batch)) for batch in batches]
    # With ranks: global_count of these, and averaged_over the ranks whose gradients are averaged.
    scale = loss_scale(sum(int(count) for _, count in weights), averaged_over=1)
    step = 0.0
    for batch, old_logprobs, (weight, _) in zip(batches, old, weights, strict=True):
        losses = clipped(packed_logprobs(model, batch), old_logprobs, batch["advantages"])
        loss = masked_sum(losses, batch.loss_mask, weight).total * scale
        loss.backward()
        step += loss.item()
    return step


def dense_step(model, old_model, documents: list[dict], mode: str, longest: int) -> float:
    """The same from all logits, one document at a time, by the formula of each mode."""
    losses = []
    for document in documents:
        ids = document["input_ids"][None]
        both = [
            m(ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0] for m in (model, old_model)
        ]
        per_token = clipped(both[0], both[1].detach(), torch.tensor(document["advantages"]))
        losses.append(per_token[document["completion_mask"][1:]])
    if mode == "token_mean":
        loss = torch.cat(losses).mean()
    elif mode == "sequence_mean":
        loss = torch.stack([one.mean() for one in losses if len(one)]).mean()
    elif mode == "group_mean":
        groups = [document["group"] for document in documents]
        of_group = [
            torch.cat([one for one, g in zip(losses, groups, strict=True) if g == group]) for group in set(groups)
        ]
        loss = torch.stack([one.mean() for one in of_group if len(one)]).mean()
    else:
        loss = torch.stack([one.sum() for one in losses]).mean() / (longest if mode == "constant" else 1)
    loss.backward()
    return loss.item()


def gradient(model: Qwen3ForCausalLM) -> torch.Tensor:
    """All gradients in one vector; they are cleared."""
    vector = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return vector


def main() -> None:
    """Roll out, pack, step in every mode, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--completions", type=int, default=4, help="per prompt")
    parser.add_argument("--longest", type=int, default=24, help="most tokens of a completion")
    parser.add_argument("--smoke", action="store_true", help="fewer prompts")
    options = parser.parse_args()
    old_model = tiny_model()
    documents = roll_out(old_model, 3 if options.smoke else options.prompts, options.completions, options.longest)
    batches = micro_batches(documents, budget=2 * options.completions * (16 + options.longest))
    with torch.no_grad():
        old = [packed_logprobs(old_model, batch) for batch in batches]
    model = tiny_model()  # some updates later: the ratio is no longer 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    print(f"\n{'mode':<15} {'packed':>10} {'dense':>10}  gradients differ by")
    for mode in MODES:
        packed, packed_gradient = packed_step(model, batches, old, mode, options.longest), gradient(model)
        dense, dense_gradient = dense_step(model, old_model, documents, mode, options.longest), gradient(model)
        difference = float((packed_gradient - dense_gradient).norm() / dense_gradient.norm())
        print(f"{mode:<15} {packed:>10.6f} {dense:>10.6f}  {difference:.1e}")
        if abs(packed - dense) > 1e-5 * max(1, abs(dense)) or difference > 1e-4:
            raise SystemExit(f"{mode}: the packed step differs from the dense one")


if __name__ == "__main__":
    main()

"""A small training run as a script, so that tests can start it on several ranks, kill it, and start it again.

train    trains on Python's help topics as bytes and saves the parameters; under torchrun with DDP, else in one
         process on the batches of all ranks of two
consume  goes through one epoch slowly, saving after each batch what it had and the sampler's state, in one file
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packdata.batches import PackingCollator
from packdata.losses import global_count, loss_scale, masked_sum
from packdata.samplers import PackBatchSampler
from packdata.sources.topics import topic_texts

RANKS = 2


class Topics(torch.utils.data.Dataset):
    """The first bytes of each help topic."""

    def __init__(self, documents: int = 45):
        texts = list(topic_texts().values())[:documents]
        self.ids = [np.frombuffer(text.encode()[: 100 + 7 * place], dtype=np.uint8) for place, text in enumerate(texts)]
        self.lengths = [len(ids) for ids in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.ids[index]}


def loss_sum(model: torch.nn.Module, batch: dict):
    logits = model(batch["input_ids"])
    losses = cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")
    return masked_sum(losses.view_as(batch["targets"]), batch.loss_mask)


def train(out: Path) -> None:
    """Two epochs; a step is one batch of each of two ranks, in this process or in two."""
    distributed = "RANK" in os.environ
    if distributed:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256))
    wrapped = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    topics = Topics()
    ranks = {} if distributed else {"rank": "all", "world_size": RANKS}
    sampler = PackBatchSampler(topics.lengths, 512, **ranks)
    loader = DataLoader(topics, batch_sampler=sampler, collate_fn=PackingCollator())
    empty = 0
    for _ in range(2):
        micro_batches = []
        for batch in loader:
            empty += batch.num_tokens == 0
            micro_batches.append(batch)
            if distributed or len(micro_batches) == RANKS:
                step(wrapped, optimizer, micro_batches, averaged_over=RANKS if distributed else 1)
                micro_batches = []
    if distributed:
        empty = global_count(empty)
    if not distributed or torch.distributed.get_rank() == 0:
        torch.save({"empty": int(empty), "batches": len(sampler), **model.state_dict()}, out)
    if distributed:
        torch.distributed.destroy_process_group()


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list, *, averaged_over: int) -> None:
    count = global_count([batch.num_targets for batch in batches])
    for batch in batches:
        (loss_sum(model, batch).total * loss_scale(count, averaged_over=averaged_over)).backward()
    optimizer.step()
    optimizer.zero_grad()


def consume(out: Path, kind: str) -> None:
    saved = json.loads(out.read_text()) if out.exists() else {"had": [], "state": None}
    topics = Topics()
    sampler = PackBatchSampler(topics.lengths, 512, seed=5)
    make = StatefulDataLoader if kind == "stateful" else DataLoader
    loader = make(topics, batch_sampler=sampler, collate_fn=PackingCollator(), num_workers=2, prefetch_factor=2)
    if saved["state"]:
        (loader if kind == "stateful" else sampler).load_state_dict(saved["state"])
    begin = sampler.consumed
    if kind == "accelerate":
        loader = Accelerator(cpu=True).prepare(loader)
    for used, batch in enumerate(loader, start=begin + 1):
        saved["had"].append(batch["input_ids"].sum().item())
        saved["state"] = loader.state_dict() if kind == "stateful" else sampler.checkpoint(used)
        out.with_suffix(".new").write_text(json.dumps(saved))
        os.replace(out.with_suffix(".new"), out)
        time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "consume"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--loader", choices=["plain", "stateful", "accelerate"])
    options = parser.parse_args()
    if options.what == "train":
        train(options.out)
    else:
        consume(options.out, options.loader)

"""Two real processes with unequal micro-batches give the gradient that one process gets, in every framework."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from packdata.batches import PackingCollator
from packdata.kernels import linear_cross_entropy
from packdata.losses import LossSum, global_count, loss_scale, scale_gradients, target_weights

WORLD, VOCABULARY, HIDDEN = 2, 11, 4

# Per rank and micro-batch: each document's tokens, and how many of the last are completion.
LENGTHS = [
    [[(5, 2), (3, 1)], [(9, 9)], [(4, 0)]],
    [[(2, 1)], [(6, 3), (2, 2), (7, 1)], [(3, 3)]],
]


def micro_batches(rank):
    generator = torch.Generator().manual_seed(rank)
    collate = PackingCollator(pad_to_multiple_of=8)
    return [
        collate(
            [
                {
                    "input_ids": torch.randint(0, VOCABULARY, (length,), generator=generator),
                    "completion_mask": [0] * (length - completion) + [1] * completion,
                }
                for length, completion in documents
            ]
        )
        for documents in LENGTHS[rank]
    ]


class Model(nn.Module):
    """Ids to the summed loss, in float64; the head is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layer = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, batch, weights=None):
        hidden = torch.tanh(self.layer(self.embedding(batch["input_ids"])))
        return linear_cross_entropy(
            hidden, self.embedding.weight, batch["targets"], weights=weights, num_targets=batch["num_targets"]
        )


def new_model():
    torch.manual_seed(0)
    return Model().double()


def gradients(model):
    """Whole gradients by plain names, whatever wraps the model."""
    whole = lambda grad: grad.full_tensor() if hasattr(grad, "full_tensor") else grad  # noqa: E731
    return {name.removeprefix("module."): whole(p.grad).clone() for name, p in model.named_parameters()}


def step_targets(batches):
    return global_count([batch.num_targets for batch in batches])


# --- one step in each framework; run in every rank


def own_loop(batches):
    model = new_model()
    scale = loss_scale(step_targets(batches), averaged_over=1)
    for batch in batches:
        (model(batch).total * scale).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return gradients(model)


def data_parallel(batches):
    model = DistributedDataParallel(new_model())
    scale = loss_scale(step_targets(batches), averaged_over=WORLD)
    for batch in batches[:-1]:
        with model.no_sync():
            (model(batch).total * scale).backward()
    (model(batches[-1]).total * scale).backward()
    return gradients(model)


def data_parallel_scaled_afterwards(batches):
    model = DistributedDataParallel(new_model())
    losses = []
    for batch in batches:
        losses.append(model(batch))
        losses[-1].total.backward()
    count = global_count([torch.tensor(loss.count) for loss in losses])
    scale_gradients(model.parameters(), loss_scale(count, averaged_over=WORLD))
    return gradients(model)


def fully_sharded(batches):
    model = fully_shard(new_model())
    scale = loss_scale(step_targets(batches), averaged_over=WORLD)
    for batch in batches:
        (model(batch).total * scale).backward()
    return gradients(model)


def fully_sharded_scaled_afterwards(batches):
    model = fully_shard(new_model())
    losses = [model(batch) for batch in batches]
    sum(losses).total.backward()
    count = global_count(torch.tensor([batch.num_targets for batch in batches]))
    scale_gradients(model.parameters(), loss_scale(count, averaged_over=WORLD))
    return gradients(model)


def accelerated(batches):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(batches))
    model = accelerator.prepare(new_model())
    count = step_targets(batches)
    scale = loss_scale(count, averaged_over=accelerator.num_processes, extra_divisor=len(batches))
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).total * scale)
    return gradients(model)


def weighted(batches, mode):
    model = DistributedDataParallel(new_model())
    weights = [target_weights(batch, mode, **OPTIONS[mode](batch)) for batch in batches]
    scale = loss_scale(global_count([int(count) for _, count in weights]), averaged_over=WORLD)
    for batch, (weight, _) in zip(batches, weights, strict=True):
        (model(batch, weight).total * scale).backward()
    return gradients(model)


OPTIONS = {
    "token_mean": lambda batch: {},
    "sequence_mean": lambda batch: {},
    "sequence_sum": lambda batch: {},
    "constant": lambda batch: {"max_length": 6},
    "group_mean": lambda batch: {"groups": [number // 2 for number in range(batch.num_documents)]},
}
STEPS = {
    function.__name__: function
    for function in (
        own_loop,
        data_parallel,
        data_parallel_scaled_afterwards,
        fully_sharded,
        fully_sharded_scaled_afterwards,
        accelerated,
    )
}


def run_rank(rank, folder):
    torch.set_num_threads(1)
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    os.environ.update({name: str(value) for name, value in launched.items()})  # which Accelerate asks for
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    batches = micro_batches(rank)
    results = {name: step(batches) for name, step in STEPS.items()}
    results |= {mode: weighted(batches, mode) for mode in OPTIONS}
    results["counts"] = (global_count(rank + 1), global_count(torch.tensor([rank, 5])), global_count([]))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


# --- what one process gets


def documents():
    """Every document of the step, with its group: groups are numbered within a micro-batch."""
    for rank in range(WORLD):
        for number, batch in enumerate(micro_batches(rank)):
            for document in range(batch.num_documents):
                yield batch, document, (rank, number, document // 2)


def one_process(mode="token_mean"):
    """The loss of the whole step by its formula, from dense logits."""
    model = new_model()
    sums, counts, groups = [], [], []
    for batch, document, group in documents():
        here = (batch.document_ids == document) & batch.loss_mask
        hidden = torch.tanh(model.layer(model.embedding(batch.input_ids[here])))
        logits = hidden @ model.embedding.weight.t()
        sums.append(nn.functional.cross_entropy(logits, batch.targets[here], reduction="sum"))
        counts.append(int(here.sum()))
        groups.append(group)
    total, count = torch.stack(sums), torch.tensor(counts, dtype=torch.float64)
    if mode == "token_mean":
        loss = total.sum() / count.sum()
    elif mode == "sequence_mean":
        loss = (total / count.clamp(min=1)).sum() / (count > 0).sum()
    elif mode == "group_mean":
        number = torch.tensor([sorted(set(groups)).index(group) for group in groups])
        group_total = total.new_zeros(number.max() + 1).index_add(0, number, total)
        group_count = count.new_zeros(number.max() + 1).index_add(0, number, count)
        loss = (group_total / group_count.clamp(min=1)).sum() / (group_count > 0).sum()
    else:
        loss = total.sum() / len(total) / (6 if mode == "constant" else 1)
    loss.backward()
    return gradients(model)


def assert_same(ours, expected, tolerance):
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (ours[name] - gradient).abs().max() <= tolerance, name


@pytest.mark.parametrize("step", STEPS)
def test_the_gradient_is_that_of_one_process(both_ranks, step):
    expected = one_process()
    for rank in both_ranks:
        assert_same(rank[step], expected, 1e-12)


@pytest.mark.parametrize("mode", OPTIONS)
def test_every_aggregation_is_that_of_one_process(both_ranks, mode):
    expected = one_process(mode)
    for rank in both_ranks:
        assert_same(rank[mode], expected, 1e-12 if mode == "token_mean" else 1e-6)  # weights are float32


def test_counts_add_up_over_ranks(both_ranks):
    for rank in both_ranks:
        assert rank["counts"] == (3, torch.tensor(11), 0)
        assert isinstance(rank["counts"][0], int)


def test_each_rank_scales_by_the_targets_of_all():  # D2
    sums = [LossSum(torch.tensor(5.0), 5), LossSum(torch.tensor(3.0), 1)]
    scale = loss_scale(sum(sums).count, averaged_over=2)
    local = [float(loss.total * scale) for loss in sums]
    assert local == pytest.approx([5 / 3, 1.0])
    assert sum(local) / 2 == pytest.approx(8 / 6)

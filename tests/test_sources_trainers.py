"""What pack_dataset made trains in TRL's and transformers' trainers, with the loss of documents one by one."""

import datasets
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from packdata.batches import PackingCollator, to_transformers
from packdata.layout import IGNORE_INDEX
from packdata.planning import plan_packs
from packdata.sources import Documents, PackedDataset, pack_dataset

datasets.disable_progress_bars()

LENGTHS = [3, 9, 5, 12, 2, 7]


@pytest.fixture
def documents():
    """Documents of unequal length, of which only completions are to be learnt."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 50, length).tolist() for length in LENGTHS]
    masks = [[int(place >= len(row) // 3) for place in range(len(row))] for row in ids]
    return datasets.Dataset.from_dict({"input_ids": ids, "completion_mask": masks})


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


@torch.no_grad()
def one_by_one(model, documents):
    """Mean loss over all targets, from a forward pass per document."""
    total, count = 0.0, 0
    for document in documents:
        ids = torch.tensor([document["input_ids"]])
        learnt = torch.tensor([document["completion_mask"]], dtype=torch.bool)[:, 1:]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        total, count = total + losses[learnt].sum().item(), count + int(learnt.sum())
    return total / count


def arguments(kind, folder, **more):
    """One step on everything at a learning rate of zero, so that the logged loss is that of the model as it is."""
    return kind(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        max_steps=1,
        learning_rate=0.0,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )


def logged_loss(trainer):
    trainer.train()
    return trainer.state.log_history[0]["loss"]


@pytest.mark.filterwarnings("ignore")  # what the trainers warn of is theirs
def test_trl_trains_on_it(documents, model, tmp_path):
    packed = pack_dataset(documents, 16)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(token): token for token in range(50)}, unk_token="0")),
        pad_token="0",
        eos_token="0",
    )
    options = {"packing": False, "padding_free": True, "max_length": None}
    options |= {"bf16": False, "gradient_checkpointing": False}
    trainer = SFTTrainer(
        model, args=arguments(SFTConfig, tmp_path, **options), train_dataset=packed, processing_class=tokenizer
    )
    assert logged_loss(trainer) == pytest.approx(one_by_one(model, documents), abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_transformers_trains_on_it(documents, model, tmp_path):
    trainer = Trainer(
        model,
        args=arguments(TrainingArguments, tmp_path, remove_unused_columns=False),
        train_dataset=pack_dataset(documents, 16),
        data_collator=PackingCollator(boundaries="seq_lengths", output=to_transformers),
    )
    assert logged_loss(trainer) == pytest.approx(one_by_one(model, documents), abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_stripped_columns_are_missed_by_name(documents, model, tmp_path):
    trainer = Trainer(
        model,
        args=arguments(TrainingArguments, tmp_path, remove_unused_columns=True),
        train_dataset=pack_dataset(documents, 16),
        data_collator=PackingCollator(boundaries="seq_lengths", output=to_transformers),
    )
    with pytest.raises(ValueError, match=r"lacks 'seq_lengths'.*set remove_unused_columns=False"):
        trainer.train()


def test_every_way_to_pack_gives_the_same_batch(documents):
    """J1: masks survive packing, whether a dataset is packed, packed lazily, or served as documents."""
    source = Documents(documents)
    plan = plan_packs(source.lengths, 64)
    batches = [
        PackingCollator()([pack_dataset(documents, 64)[0]]),
        PackingCollator()([PackedDataset(source, plan)[0]]),
        PackingCollator()([source[plan[0]]]),
        PackingCollator()(source.__getitems__(plan[0].documents)),
        next(iter(DataLoader(source, batch_sampler=[[plan[0]]], collate_fn=PackingCollator()))),
    ]
    for batch in batches:
        assert torch.equal(batch["targets"], batches[0]["targets"])
        assert batch["lengths"] == batches[0]["lengths"]
    masks = [mask[1:] for mask in documents["completion_mask"]]
    assert int((batches[0]["targets"] != IGNORE_INDEX).sum()) == sum(map(sum, masks))


def test_an_empty_pack_is_a_batch_without_targets():
    documents = Documents({"input_ids": [[1, 2, 3]], "completion_mask": [[0, 1, 1]]})
    packs = PackedDataset(documents, plan_packs(documents.lengths, 8, packs_multiple_of=2))
    batch = PackingCollator(pad_to=8)([packs[1]])
    assert batch["num_targets"] == 0
    assert batch["input_ids"].shape == (1, 8)

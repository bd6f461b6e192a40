import json
import multiprocessing
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import datasets
import numpy as np
import oracles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import strategies
from datasets.fingerprint import Hasher
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.planning import Ledger, Plan, plan_packs
from packdata.sources import Documents, PackedDataset, ledger_of, pack_dataset, planned

datasets.disable_progress_bars()


def some_documents(count=60, seed=0):
    """Documents of random lengths with a completion mask."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 1000, length).tolist() for length in rng.integers(0, 30, count)]
    masks = [rng.integers(0, 2, len(row)).tolist() for row in ids]
    return datasets.Dataset.from_dict({"input_ids": ids, "completion_mask": masks})


@settings(max_examples=60)
@given(strategies.plan_requests(), st.data())
def test_packed_datasets_are_their_plan_and_their_lazy_twin(request, data):
    lengths, budget, options = request
    table, columns = data.draw(strategies.token_tables(lengths=lengths))
    if pa.types.is_list_view(table.schema.field(0).type):  # datasets knows no list views
        return
    dataset = datasets.Dataset(table)
    if "groups" not in options:
        order = data.draw(st.permutations(range(len(lengths))))
        dataset = dataset.select(order)
        columns = {name: [rows[number] for number in order] for name, rows in columns.items()}
    packed = pack_dataset(dataset, budget, **options)
    documents = Documents(dataset)
    plan = plan_packs(documents.lengths, budget, **options)
    assert packed.to_list() == oracles.packed_rows(columns, plan)
    assert packed.to_list() == oracles.rows_of(PackedDataset(documents, plan)[number] for number in range(len(plan)))
    assert ledger_of(packed).tokens_kept == plan.ledger.tokens_kept


@pytest.mark.parametrize("batch_size", [2, 4, 1000])
@pytest.mark.parametrize("num_proc", [1, 2])
def test_six_documents_of_two_are_one_pack_of_twelve(batch_size, num_proc):
    """H2."""
    dataset = datasets.Dataset.from_dict({"input_ids": [[number, number] for number in range(6)]})
    mapped = dataset.map(_same, batched=True, batch_size=batch_size, num_proc=num_proc, keep_in_memory=num_proc == 1)
    packed = pack_dataset(mapped, 12)
    assert packed[:] == {"input_ids": [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]], "seq_lengths": [[2] * 6]}


def _same(batch):
    return {"input_ids": batch["input_ids"]}


@pytest.mark.parametrize("row_group_size", [1, 7, 1000])
def test_row_groups_change_nothing(row_group_size, tmp_path):
    dataset = some_documents()
    pq.write_table(dataset.data.table, tmp_path / "data.parquet", row_group_size=row_group_size)
    read = datasets.Dataset.from_parquet(str(tmp_path / "data.parquet"), cache_dir=tmp_path / "cache")
    assert pack_dataset(read, 32).to_list() == pack_dataset(dataset, 32).to_list()


def test_in_memory_gives_in_memory_and_on_disk_gives_on_disk(tmp_path):
    dataset = some_documents()
    dataset.save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(tmp_path / "saved")
    in_memory, on_disk = pack_dataset(dataset, 32), pack_dataset(saved, 32)
    assert in_memory.cache_files == []
    assert len(on_disk.cache_files) == 1
    assert in_memory.to_list() == on_disk.to_list()
    assert in_memory.features == on_disk.features
    assert ledger_of(in_memory) == ledger_of(on_disk)


def test_the_cache_is_found_again_and_only_for_the_same_policy(tmp_path):
    some_documents().save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(tmp_path / "saved")
    first = pack_dataset(saved, 32).cache_files[0]["filename"]
    written = os.stat(first).st_mtime_ns
    again = pack_dataset(datasets.load_from_disk(tmp_path / "saved"), 32, strategy="best_fit", align=1)
    assert again.cache_files[0]["filename"] == first
    assert os.stat(first).st_mtime_ns == written
    changes = [{"budget": 33}, {"seed": 1}, {"eos_token_id": 5}, {"untargeted": "drop"}, {"strategy": "sequential"}]
    others = {pack_dataset(saved, **{"budget": 32} | change).cache_files[0]["filename"] for change in changes}
    assert len(others - {first}) == len(changes)


def test_output_dir_holds_data_plan_and_ledger(tmp_path):
    dataset = some_documents()
    packed = pack_dataset(dataset, 32, output_dir=tmp_path / "a" / "packed")
    loaded = datasets.load_from_disk(tmp_path / "a" / "packed")
    assert packed.to_list() == loaded.to_list() == pack_dataset(dataset, 32).to_list()
    plan = Plan.load(tmp_path / "a" / "packed" / "plan")
    plan.check(Documents(dataset).lengths)
    written = Ledger.from_dict(json.loads((tmp_path / "a" / "packed" / "ledger.json").read_text()))
    assert written == plan.ledger == ledger_of(loaded) == ledger_of(packed)
    assert os.listdir(tmp_path / "a") == ["packed"]


def test_dropped_documents_are_in_the_saved_plans_ledger(tmp_path):
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5]], "labels": [[-100] * 3, [-100, 5]]})
    pack_dataset(dataset, 8, untargeted="drop", output_dir=tmp_path / "packed")
    plan = Plan.load(tmp_path / "packed" / "plan")
    plan.check([3, 2])
    assert (plan.ledger.documents_untargeted, plan.ledger.tokens_dropped) == (1, 3)


def test_output_dir_of_the_same_is_reused_and_of_another_refused(tmp_path):
    dataset = some_documents()
    folder = tmp_path / "packed"
    pack_dataset(dataset, 32, output_dir=folder)
    written = os.stat(folder / "state.json").st_mtime_ns
    pack_dataset(dataset, 32, output_dir=folder)
    assert os.stat(folder / "state.json").st_mtime_ns == written
    for other, budget in ((dataset, 33), (some_documents(seed=1), 32), (dataset.select(range(59)), 32)):
        with pytest.raises(FileExistsError, match="was packed from other data or with another policy"):
            pack_dataset(other, budget, output_dir=folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(FileExistsError, match="exists and is no packed dataset"):
        pack_dataset(dataset, 32, output_dir=tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    assert len(pack_dataset(dataset, 32, output_dir=tmp_path / "empty"))


def test_dataset_dicts_are_packed_split_by_split(tmp_path):
    splits = datasets.DatasetDict(train=some_documents(), test=some_documents(20, seed=1))
    packed = pack_dataset(splits, 32, output_dir=tmp_path / "packed")
    loaded = datasets.load_from_disk(tmp_path / "packed")
    for split, dataset in splits.items():
        assert packed[split].to_list() == loaded[split].to_list() == pack_dataset(dataset, 32).to_list()
        assert ledger_of(loaded)[split].documents_in == len(dataset)
    grouped = pack_dataset(splits, 64, groups={"train": np.arange(60) // 2, "test": np.arange(20) // 2})
    assert grouped.keys() == splits.keys()
    with pytest.raises(ValueError, match=r"groups of a DatasetDict must be a dict by split, \['test', 'train'\]"):
        pack_dataset(splits, 64, groups=np.arange(60))


def test_the_ledger_survives_what_datasets_do(tmp_path):
    packed = pack_dataset(some_documents(), 32)
    ledger = ledger_of(packed)
    assert ledger_of(packed.map(_same, batched=True)) == ledger
    assert ledger_of(packed.select(range(len(packed)))) == ledger
    assert ledger_of(datasets.DatasetDict(a=packed)) == {"a": ledger}
    packed.save_to_disk(tmp_path / "saved")
    assert ledger_of(datasets.load_from_disk(tmp_path / "saved")) == ledger
    other = pack_dataset(some_documents(seed=1), 32)
    assert ledger_of(datasets.concatenate_datasets([packed, other])) == ledger + ledger_of(other)


def test_the_ledger_says_when_packs_were_taken_out():
    packed = pack_dataset(some_documents(), 32)
    with pytest.warns(UserWarning, match=rf"is about {len(packed)} packs, but the dataset has 2: it was cut"):
        ledger_of(packed.select([0, 1]))
    with pytest.raises(ValueError, match="the dataset has no ledger"):
        ledger_of(some_documents())


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "3", "null", "{}", '{"packs": 1}', '{"packs": "1", "ledger": {}}', '{"packs": 1, "ledger": {}}'],
)
def test_a_damaged_ledger_is_said_to_be_one(damage):
    packed = pack_dataset(some_documents(), 32)
    packed.info.description += f"\npackdata-ledger: {damage}"
    with pytest.raises(ValueError, match=r"the dataset has a damaged ledger in info\.description .*: pack it again"):
        ledger_of(packed)


def test_description_split_and_format_are_kept():
    dataset = some_documents()
    dataset.info.description = "Poems."
    packed = pack_dataset(dataset.with_format("numpy"), 32)
    assert packed.info.description.startswith("Poems.\npackdata-ledger: ")
    assert packed.format["type"] == "numpy"
    assert isinstance(packed[0]["seq_lengths"], np.ndarray)
    assert str(datasets.Dataset.from_dict({"input_ids": [[1]]}, split="train").split) == str(
        pack_dataset(datasets.Dataset.from_dict({"input_ids": [[1]]}, split="train"), 8).split
    )


FEATURES = [
    datasets.List(datasets.Value("int32")),
    datasets.LargeList(datasets.Value("uint16")),
    datasets.List(datasets.Value("int64")),
]


@pytest.mark.parametrize("feature", FEATURES, ids=str)
@pytest.mark.parametrize("ids", [[[], []], []], ids=["empty documents", "no documents"])
@pytest.mark.parametrize("folder", [None, "packed"])
def test_nothing_to_pack_keeps_its_types(feature, ids, folder, tmp_path):
    """E5."""
    dataset = datasets.Dataset.from_dict({"input_ids": ids}, features=datasets.Features({"input_ids": feature}))
    packed = pack_dataset(dataset, 8, output_dir=folder and tmp_path / folder)
    assert len(packed) == 0
    assert packed.features["input_ids"] == feature
    assert ledger_of(packed).documents_empty == len(ids)


@pytest.mark.parametrize("ids", [[[], []], []], ids=["empty documents", "no documents"])
def test_nothing_to_pack_needs_no_types(ids):
    """E5."""
    assert len(pack_dataset(datasets.Dataset.from_dict({"input_ids": ids}), 8)) == 0


def test_bad_input_is_named(tmp_path):
    dataset = some_documents().add_column("text", ["a"] * 60)
    with pytest.raises(ValueError, match=r"columns \['text'\] have no value per token"):
        pack_dataset(dataset, 32, output_dir=tmp_path / "packed")
    assert os.listdir(tmp_path) == []
    with pytest.raises(TypeError, match=r"packs a datasets.Dataset or DatasetDict, got Table \(pack_table packs"):
        pack_dataset(dataset.data.table, 32)
    with pytest.raises(TypeError, match="got IterableDataset"):
        pack_dataset(dataset.to_iterable_dataset(), 32)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        pack_dataset(dataset, 0)


def test_packing_hashes_alike_in_every_process():
    """H5: the fingerprint of the same data under the same policy, in another process."""
    code = """
        import datasets
        from packdata.sources import pack_dataset
        dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
        print(pack_dataset(dataset, 8)._fingerprint, pack_dataset(dataset, 9)._fingerprint)
    """
    runs = [
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0].split())) == 2
    assert Hasher.hash(pack_dataset) == Hasher.hash(pack_dataset)


# --- kills and full disks


@pytest.fixture
def long_documents(tmp_path, monkeypatch):
    """Documents that are packed in many windows, so that much can happen between two."""
    monkeypatch.setattr(planned, "WINDOW", 1 << 13)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 1000, length).astype(np.int32) for length in rng.integers(1, 512, 8000)]
    datasets.Dataset.from_dict({"input_ids": ids}).save_to_disk(tmp_path / "documents")
    return datasets.load_from_disk(tmp_path / "documents")


def start_packing(dataset, folder, *, largest_file=None):
    """Pack in a process of its own, which sees files end at a size as it would on a full disk."""

    def pack():
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        pack_dataset(dataset, 512, output_dir=folder)

    process = multiprocessing.get_context("fork").Process(target=pack)
    process.start()
    return process


def test_killed_at_any_moment_a_rerun_gives_the_same(long_documents, tmp_path):
    undisturbed = pack_dataset(long_documents, 512, output_dir=tmp_path / "undisturbed")
    rng = np.random.default_rng()
    killed = 0
    for kill in range(20):
        folder = tmp_path / f"packed-{kill % 4}"  # so that some folders are killed several times
        writer = start_packing(long_documents, folder)
        writer.join(float(rng.uniform(0, 0.4)))
        writer.kill()  # SIGKILL
        writer.join()
        killed += writer.exitcode != 0
        if folder.exists():  # then it is all there
            assert datasets.load_from_disk(folder).data.equals(undisturbed.data)
    assert killed > 0
    for number in range(4):
        packed = pack_dataset(long_documents, 512, output_dir=tmp_path / f"packed-{number}")
        assert packed.data.equals(undisturbed.data)
        assert ledger_of(packed) == ledger_of(undisturbed)
    finished = {"documents", "undisturbed", "packed-0", "packed-1", "packed-2", "packed-3"}
    assert set(os.listdir(tmp_path)) == finished


def test_a_full_disk_leaves_nothing_behind(long_documents, tmp_path, capfd):
    writer = start_packing(long_documents, tmp_path / "packed", largest_file=1 << 20)
    writer.join()
    assert writer.exitcode == 1
    assert "OSError" in capfd.readouterr().err
    assert not (tmp_path / "packed").exists()
    assert not (tmp_path / ".packed.partial").exists()
    packed = pack_dataset(long_documents, 512, output_dir=tmp_path / "packed")
    assert packed.data.equals(pack_dataset(long_documents, 512).data)


def test_processes_that_write_the_same_folder_agree(long_documents, tmp_path):
    writers = [start_packing(long_documents, tmp_path / "packed") for _ in range(3)]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    packed = datasets.load_from_disk(tmp_path / "packed")
    assert packed.data.equals(pack_dataset(long_documents, 512).data)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that makes no files")
def test_a_place_where_no_file_can_be_made_raises_rather_than_waits():
    with pytest.raises(OSError, match="/proc"):
        pack_dataset(datasets.Dataset.from_dict({"input_ids": [[1]]}), 4, output_dir="/proc/packs")


def test_other_types_are_named():
    documents = Documents([[1, 2], [3]])
    plan = plan_packs(documents.lengths, 4)
    with pytest.raises(TypeError, match="PackedDataset takes Documents and a Plan of their lengths, got list and Plan"):
        PackedDataset([[1, 2], [3]], plan)
    with pytest.raises(TypeError, match="got Documents and NoneType"):
        PackedDataset(documents, None)
    with pytest.raises(TypeError, match=r"ledger_of reads a datasets.Dataset or DatasetDict, got list"):
        ledger_of([])
    with pytest.raises(ValueError, match="groups must have one number for each of 1 documents"):
        pack_dataset(datasets.Dataset.from_dict({"input_ids": [[1]]}), 4, groups="ab")


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: datasets.DatasetDict(train=dataset)])
def test_an_unknown_option_is_named_beside_the_known_ones(wrap):
    message = r"pack_dataset has no option 'over_long'; those of plan_packs are strategy, .*, packs_multiple_of"
    with pytest.raises(TypeError, match=message):
        pack_dataset(wrap(some_documents()), 32, over_long="drop")

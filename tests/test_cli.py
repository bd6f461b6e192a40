"""The installed command, run as a process: what it prints, what it leaves, how it fails."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

import packdata
from packdata.cli import main
from packdata.planning import Plan
from packdata.sources import ledger_of, pack_dataset

COMMAND = Path(sys.executable).with_name("packdata")
TEXTS = ["the cat sat", "a dog", "it barked at the cat all day", "", "日本", "so it goes"]
TOKENS = [len(text.encode()) for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Inputs of every kind, good and bad, and one packed dataset."""
    folder = tmp_path_factory.mktemp("cli")
    lines = [json.dumps({"text": text, "name": str(number)}) for number, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    (folder / "texts.txt").write_text("\n".join(text for text in TEXTS if text))
    ids = [list(text.encode()) for text in TEXTS]
    pq.write_table(pa.table({"input_ids": ids}), folder / "ids.parquet")
    datasets.Dataset.from_dict({"input_ids": ids}).save_to_disk(folder / "saved")
    (folder / "false.parquet").write_text("these are words")
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": ')
    (folder / "empty.jsonl").touch()
    (folder / "no-tokenizer").mkdir()
    (folder / "half").mkdir()
    (folder / "half" / "data-00000-of-00001.arrow").write_bytes(b"half")
    assert run("pack", "texts.jsonl", "packed", *PACKING, cwd=folder).returncode == 0
    return folder


PACKING = ["--budget", "16", "--tokenizer", "bytes", "--eos", "0", "--overlong", "split"]
READING = ["--tokenizer", "bytes", "--eos", "0"]


def start(*arguments, cwd, command=(COMMAND,)):
    environment = os.environ | {"HF_DATASETS_CACHE": str(cwd / "cache"), "COLUMNS": "100"}
    arguments = [*map(str, command), *map(str, arguments)]
    return subprocess.Popen(
        arguments,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c():
    """Do not inherit that SIGINT is ignored, as it is where the tests themselves run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments, cwd, command=(COMMAND,)):
    process = start(*arguments, cwd=cwd, command=command)
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def run_json(*arguments, cwd):
    done = run(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run_here(folder, monkeypatch, capsys):
    """Run the same entry point in this process, which spares a start where a kind of run has its process already."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        code = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    yield run
    datasets.enable_progress_bars()


def test_help_names_the_commands_and_gives_examples(folder):
    done = run("--help", cwd=folder)
    assert done.returncode == 0
    for command in ("demo", "estimate", "pack", "inspect", "check", "check-model"):
        assert re.search(rf"^│ {command} ", done.stdout, flags=re.MULTILINE)
    assert "packdata pack documents.parquet packed --budget 8192" in run("pack", "--help", cwd=folder).stdout


def test_the_version_is_that_of_the_package(run_here):
    assert run_here("--version").stdout == f"packdata {packdata.__version__}\n"


def test_the_module_is_the_command(folder):
    done = run("--help", cwd=folder, command=(sys.executable, "-m", "packdata.cli"))
    assert done.returncode == 0
    assert "packdata [OPTIONS] COMMAND" in done.stdout


def test_demo_packs_and_reports(folder):
    done = run("demo", "--html", "demo.html", cwd=folder)
    assert done.returncode == 0
    assert "targets: the denominator of the loss" in done.stdout
    assert (folder / "demo.html").read_text().startswith("<!doctype html>")


def test_estimate_of_every_strategy(folder):
    options = ["--tokenizer", "bytes", "--budgets", "16,32", "--strategies", "best_fit,sequential"]
    table = run_json("estimate", "texts.jsonl", *options, cwd=folder)
    assert table["budget"] == [16, 32, 16, 32]
    assert table["strategy"] == ["best_fit"] * 2 + ["sequential"] * 2


def test_pack_prints_the_ledger_as_inspect_does(folder, run_here):
    done = run("pack", "ids.parquet", "from-parquet", "--budget", 30, cwd=folder)
    packed = datasets.load_from_disk(folder / "from-parquet")
    assert done.returncode == 0
    assert done.stdout.endswith(f"\n{len(packed)} packs in from-parquet\n")
    assert re.search(rf"^Ledger\n  documents in +{len(TEXTS)}\n", done.stdout)
    assert not re.search(r" 0$", done.stdout, flags=re.MULTILINE)
    assert done.stdout.rpartition("\n3 packs")[0] in run_here("inspect", "from-parquet").stdout
    assert sum(map(len, packed["input_ids"])) == sum(TOKENS)


@pytest.mark.parametrize("source", ["ids.parquet", "saved", "texts.jsonl", "texts.txt"])
def test_inputs_of_every_kind_pack_alike(folder, run_here, source):
    options = ["--tokenizer", "bytes"] if source.startswith("texts") else []
    counts = json.loads(run_here("pack", source, f"{source}.packed", "--budget", 30, *options, "--json").stdout)
    packed = datasets.load_from_disk(folder / f"{source}.packed")
    assert ledger_of(packed).to_dict().items() <= counts.items()
    assert sorted(map(sorted, packed["seq_lengths"])) == [[5], [6, 10, 11], [28]]


def test_options_arrive(folder, run_here):
    options = ["--strategy", "sequential", "--overlong", "truncate", "--max-documents", 2, "--align", 4]
    options += ["--seed", 7, "--window", 3, "--bos", 1, "--tokenizer", "bytes", "--sample-by", "line"]
    counts = json.loads(run_here("pack", "texts.txt", "options", "--budget", 12, *options, "--json").stdout)
    policy = Plan.load(folder / "options" / "plan").policy
    assert (policy.strategy, policy.overlong, policy.max_documents, policy.align) == ("sequential", "truncate", 2, 4)
    assert (policy.seed, policy.window, policy.budget) == (7, 3, 12)
    assert counts["tokens_in"] == sum(TOKENS) + 5


def test_a_tokenizer_file_tokenises_and_decodes(folder, run_here):
    words = {word: number for number, word in enumerate(["</s>", *sorted(set(" ".join(TEXTS).split()))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "words.json"))
    options = ["--tokenizer", "words.json", "--eos", "</s>"]
    assert run_here("pack", "texts.jsonl", "words", "--budget", 16, *options).returncode == 0
    assert run_here("check", "words", "--source", "texts.jsonl", *options).returncode == 0
    drawn = run_here("inspect", "words", "--tokenizer", "words.json", "--pack", 0).stdout
    assert re.search(r"token +│it +barked +at +the +cat +all +day +</s>│", drawn)


def test_inspect_shows_a_pack_and_writes_the_page(folder):
    done = run("inspect", "packed", "--tokenizer", "bytes", "--pack", 1, "--html", "pages/packed.html", cwd=folder)
    assert done.returncode == 0
    assert "\npack 1\nslot " in done.stdout
    assert "who attends to whom" in (folder / "pages" / "packed.html").read_text()


def test_inspect_names_documents_by_their_rows_in_the_source(folder, run_here):
    rows = {"test": [[]], "train": [[], [11] * 20, [12] * 20, [13] * 20, [14] * 20]}  # row n is of tokens 10 + n
    splits = datasets.DatasetDict(
        {split: datasets.Dataset.from_dict({"input_ids": ids}) for split, ids in rows.items()}
    )
    pack_dataset(splits, 40, seed=1, output_dir=folder / "splits")
    arguments = ["inspect", "splits", "--split", "train", "--pack", 1, "--html", "splits.html"]
    named = re.findall(r"document (\d) .* targets +1(\d)", run_here(*arguments).stdout)
    assert len(named) == 2
    assert all(row == token for row, token in named)
    assert f"document {named[1][0]} · 20 tokens" in (folder / "splits.html").read_text()
    shutil.copytree(folder / "packed" / "plan", folder / "splits" / "train" / "plan", dirs_exist_ok=True)
    drawn = run_here(*arguments).stdout
    assert "⚠ Documents are numbered within their pack: the plan beside the packs is about others." in drawn
    assert re.search(r"document 0 .*\n.*document 1 ", drawn)


def test_check_proves_conservation(folder):
    done = run("check", "packed", "--source", "texts.jsonl", *READING, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"holds {sum(TOKENS) + 5} of {sum(TOKENS) + 5} tokens" in done.stdout


def test_check_finds_another_source(run_here):
    done = run_here("check", "packed", "--source", "texts.jsonl", "--tokenizer", "bytes")
    assert done.returncode == 1
    assert done.stderr.startswith("packdata: the plan is not about this source, or not read as it was packed: document")


def test_check_finds_a_changed_token(folder):
    texts = [*TEXTS[:-1], "so it goeS"]
    (folder / "changed.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    done = run("check", "packed", "--source", "changed.jsonl", *READING, cwd=folder)
    assert done.returncode == 1
    assert re.fullmatch(r"packdata: pack \d holds other tokens than its documents in the source\n", done.stderr)


def test_strict_writes_nothing_where_tokens_would_be_lost(folder):
    options = ["--budget", 8, "--tokenizer", "bytes", "--overlong", "truncate", "--strict"]
    done = run("pack", "texts.jsonl", "strict", *options, cwd=folder)
    assert done.returncode == 1
    assert "--strict: 25 tokens of 3 documents would be truncated, 0 of 0 dropped; nothing was written" in done.stderr
    assert not (folder / "strict").exists()


def test_check_model_tells_isolation(run_here):
    done = run_here("check-model", "LlamaConfig", "--attention", "sdpa", "--json")
    assert json.loads(done.stdout) == {"sdpa": {"verdict": "isolated", "cause": None}}


def test_check_model_fails_where_documents_leak(folder):
    done = run("check-model", "MambaConfig", cwd=folder)
    assert done.returncode == 1
    assert "eager: leaks" in done.stdout
    assert "MambaMixer carries state" in done.stdout
    assert "sdpa: cannot be used: MambaForCausalLM does not support an attention implementation" in done.stdout
    assert "packdata: documents are not kept apart with eager" in done.stderr


def test_check_model_names_the_attention_that_is_not_installed(run_here, monkeypatch):
    def make(implementation):
        raise ImportError("the package is not there")

    monkeypatch.setattr("packdata.checks.tiny.model_maker", lambda model: make)
    done = run_here("check-model", "LlamaConfig", "--attention", "flash_attention_2")
    words = "attention 'flash_attention_2' cannot be used with this model on this machine: the package is not there"
    assert_one_line(done, words)


def test_check_model_fails_where_what_was_asked_for_cannot_be_used(run_here):
    done = run_here("check-model", "LlamaConfig", "--attention", "eager, nope")
    assert done.returncode == 2
    assert "eager: isolated" in done.stdout
    assert "packdata: attention 'nope' cannot be used with this model on this machine" in done.stderr


def test_estimate_refuses_padding(folder, run_here):
    rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0]}] * 3
    (folder / "padded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_one_line(run_here("estimate", "padded.jsonl"), "attention_mask must be 1 on every token")


def assert_one_line(done, words):
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"packdata: .*{re.escape(words)}.*\n", done.stderr)


WRONG = {
    "false.parquet out --budget 8": "false.parquet cannot be read as Parquet",
    "empty.jsonl out --budget 8": "empty.jsonl is empty",
    "half out --budget 8": "half is a half-written or damaged dataset",
    "texts.jsonl out --budget 8 --tokenizer bytes --text-column body": "no column 'body' among ['text', 'name']",
    "texts.jsonl out --budget 8 --tokenizer nowhere": "tokenizer path nowhere does not exist",
    "texts.jsonl packed --budget 8": "packed exists: choose another OUTPUT, or delete it",
    "texts.jsonl out --budget 0": "budget must be at least 1, got 0",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_input_gives_one_line_and_exit_code_2(folder, arguments):
    assert_one_line(run("pack", *arguments.split(), cwd=folder), WRONG[arguments])
    assert not (folder / "out").exists()
    assert not (folder / ".out.partial").exists()


WRONG_HERE = {
    "pack broken.jsonl out --budget 8 --tokenizer bytes": "broken.jsonl cannot be read as JSON lines",
    "pack nowhere.jsonl out --budget 8": "nowhere.jsonl does not exist",
    "pack texts.jsonl out --budget 8": "no column 'input_ids' among ['text', 'name']: give a tokenizer",
    "pack texts.jsonl out --budget 8 --tokenizer bytes": "with --overlong 'truncate', 'truncate_left', 'split' or",
    "pack packed out --budget 8": "or name it in --drop-columns if each row is one document",
    "pack texts.jsonl out --budget 8 --tokenizer no-tokenizer": "the folder has no file such as tokenizer.json",
    "pack texts.jsonl out --budget 8 --tokenizer empty.jsonl": "empty.jsonl is no tokenizer: EOF while parsing",
    "estimate packed": "packed holds packs, as column 'seq_lengths' says: give the documents",
    "pack texts.jsonl out --budget 8 --tokenizer bytes --eos </s>": "tokenizer bytes has no token '</s>': give its id",
    "pack texts.txt out --budget 8 --sample-by page": "--sample-by must be line, paragraph or document, got 'page'",
    "pack texts.jsonl out --budget many": "Invalid value for '--budget'",
    "pack texts.jsonl out --budget 8 --strategy worst_fit": "strategy must be one of 'best_fit', 'sequential'",
    "inspect half": "half is a half-written or damaged dataset",
    "inspect texts.txt": "texts.txt is a file: give the folder that 'packdata pack' wrote",
    "inspect saved": "saved is not packed: it has no column 'seq_lengths' among ['input_ids']",
    "inspect packed --pack 99": "pack must be from 0 to",
    "inspect packed --html texts.txt/page.html": "File exists: 'texts.txt'",
    "check saved --source texts.jsonl": "saved is not packed",
    "check-model NoConfig": "NoConfig",
    "estimate ids.parquet --split train": "ids.parquet has no splits to choose from: leave out --split 'train'",
    "estimate saved --split train": "saved has no splits to choose from: leave out --split 'train'",
    "pack texts.jsonl": "(see packdata pack --help)",
    "estimate texts.txt --budgets 8;9": "--budgets must be whole numbers such as 2048,8192, got '8;9'",
    "demo --budget 0": "budget must be at least 1, got 0",
    "polish texts.txt": "No such command 'polish'",
}


@pytest.mark.parametrize("arguments", WRONG_HERE)
def test_other_wrong_input_fails_as_politely(run_here, arguments):
    assert_one_line(run_here(*arguments.split()), WRONG_HERE[arguments])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError(), "words is no tokenizer: AssertionError"),
        (ImportError("install protobuf"), "install protobuf"),
    ],
)
def test_a_tokenizer_that_fails_in_its_own_way_is_one_line(run_here, monkeypatch, tmp_path, error, words):
    def load(*arguments, **options):
        raise error

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").touch()
    done = run_here("pack", "texts.jsonl", "out", "--budget", 8, "--tokenizer", tmp_path / "words")
    assert_one_line(done, words)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    lengths = np.random.default_rng(0).integers(1, 1000, 40_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.array(np.arange(offsets[-1], dtype=np.int32))
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), tokens)}), folder / "ids.parquet")
    return folder


def stop_while_writing(folder, name, sent):
    """Start packing and send a signal once the output is begun; once more where the run was done before it came."""
    for attempt in range(20):
        output = f"{name}{attempt}"
        process = start("pack", "ids.parquet", output, "--budget", 4096, cwd=folder)
        while not (folder / f".{output}.partial").exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(sent)
        _, stderr = process.communicate()
        if process.returncode:
            return output, process.returncode, stderr
    raise AssertionError("every run was done before the signal came")


def test_a_killed_run_leaves_nothing_that_looks_finished(large):
    output, code, _ = stop_while_writing(large, "killed", signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (large / output).exists()
    assert run_json("pack", "ids.parquet", output, "--budget", 4096, cwd=large)["tokens_dropped"] == 0
    assert not (large / f".{output}.partial").exists()


def test_ctrl_c_is_clean(large):
    output, code, stderr = stop_while_writing(large, "interrupted", signal.SIGINT)
    assert (code, stderr) == (130, "packdata: interrupted\n")
    assert not (large / output).exists()
    assert not (large / f".{output}.partial").exists()


def test_a_reader_that_had_enough_is_no_error(folder):
    process = start("estimate", "texts.txt", "--tokenizer", "bytes", cwd=folder)
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == ""
    process.stderr.close()

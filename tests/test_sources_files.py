import gzip
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, models, pre_tokenizers

from packdata.sources.files import marker_id, read_documents
from packdata.sources.tokenizing import Tokenize

datasets.disable_progress_bars()

TEXTS = ["a b", "", "é b a"]
BYTES = [list(text.encode()) for text in TEXTS]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer of words."""
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2, "</s>": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def write(path, texts=TEXTS):
    """Write texts in the format that the path's name says."""
    table = pa.table({"text": texts, "id": list(range(len(texts)))})
    lines = "".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(texts))
    if path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".jsonl":
        path.write_text(lines)
    elif path.suffix == ".json":
        path.write_text(json.dumps(table.to_pylist()))
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("\n".join(texts))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "a.arrow", "a.txt", "a.md"])
def test_every_format_gives_the_same_tokens(name, tmp_path):
    dataset = read_documents(write(tmp_path / name), tokenizer="bytes")
    assert dataset[:] == {"input_ids": BYTES}
    assert dataset.features["input_ids"] == datasets.List(datasets.Value("int32"))


def test_arrow_files_of_either_kind(tmp_path):
    table = pa.table({"input_ids": [[1, 2], [3]]})
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert read_documents(tmp_path / "file.arrow")[:] == {"input_ids": [[1, 2], [3]]}


def test_folders_and_lists_of_files(tmp_path):
    (tmp_path / "in").mkdir()
    one, two = write(tmp_path / "in" / "1.jsonl", ["a"]), write(tmp_path / "in" / "2.jsonl", ["b"])
    (tmp_path / "in" / "README").write_text("not data")
    for path in (tmp_path / "in", [one, two], str(tmp_path / "in")):
        assert read_documents(path, tokenizer="bytes")[:] == {"input_ids": [[97], [98]]}


def test_saved_datasets_and_their_splits(tmp_path):
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / "splits")
    assert read_documents(tmp_path / "one")[:] == dataset[:]
    assert read_documents(tmp_path / "splits", split="train")[:] == dataset[:]
    with pytest.raises(ValueError, match=r"has the splits \['train'\]: choose one with split=, got None"):
        read_documents(tmp_path / "splits")
    (tmp_path / "one" / "state.json").unlink()
    (tmp_path / "one" / "dataset_info.json").unlink()
    with pytest.raises(ValueError, match="half-written or damaged dataset"):
        read_documents(tmp_path / "one")


def test_text_by_line_paragraph_or_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n\nc")
    lengths = {
        by: [len(ids) for ids in read_documents(path, tokenizer="bytes", sample_by=by)["input_ids"]]
        for by in ("line", "paragraph", "document")
    }
    assert lengths == {"line": [1, 1, 0, 1], "paragraph": [3, 1], "document": [6]}


def test_a_tokenizer_file(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl")
    assert read_documents(path, tokenizer=tokenizer)[:] == {"input_ids": [[0, 1], [], [2, 1, 0]]}


def test_a_tokenizer_folder(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_file=tokenizer).save_pretrained(tmp_path / "folder")
    path = write(tmp_path / "a.jsonl")
    assert read_documents(path, tokenizer=str(tmp_path / "folder"))[:] == {"input_ids": [[0, 1], [], [2, 1, 0]]}
    assert marker_id("</s>", str(tmp_path / "folder")) == 3


def test_tokens_are_read_as_they_are(tmp_path):
    pq.write_table(pa.table({"input_ids": pa.array([[1, 2], [3]], pa.list_(pa.uint16()))}), tmp_path / "a.parquet")
    dataset = read_documents(tmp_path / "a.parquet")
    assert dataset.features["input_ids"].feature == datasets.Value("uint16")
    assert dataset[:] == {"input_ids": [[1, 2], [3]]}


def test_missing_texts_and_sliced_columns_tokenise():
    tokenize = Tokenize("bytes")
    table = pa.table({"text": ["x", "é", None, "ab"]})
    assert tokenize(table.slice(1)).to_pydict() == {"input_ids": [[195, 169], [], [97, 98]]}
    assert tokenize(table.slice(4)).to_pydict() == {"input_ids": []}


def test_the_tokenizers_hash_is_that_of_its_file(tokenizer):
    """H5."""
    tokenize = Tokenize(tokenizer)
    before = Hasher.hash(tokenize)
    tokenize(pa.table({"text": ["a b"]}))
    assert Hasher.hash(tokenize) == before == Hasher.hash(Tokenize(tokenizer))
    with open(tokenizer, "a") as file:
        file.write("\n")
    assert Hasher.hash(Tokenize(tokenizer)) != before


@pytest.mark.parametrize(("marker", "expected"), [(None, None), (5, 5), ("256", 256), ("</s>", 3)])
def test_markers_are_ids_or_tokens(marker, expected, tokenizer):
    assert marker_id(marker, tokenizer) == expected


def test_markers_that_are_none(tokenizer):
    with pytest.raises(ValueError, match=r"has no token '<eos>': give its id"):
        marker_id("<eos>", tokenizer)
    with pytest.raises(ValueError, match="there is no tokenizer to look it up in"):
        marker_id("<eos>", None)


CONTENTS = [
    ("a.jsonl", b"garbage", r"a.jsonl cannot be read as JSON lines: "),
    ("a.jsonl", b"PAR1\x00\x01", r"a.jsonl cannot be read as JSON lines: "),
    ("a.parquet", b'{"text": "a"}\n', r"a.parquet cannot be read as Parquet: "),
    ("a.parquet", b"PAR1" + b"\x00" * 20 + b"PAR1", r"a.parquet cannot be read as Parquet: "),
    ("a.arrow", b"not arrow at all", r"a.arrow cannot be read as Arrow: "),
    ("a.txt", b"\xff\xfe\x00", r"a.txt cannot be read as text: 'utf-8' codec can't decode"),
    ("a.jsonl.gz", b"not gzip", r"a.jsonl.gz cannot be read as JSON lines: "),
    ("a.jsonl", b"", r"a.jsonl is empty"),
    ("a.parquet", b"", r"a.parquet is empty"),
    ("a.csv", b"x", r"a.csv is of no known kind: its name must end in one of .jsonl, "),
    ("a", b"x", r"a is of no known kind"),
]


@pytest.mark.parametrize(("name", "content", "message"), CONTENTS, ids=[f"{case[0]} {case[1]!r}" for case in CONTENTS])
def test_a_file_that_is_not_what_its_name_says(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_documents(tmp_path / name, tokenizer="bytes")


def test_bad_input_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"has no column 'input_ids' among \['text', 'id'\]: give a tokenizer"):
        read_documents(path)
    with pytest.raises(ValueError, match=r"has no column 'body' among \['text', 'id'\]: name the text column"):
        read_documents(path, tokenizer="bytes", text_column="body")
    with pytest.raises(ValueError, match=r"column 'id' of .* must hold text, got int64"):
        read_documents(path, tokenizer="bytes", text_column="id")
    with pytest.raises(FileNotFoundError, match=r"tokenizer path /nowhere does not exist \(a tokenizer.json, a folder"):
        read_documents(path, tokenizer="/nowhere")
    with pytest.raises(ValueError, match=r"a.jsonl is no tokenizer: "):
        read_documents(path, tokenizer=str(path))
    with pytest.raises(FileNotFoundError, match=r"b\.jsonl does not exist"):
        read_documents(tmp_path / "b.jsonl")
    with pytest.raises(ValueError, match=r"of one kind, got \['JSON lines', 'text'\]"):
        read_documents([path, write(tmp_path / "a.txt")])
    with pytest.raises(ValueError, match="no input path was given"):
        read_documents([])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="holds neither a saved dataset nor files of a known kind"):
        read_documents(tmp_path / "nothing")
    pq.write_table(pa.table({"input_ids": pa.array([], pa.list_(pa.int32()))}), tmp_path / "none.parquet")
    with pytest.raises(ValueError, match=r"none\.parquet holds no documents"):
        read_documents(tmp_path / "none.parquet")


def test_reading_twice_finds_the_cache(tmp_path):
    path = write(tmp_path / "a.jsonl")
    first, second = (read_documents(path, tokenizer="bytes") for _ in range(2))
    assert first.cache_files == second.cache_files != []
    assert first._fingerprint == second._fingerprint
    np.testing.assert_array_equal(first[0]["input_ids"], second[0]["input_ids"])

"""Documents from files: JSON lines, Parquet, Arrow, text and saved datasets, tokenised where they are still text.

    read_documents(path, *, tokenizer=None, text_column="text", split=None, sample_by="line", num_proc=None)
        -> datasets.Dataset with a column input_ids
    marker_id(marker, tokenizer) -> int | None, for options such as --eos: an id, or a token of the tokenizer

Both raise ``ValueError`` or ``FileNotFoundError`` with one line that says what is wrong and the way out. Reading is
that of ``datasets``: converted once, kept in its cache and memory-mapped from there, so that memory stays bounded.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .tokenizing import Tokenize

Paths = str | Path | Sequence[str | Path]
SampleBy = Literal["line", "paragraph", "document"]

KINDS = {
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
HALF_WRITTEN = re.compile(r"data-\d{5}-of-\d{5}\.arrow")


def read_documents(
    path: Paths,
    *,
    tokenizer: str | None = None,
    text_column: str = "text",
    split: str | None = None,
    sample_by: SampleBy = "line",
    num_proc: int | None = None,
) -> datasets.Dataset:
    """Read documents as a dataset with a column ``input_ids``.

    Args:
        path: A file (``.jsonl``, ``.json``, ``.parquet``, ``.arrow``, ``.txt``, ``.md``, also compressed), several of
            one kind, a folder of them, or a folder that ``save_to_disk`` wrote.
        tokenizer: ``"bytes"`` (UTF-8 bytes as ids 0 to 255), a ``tokenizer.json``, or a folder that
            ``transformers.AutoTokenizer`` loads; None if the documents have ``input_ids`` already. No special token is
            added: that is what markers are for.
        text_column: The column to tokenise; the other columns are left behind with it.
        split: Which split of a saved ``DatasetDict``.
        sample_by: What a document of a text file is.
        num_proc: Processes that tokenise.

    Raises:
        FileNotFoundError: If the path or the tokenizer does not exist.
        ValueError: If a file is not what its name says, holds no document, or lacks the column (those there are
            listed).
    """
    dataset = _load(path, split, sample_by)
    where = path if isinstance(path, str | Path) else path[0]
    if len(dataset) == 0:
        raise ValueError(f"{where} holds no documents")
    if tokenizer is not None:
        return _tokenised(dataset, Tokenize(tokenizer, text_column), str(where), num_proc)
    if "input_ids" not in dataset.column_names:
        raise ValueError(
            f"{where} has no column 'input_ids' among {dataset.column_names}: give a tokenizer (a path, or 'bytes') "
            "to make it from a text column"
        )
    return dataset


def marker_id(marker: str | int | None, tokenizer: str | None) -> int | None:
    """Turn what a user types for a begin or end marker into a token id.

    Args:
        marker: A token id, its digits, a token of the tokenizer such as ``"</s>"``, or None for no marker.
        tokenizer: The tokenizer's path, needed for a token that is not a number.

    Raises:
        ValueError: If the tokenizer does not know the token.

    Example:
        >>> marker_id("256", "bytes")
        256
    """
    if marker is None or isinstance(marker, int) or marker.isdecimal():
        return None if marker is None else int(marker)
    if tokenizer is None:
        raise ValueError(f"marker {marker!r} is no token id, and there is no tokenizer to look it up in")
    token_id = Tokenize(tokenizer).token_id(marker)
    if token_id is None:
        raise ValueError(f"tokenizer {tokenizer} has no token {marker!r}: give its id")
    return token_id


def _load(path: Paths, split: str | None, sample_by: SampleBy) -> datasets.Dataset:
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    if not paths:
        raise ValueError("no input path was given")
    for each in paths:
        if not each.exists():
            raise FileNotFoundError(f"{each} does not exist")
    if split is not None and not any((each / "dataset_dict.json").exists() for each in paths):
        raise ValueError(f"{paths[0]} has no splits to choose from: leave out split={split!r}")
    if len(paths) == 1 and paths[0].is_dir() and not _data_files(paths[0]):
        return _saved_dataset(paths[0], split)
    files = [file for each in paths for file in (_data_files(each) if each.is_dir() else [each])]
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        raise ValueError(f"input files must be of one kind, got {sorted(kinds)}: pack each kind on its own")
    filled = [str(file) for file in files if file.stat().st_size]
    if not filled:
        raise ValueError(f"{files[0]} is empty")
    return _read(kinds.pop(), filled, sample_by)


def _data_files(folder: Path) -> list[Path]:
    """List a folder's data files; none where it is a saved dataset, finished or not."""
    if any((folder / name).exists() for name in ("state.json", "dataset_info.json", "dataset_dict.json")):
        return []
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    if any(HALF_WRITTEN.fullmatch(file.name) for file in files):
        return []
    known = [file for file in files if _suffix(file) in KINDS]
    if not known:
        raise ValueError(f"{folder} holds neither a saved dataset nor files of a known kind ({', '.join(KINDS)})")
    return known


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    plain = [suffix for suffix in suffixes[-2:] if suffix not in COMPRESSIONS]
    return plain[-1] if plain else ""


def _kind(file: Path) -> str:
    suffix = _suffix(file)
    if suffix not in KINDS:
        raise ValueError(f"{file} is of no known kind: its name must end in one of {', '.join(KINDS)}")
    return KINDS[suffix]


def _saved_dataset(folder: Path, split: str | None) -> datasets.Dataset:
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:  # JSONDecodeError and ArrowInvalid are ValueErrors
        raise ValueError(f"{folder} is a half-written or damaged dataset, write it again: {_one_line(error)}") from None
    if isinstance(loaded, datasets.Dataset):
        return loaded
    if split not in loaded:
        raise ValueError(f"{folder} has the splits {sorted(loaded)}: choose one with split=, got {split!r}")
    return loaded[split]


def _read(kind: str, files: list[str], sample_by: SampleBy) -> datasets.Dataset:
    readers: dict[str, Callable[[], datasets.Dataset]] = {
        "JSON lines": lambda: datasets.Dataset.from_json(files),
        "Parquet": lambda: _parquet_files(files),
        "Arrow": lambda: datasets.concatenate_datasets([_arrow_file(file) for file in files]),
        "text": lambda: datasets.Dataset.from_text(files, sample_by=sample_by),
    }
    try:
        with _quiet():
            return readers[kind]()
    except StopIteration:
        raise ValueError(f"{files[0]} holds no documents") from None
    except (datasets.exceptions.DatasetGenerationError, pa.ArrowException, ValueError, OSError) as error:
        cause = error.__cause__ or error
        raise ValueError(f"{', '.join(files)} cannot be read as {kind}: {_one_line(cause)}") from None


def _parquet_files(files: list[str]) -> datasets.Dataset:
    filled = [file for file in files if pq.read_metadata(file).num_rows]
    return datasets.Dataset.from_parquet(filled) if filled else datasets.Dataset(pq.read_table(files[0]))


def _arrow_file(file: str) -> datasets.Dataset:
    try:
        return datasets.Dataset.from_file(file)  # the stream format, which datasets writes
    except pa.ArrowInvalid:
        with pa.memory_map(file) as source:
            return datasets.Dataset(pa.ipc.open_file(source).read_all())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep datasets from logging what is about to be raised."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _tokenised(dataset: datasets.Dataset, tokenize: Tokenize, where: str, num_proc: int | None) -> datasets.Dataset:
    column = tokenize.text_column
    if column not in dataset.column_names:
        way = "leave out the tokenizer" if "input_ids" in dataset.column_names else "name the text column"
        raise ValueError(f"{where} has no column {column!r} among {dataset.column_names}: {way}")
    kind: Any = dataset.data.schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"column {column!r} of {where} must hold text, got {kind}")
    texts = dataset.select_columns([column]).with_format("arrow")
    tokens = texts.map(tokenize, batched=True, remove_columns=[column], num_proc=num_proc, desc="Tokenising")
    return tokens.with_format(None)

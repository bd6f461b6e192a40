"""Documents and packed datasets from what stands on the command line."""

import sys
from pathlib import Path
from typing import Any, cast

import datasets

from packdata.sources.files import SampleBy, marker_id, read_documents
from packdata.sources.tokenizing import BYTES, Tokenize


def open_dataset(
    path: Path, *, tokenizer: str | None, text_column: str, split: str | None, sample_by: str
) -> datasets.Dataset:
    """Read an input as tokenised documents, without markers."""
    if sample_by not in ("line", "paragraph", "document"):
        raise ValueError(f"--sample-by must be line, paragraph or document, got {sample_by!r}")
    if not sys.stderr.isatty():  # bars are for people who watch
        datasets.disable_progress_bars()
    by = cast(SampleBy, sample_by)
    return read_documents(path, tokenizer=tokenizer, text_column=text_column, split=split, sample_by=by)


def markers(tokenizer: str | None, *, bos: str | None, eos: str | None) -> dict[str, int | None]:
    """Say which tokens documents begin and end with."""
    return {"bos_token_id": marker_id(bos, tokenizer), "eos_token_id": marker_id(eos, tokenizer)}


def open_packed(path: Path, split: str | None = None) -> datasets.Dataset:
    """Load a packed dataset.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is half-written or not packed.
    """
    if path.is_file():
        raise ValueError(f"{path} is a file: give the folder that 'packdata pack' wrote")
    packed = read_documents(path, split=split)
    if "seq_lengths" not in packed.column_names:
        raise ValueError(f"{path} is not packed: it has no column 'seq_lengths' among {packed.column_names}")
    return packed


def load_decoder(tokenizer: str | None) -> Any:
    """Load what the reports decode tokens with."""
    return tokenizer if tokenizer is None or tokenizer == BYTES else Tokenize(tokenizer).loaded

"""Text to token ids, batch by batch, for ``Dataset.map`` in the arrow format."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BYTES = "bytes"


class Tokenize:
    """A column of texts to a column ``input_ids``, int32, without special tokens.

    It pickles, and hashes for the cache of ``datasets``, as its path and the digest of what lies there: the tokenizer
    itself is loaded where it is used, and using it changes no hash.

    Args:
        tokenizer: ``"bytes"`` (UTF-8 bytes), a ``tokenizer.json``, or a folder that ``AutoTokenizer`` loads.
        text_column: The column to read.

    Raises:
        FileNotFoundError: If the path does not exist.
    """

    def __init__(self, tokenizer: str, text_column: str = "text"):
        self.tokenizer, self.text_column = tokenizer, text_column
        self.digest = "" if tokenizer == BYTES else _digest(Path(tokenizer))

    def __getstate__(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer, "text_column": self.text_column, "digest": self.digest}

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Tokenise the texts of one batch; a missing text is an empty document."""
        texts = pc.fill_null(batch.column(self.text_column), "").combine_chunks()
        texts = pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
        ids = _utf8(texts) if self.tokenizer == BYTES else self._encode(texts.to_pylist())
        return pa.table({"input_ids": ids})

    def token_id(self, token: str) -> int | None:
        """Look up a token, None if there is no such token."""
        if self.tokenizer == BYTES:
            return None
        found: int | None = self.loaded.get_vocab().get(token)
        return found

    def _encode(self, texts: list[str]) -> pa.Array:
        if self._is_file:
            ids = [encoding.ids for encoding in self.loaded.encode_batch(texts, add_special_tokens=False)]
        else:
            ids = self.loaded(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return pa.array(ids, pa.list_(pa.int32()))

    @property
    def _is_file(self) -> bool:
        return Path(self.tokenizer).is_file()

    @cached_property
    def loaded(self) -> Any:
        """The tokenizer itself: a ``tokenizers.Tokenizer`` of a file, a transformers tokenizer of a folder."""
        try:
            if self._is_file:
                from tokenizers import Tokenizer

                return Tokenizer.from_file(self.tokenizer)
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True)
        except ImportError:
            raise
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"{self.tokenizer} is no tokenizer: {self._cause(error)}") from None

    def _cause(self, error: Exception) -> str:
        """Say in one line what is wrong: of a folder, what transformers says suits no one who gave a wrong path."""
        if not self._is_file and not any(Path(self.tokenizer).glob("*token*")):
            return "the folder has no file such as tokenizer.json or tokenizer_config.json"
        return " ".join(str(error).split()) or type(error).__name__


def _utf8(texts: pa.Array) -> pa.Array:
    """See the bytes of a string array as lists: its offsets are theirs."""
    strings = texts.cast(pa.large_string())
    _, offsets, data = strings.buffers()
    bounds = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    first, last = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
    values = np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
    return pa.ListArray.from_arrays(pa.array((bounds - first).astype(np.int32)), pa.array(values.astype(np.int32)))


def _digest(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(f"tokenizer path {path} does not exist (a tokenizer.json, a folder, or 'bytes')")
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path.glob("*token*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()

"""Write a packed dataset to a folder: window by window, and all of it or nothing.

    .name.partial/   while it is written; of no interest to anyone, and removed by the next run
    name/            appears by one rename when everything is in it:
        data-00000-of-00001.arrow, dataset_info.json, state.json    what datasets.load_from_disk reads
        plan/            which spans lie in which pack (Plan.load)
        ledger.json      what became of every document
        packing.json     the fingerprint of data and policy

One process at a time writes a folder (a file lock, which ends with its process); the others then find it finished.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from filelock import FileLock

from packdata.planning import Plan

from .documents import Documents
from .packing import gather_batches, packed_schema

DATA = "data-00000-of-00001.arrow"


def store(folder: Path, fingerprint: str, write: Callable[[Path], None]) -> None:
    """Write a folder, all of it or nothing; if another process is at it, wait for that.

    Args:
        folder: Where the result is to be.
        fingerprint: That of data and policy.
        write: Writes everything into a folder that it is given.

    Raises:
        OSError: If it cannot be written, as when the disk is full; nothing is left behind then.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.parent / f".{folder.name}.lock"
    lock.touch()  # raises where no file can be made; the lock would wait for one for ever
    with FileLock(lock):
        if not is_stored(folder, fingerprint):
            _write_whole(folder, fingerprint, write)
    lock.unlink(missing_ok=True)  # who waits for it finds the folder finished


def load(folder: Path) -> datasets.Dataset:
    """Open a stored dataset, memory-mapped."""
    return datasets.Dataset.load_from_disk(str(folder), keep_in_memory=False)


def write_packed(folder: Path, documents: Documents, plan: Plan, *, like: datasets.Dataset) -> None:
    """Write packs, plan and ledger into a folder; ``like`` has the split, format and fingerprint to give them.

    Memory stays bounded by a window of packs.
    """
    schema = packed_schema(documents)
    with pa.OSFile(str(folder / DATA), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in gather_batches(documents, plan, schema):
            writer.write_batch(batch)
    plan.save(folder / "plan")
    state = {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": like._fingerprint,
        "_format_columns": None,
        "_format_kwargs": like.format["format_kwargs"],
        "_format_type": like.format["type"],
        "_output_all_columns": False,
        "_split": None if like.split is None else str(like.split),
    }
    write_json(folder / "ledger.json", plan.ledger.to_dict())
    write_json(folder / "dataset_info.json", asdict(like.info))
    write_json(folder / "state.json", state)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, all of it or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=False), encoding="utf-8")
    partial.replace(path)


def _write_whole(folder: Path, fingerprint: str, write: Callable[[Path], None]) -> None:
    partial = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        partial.mkdir()
        write(partial)
        write_json(partial / "packing.json", {"fingerprint": fingerprint})
        _flush(partial / DATA)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(path: Path) -> None:
    """Have the data on disk before the rename says that it is."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def is_stored(folder: Path, fingerprint: str) -> bool:
    """Tell whether the packs of a fingerprint stand in a folder.

    Raises:
        FileExistsError: If something else stands there.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / "packing.json").read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FileExistsError(f"{folder} exists and is no packed dataset: choose another output_dir") from None
    if found != fingerprint:
        raise FileExistsError(
            f"{folder} was packed from other data or with another policy (fingerprint {found}, now {fingerprint}): "
            "choose another output_dir, or delete that folder"
        )
    return True

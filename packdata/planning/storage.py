"""Plans on disk: one ``.npy`` file per array, read by memory map, and a JSON file that says what they must be.

The JSON file is written last and holds the checksum of each array. So a folder that a killed run left, a plan of
another version, or a file with a flipped bit is refused.
"""

import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import Array, blocks
from .ledger import Ledger
from .policy import Policy

if TYPE_CHECKING:
    from .plan import Plan

_FORMAT = "packdata plan"
_VERSION = 1
_HEADER = "plan.json"
ARRAYS = ("bounds", "documents", "lengths", "starts")


def save_plan(plan: "Plan", folder: Path) -> None:
    """Write a plan; see ``Plan.save``."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: getattr(plan, name) for name in ARRAYS if getattr(plan, name) is not None}
    for name, array in arrays.items():
        _replace(folder / f"{name}.npy", array)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "policy": asdict(plan.policy),
        "ledger": plan.ledger.to_dict(),
        "fingerprint": plan.fingerprint,
        "checksums": {name: _checksum(array) for name, array in arrays.items()},
    }
    _replace(folder / _HEADER, json.dumps(header, indent=1).encode())


def load_fields(folder: Path) -> dict[str, Any]:
    """Read the fields of a plan, its arrays memory-mapped.

    Raises:
        ValueError: If the folder does not hold a whole and undamaged plan of this version.
    """
    header = _header(folder)
    try:
        arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in header["checksums"]
        }
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"damaged plan in {folder}: {error}") from None
    for name, array in arrays.items():
        if _checksum(array) != header["checksums"][name]:
            raise ValueError(f"damaged plan in {folder}: {name}.npy is not the file that was saved; plan again")
    try:
        policy, ledger = Policy(**header["policy"]), Ledger.from_dict(header["ledger"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"damaged plan in {folder}: {error}") from None
    return {"starts": None, **arrays, "policy": policy, "ledger": ledger, "fingerprint": header["fingerprint"]}


def _header(folder: Path) -> dict[str, Any]:
    try:
        header = json.loads((folder / _HEADER).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"no saved plan in {folder}: {_HEADER} cannot be read ({error})") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(f"no saved plan in {folder}: {_HEADER} is of something else")
    if header.get("version") != _VERSION:
        raise ValueError(
            f"the plan in {folder} is of version {header.get('version')}, and this is for {_VERSION}; plan again"
        )
    wanted = {"policy": dict, "ledger": dict, "fingerprint": str, "checksums": dict}
    wrong = [name for name, kind in wanted.items() if not isinstance(header.get(name), kind)]
    names = set() if wrong else set(header["checksums"])
    if wrong or not set(ARRAYS[:-1]) <= names <= set(ARRAYS):
        raise ValueError(f"damaged plan in {folder}: {_HEADER} lacks {', '.join(wrong) or 'arrays'}")
    return header


def _checksum(array: Array) -> int:
    checksum = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    for block in blocks(len(array)) if array.ndim else ():
        checksum = zlib.crc32(np.ascontiguousarray(array[block]).data, checksum)
    return checksum


def _replace(path: Path, content: Array | bytes) -> None:
    """Write beside the file and move it into place: a plan may be saved over the files that it is mapped from."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            np.save(file, content, allow_pickle=False)
    beside.replace(path)

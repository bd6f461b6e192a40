"""The ledger of a packed dataset, one JSON line in its description.

The description is the one place that ``datasets`` carries through save and load, ``select``, ``map``, ``DatasetDict``
and ``concatenate_datasets`` (it is lost through Parquet and a push to the hub). The number of packs stands beside the
ledger, so that it shows when packs were taken out since.
"""

import json
import warnings

import datasets

from packdata.planning import Ledger
from packdata.planning.edge import no_type_check, require_at_least

MARK = "packdata-ledger: "


@no_type_check
def ledger_of(packed: datasets.Dataset | datasets.DatasetDict) -> Ledger | dict[str, Ledger]:
    """Read the ledger that ``pack_dataset`` left in a dataset.

    Args:
        packed: What ``pack_dataset`` returned, also saved and loaded, selected, mapped or concatenated since.

    Returns:
        The ledger (of concatenated datasets: their sum); for a ``DatasetDict`` one for each split.

    Warns:
        UserWarning: If the dataset has another number of packs than the ledger is about.

    Raises:
        ValueError: If there is no ledger, or a damaged one.
    """
    if isinstance(packed, datasets.DatasetDict):
        return {split: _ledger_of(part) for split, part in packed.items()}
    if not isinstance(packed, datasets.Dataset):
        raise TypeError(f"ledger_of reads a datasets.Dataset or DatasetDict, got {type(packed).__name__}")
    return _ledger_of(packed)


def _ledger_of(packed: datasets.Dataset) -> Ledger:
    lines = [line for line in (packed.info.description or "").splitlines() if line.startswith(MARK)]
    if not lines:
        raise ValueError(
            "the dataset has no ledger in info.description: pack_dataset did not make it, or it went through Parquet"
        )
    entries = [_entry(line.removeprefix(MARK)) for line in lines]
    packs = sum(count for count, _ in entries)
    if packs != len(packed):
        warnings.warn(
            f"the ledger is about {packs} packs, but the dataset has {len(packed)}: it was cut or extended since",
            stacklevel=3,
        )
    return sum((ledger for _, ledger in entries), Ledger())


def _entry(text: str) -> tuple[int, Ledger]:
    """Read the number of packs and the ledger of one line."""
    try:
        entry = json.loads(text)
        return require_at_least(entry["packs"], 0, "packs"), Ledger.from_dict(entry["ledger"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the dataset has a damaged ledger in info.description ({type(error).__name__}: {error}): pack it "
            f"again, or take out the line that begins with {MARK!r}"
        ) from None


def with_ledger(description: str | None, ledger: Ledger, packs: int) -> str:
    """Put a ledger into a description, in place of any that was there."""
    kept = [line for line in (description or "").splitlines() if not line.startswith(MARK)]
    return "\n".join([*kept, MARK + json.dumps({"packs": packs, "ledger": ledger.to_dict()})])

"""``pack_dataset``: a Hugging Face dataset in, a packed one out."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import datasets
import numpy as np
import pyarrow as pa

from packdata.planning.edge import no_type_check
from packdata.planning.items import as_groups
from packdata.planning.plan import Plan
from packdata.planning.policy import Policy

from .documents import Documents
from .ledgers import with_ledger
from .packing import gather_batches, named_columns, packable, packed_schema
from .planned import PlanOptions, Untargeted, plan_documents, refuse_unknown
from .storage import is_stored, load, store, write_json, write_packed

LAYOUT = 1
"""Version of what is written; another one is another fingerprint."""


@no_type_check
def pack_dataset(
    dataset: datasets.Dataset | datasets.DatasetDict,
    budget: int,
    *,
    untargeted: Untargeted = "keep",
    drop_columns: Collection[str] = (),
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    output_dir: str | Path | None = None,
    **policy: Unpack[PlanOptions],
) -> datasets.Dataset | datasets.DatasetDict:
    """Pack a dataset under one plan over all of it.

    The result depends on the documents and the options alone, not on batches, processes or row groups. An in-memory
    dataset gives an in-memory result. Otherwise, and with ``output_dir``, it is written in bounded memory, all of it or
    nothing, and found again when the same data are packed under the same policy; it stays memory-mapped.

    Args:
        dataset: Documents, one per row; a ``DatasetDict`` is packed split by split.
        budget: The most tokens in a pack.
        untargeted: What happens to documents left without a target, after any cut: ``"keep"``, ``"drop"``, ``"error"``.
        drop_columns: Columns to leave behind. Each that is not per token must be named.
        bos_token_id: Token to begin each document with where it is missing.
        eos_token_id: Token to end each document with where it is missing.
        output_dir: Where to write, in the format of ``save_to_disk``, with the plan and the ledger beside the data;
            None for the cache of ``datasets``.
        **policy: Options of ``plan_packs``, which ``help(packdata.plan_packs)`` explains:
            ``strategy="best_fit"``: or ``"sequential"``, ``"concat"``.
            ``overlong="error"``: or ``"truncate"``, ``"truncate_left"``, ``"split"``, ``"drop"``.
            ``max_documents=None``: the most documents in a pack.
            ``align=1``: each span takes a multiple of this many slots.
            ``groups=None``: documents of one group share a pack; for a ``DatasetDict``, a dict by split.
            ``window=None``: plan every so many consecutive documents on their own.
            ``seed=None``: permutes documents of equal length, and shuffles the packs.
            ``packs_multiple_of=1``: the number of packs is a multiple of this.

    Returns:
        One pack per row; columns as ``pack_table`` gives them. ``ledger_of`` reads what became of every document.

    Raises:
        ValueError: As ``pack_table`` does.
        TypeError: If it is no such dataset, or an option is unknown.
        FileExistsError: If ``output_dir`` holds anything else than these packs.

    Example:
        >>> documents = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5], [6]]})
        >>> pack_dataset(documents, budget=4)[:]
        {'input_ids': [[1, 2, 3, 6], [4, 5]], 'seq_lengths': [[3, 1], [2]]}
    """
    refuse_unknown("pack_dataset", policy)
    options: dict[str, Any] = {"untargeted": untargeted, "drop_columns": named_columns(drop_columns)}
    options |= {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
    if isinstance(dataset, datasets.DatasetDict):
        return datasets.DatasetDict(_pack_splits(dataset, budget, output_dir, options | dict(policy)))
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(
            f"pack_dataset packs a datasets.Dataset or DatasetDict, got {type(dataset).__name__} "
            "(pack_table packs Arrow tables, StreamPacker streams)"
        )
    fingerprint = _fingerprint(dataset, budget, options, policy)
    folder = Path(output_dir) if output_dir is not None else _cache_folder(dataset, fingerprint)
    if folder is not None and is_stored(folder, fingerprint):
        return load(folder)
    documents = packable(dataset, drop_columns, bos_token_id=bos_token_id, eos_token_id=eos_token_id)
    plan = plan_documents(documents, budget, untargeted=untargeted, **policy)
    if folder is None:
        return _packed(dataset, documents, plan, fingerprint)
    empty = _packed(dataset, documents, plan, fingerprint, filled=False)
    store(folder, fingerprint, lambda partial: write_packed(partial, documents, plan, like=empty))
    return load(folder)


def _packed(
    dataset: datasets.Dataset, documents: Documents, plan: Plan, fingerprint: str, *, filled: bool = True
) -> datasets.Dataset:
    """Make the packed dataset in memory; without its packs, if not ``filled``."""
    schema = packed_schema(documents)
    table = pa.Table.from_batches(gather_batches(documents, plan, schema) if filled else [], schema)
    given = dataset.info
    info = datasets.DatasetInfo(
        description=with_ledger(given.description, plan.ledger, len(plan)),
        features=datasets.Features.from_arrow_schema(schema),
        citation=given.citation,
        homepage=given.homepage,
        license=given.license,
    )
    packed = datasets.Dataset(table, info=info, split=dataset.split, fingerprint=fingerprint)
    return packed.with_format(dataset.format["type"], **dataset.format["format_kwargs"])


def _pack_splits(
    splits: Mapping[str, datasets.Dataset], budget: int, output_dir: str | Path | None, options: dict[str, Any]
) -> dict[str, datasets.Dataset]:
    groups = options.pop("groups", None)
    if groups is not None and (not isinstance(groups, Mapping) or groups.keys() != splits.keys()):
        raise ValueError(f"groups of a DatasetDict must be a dict by split, {sorted(splits)}")
    packed = {}
    for split, dataset in splits.items():
        folder = None if output_dir is None else Path(output_dir) / split
        theirs = options if groups is None else options | {"groups": groups[split]}
        packed[split] = pack_dataset(dataset, budget, output_dir=folder, **theirs)
    if output_dir is not None:
        write_json(Path(output_dir) / "dataset_dict.json", {"splits": list(splits)})
    return packed


def _fingerprint(dataset: datasets.Dataset, budget: int, options: dict[str, Any], policy: PlanOptions) -> str:
    """Digest data and policy; options that say what is the default anyway change nothing."""
    plain: dict[str, Any] = {name: value for name, value in policy.items() if name != "groups"}
    groups = policy.get("groups")
    parts = [LAYOUT, dataset._fingerprint, asdict(Policy(budget=budget, **plain)), options]
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True, default=int).encode(), digest_size=16)
    if groups is not None:
        digest.update(np.ascontiguousarray(as_groups(groups, len(dataset)), np.int64).tobytes())
    return digest.hexdigest()


def _cache_folder(dataset: datasets.Dataset, fingerprint: str) -> Path | None:
    """Say where ``datasets`` would cache the result; None for a dataset in memory."""
    if not dataset.cache_files:
        return None
    return Path(dataset._get_cache_file_path(fingerprint)).with_name(f"packed-{fingerprint}")

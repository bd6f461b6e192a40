"""Items: what must stay together in a pack, a span or a group of documents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .blocks import Array, index_dtype
from .overlong import over_budget
from .policy import Policy


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Items:
    """What is packed as one, in order. Items of equal key may take each other's place.

    Attributes:
        keys: One key per item, larger for larger items, 0 for items that are left out; any integer dtype. Without
            groups the key is the length of the span.
        align: Slots in a unit.
        sizes: Units of an item of each key; None where the key is a length.
        weights: Documents in an item of each key; None where each item is one span.
        members: The items' spans, and where those of each item begin, with their number at the end; None where item
            i is span i.
    """

    keys: Array
    align: int
    sizes: Array | None = None
    weights: Array | None = None
    members: tuple[Array, Array] | None = None

    def units(self, keys: Array) -> Array:
        """Return the size of items of these keys in units of ``align`` slots, int64."""
        if self.sizes is not None:
            return self.sizes[keys]
        wide = keys.astype(np.int64, copy=False)
        return wide if self.align == 1 else -(-wide // self.align)

    def documents(self, keys: Array) -> Array:
        """Return the number of documents in items of these keys, int64."""
        return np.ones(len(keys), dtype=np.int64) if self.weights is None else self.weights[keys]


def as_groups(groups: Any, documents: int) -> Array:
    """View or convert group ids, one integer per document.

    Raises:
        ValueError: If they are not 1-D integers, or not one per document.
    """
    try:
        array = np.asarray(groups)
    except (ValueError, TypeError) as error:
        raise ValueError(f"groups must be a 1-D array of integers: {error}") from None
    if array.shape != (documents,):
        raise ValueError(f"groups must have one number for each of {documents} documents, got shape {array.shape}")
    if documents and array.dtype.kind not in "iu":
        raise ValueError(f"groups must be integers, got dtype {array.dtype}")
    return array


def group_spans(lengths: Array, groups: Array, policy: Policy) -> Items:
    """Make an item of each group, in the order of their first documents.

    Args:
        lengths: Tokens in the one span of each document, any integer dtype.
        groups: Each document's group, any integer dtype.
        policy: With "drop", groups that do not fit are left out whole.

    Returns:
        The items; documents of no tokens are in none.

    Raises:
        ValueError: If a group is over the budget, or has more than ``max_documents`` documents, and is not dropped.
    """
    used = np.flatnonzero(lengths)
    ids, first, group = np.unique(groups[used], return_index=True, return_inverse=True)
    appearance = np.argsort(first)
    rank = np.empty_like(appearance)
    rank[appearance] = np.arange(len(ids))
    members = used[np.argsort(rank[group], kind="stable")]
    weights = np.bincount(rank[group], minlength=len(ids))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights)])
    within = lengths[members].astype(np.int64)
    units = -(-within // policy.align)
    sizes = np.add.reduceat(units, bounds[:-1]) if len(ids) else weights
    misfit = sizes > policy.units
    if policy.max_documents is not None:
        misfit |= weights > policy.max_documents
    if misfit.any() and policy.overlong != "drop":
        index = int(np.argmax(misfit))
        raise _group_error(f"group {ids[appearance[index]]}", int(sizes[index]), int(weights[index]), policy)
    sizes = np.minimum(sizes, policy.units)  # those of groups that are left out may be of any size
    keys, size_of, weight_of = _kinds(sizes, weights, bounds, np.minimum(within, policy.limit))
    keys[misfit] = 0
    return Items(keys=keys, align=policy.align, sizes=size_of, weights=weight_of, members=(bounds, members))


def groups_within(members: tuple[Array, Array], window: int) -> Array:
    """Return the first document of each group, ascending, once all groups are known to lie within one window.

    Raises:
        ValueError: If a group has documents of two windows.
    """
    bounds, documents = members
    first, last = documents[bounds[:-1]], documents[bounds[1:] - 1]
    torn = first // window != last // window
    if torn.any():
        index = int(np.argmax(torn))
        raise ValueError(
            f"documents {first[index]} and {last[index]} are of one group but of different windows; with "
            f"window={window} the documents of a group must stand close together"
        )
    return first


def _group_error(group: str, size: int, documents: int, policy: Policy) -> ValueError:
    if size > policy.units:
        aligned = " after alignment" if policy.align > 1 else ""
        what, way = f"{size * policy.align} tokens{aligned}, over {over_budget(policy)}", "raise the budget"
    else:
        what, way = f"{documents} documents, over max_documents={policy.max_documents}", "raise max_documents"
    return ValueError(
        f"{group} has {what}, and the documents of a group share a pack: {way}, make smaller groups, or leave "
        "those that do not fit out with overlong='drop'"
    )


def _kinds(sizes: Array, weights: Array, bounds: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """Number the groups 1, 2, …, the larger the higher, equal numbers for equal lengths in equal order.

    Groups of equal size and number are told apart by the length of their first document, then of their second, …
    """
    if not len(sizes):
        return np.empty(0, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64)
    largest = int(lengths.max()) + 1
    _, kind = np.unique(sizes * (int(weights.max()) + 1) + weights, return_inverse=True)
    finer = kind.copy()
    alike = np.flatnonzero(np.bincount(kind)[kind] > 1)
    nth = 0
    while len(alike):
        values = lengths[bounds[alike] + nth]
        _, found, many = np.unique(finer[alike] * largest + values, return_inverse=True, return_counts=True)
        finer[alike] = found + int(finer.max()) + 1  # never a number that a settled group has
        nth += 1
        alike = alike[(many[found] > 1) & (weights[alike] > nth)]
    _, example, keys = np.unique(kind * (int(finer.max()) + 1) + finer, return_index=True, return_inverse=True)
    none = np.zeros(1, np.int64)
    keys = (keys + 1).astype(index_dtype(len(keys) + 2))
    return keys, np.concatenate([none, sizes[example]]), np.concatenate([none, weights[example]])

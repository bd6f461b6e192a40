"""Anchors: the tokens at which a drafter's blocks begin, drawn at random and kept inside their documents.

Candidates get a random score, everything else a score above all of them; the ``num_anchors`` lowest are the anchors.
The number of candidates is never read, so nothing waits for the device and the shapes are fixed.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from packdata.drafting.hashing import slot_words
from packdata.drafting.slots import offsets_from_remaining
from packdata.layout import IGNORE_INDEX
from packdata.planning.edge import require_at_least

_NEVER = 1 << 62  # above every score, and exact as a double, which is how `pad` reads it


def select_anchors(
    labels: Tensor,
    document_remaining: Tensor,
    *,
    num_anchors: int,
    block_size: int,
    first_target: int = 1,
    tail: Literal["truncate", "exclude"] = "truncate",
    document_ids: Tensor | None = None,
    document_keys: Tensor | None = None,
    key: int | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """Draw anchors uniformly and without replacement, the same ones however the documents are packed.

    A slot is a candidate if it is trained itself, and the token ``first_target`` further on is in the same document
    and trained. Documents are told apart by ``document_keys`` (or ``document_ids``, or their order in the stream):
    the same key, document keys and tokens give the same anchors whatever the padding, capacity or order of documents.

    Args:
        labels: Un-shifted labels, −100 where not trained; int64, shape ``(1, T)``.
        document_remaining: Tokens after each slot in its document, −1 on padding; int64, shape ``(1, T)``.
        num_anchors: How many to draw (``A``).
        block_size: Slots of a draft block, the anchor included (``B``).
        first_target: How far ahead the first predicted token is.
        tail: What to do with candidates less than a block from their document's end: keep them, their labels are cut
            by `draft_targets` (``"truncate"``), or leave them out (``"exclude"``), which can cost half of the
            candidates of short documents.
        document_ids: Document of each slot, int64, shape ``(1, T)``; the default for ``document_keys``.
        document_keys: A number for each slot's document that stays its own from step to step, such as its index in
            the dataset; int64, shape ``(1, T)``.
        key: The draw: an int such as the step, or a 0-d int64 tensor at a fixed address (a new int may recompile).

    Returns:
        ``(anchors, anchor_valid)``: slots in ascending order, int64 ``(A,)``, and bool ``(A,)``. Where there are
        fewer candidates than anchors, the rest are 0 and False.

    Raises:
        ValueError: If a shape or an option is wrong.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, -100, 8, -100]])
        >>> remaining = torch.tensor([[2, 1, 0, 1, 0, -1]])
        >>> select_anchors(labels, remaining, num_anchors=2, block_size=4)
        (tensor([1, 0]), tensor([ True, False]))
    """
    check_stream(labels=labels, document_remaining=document_remaining)
    for name, size in (("num_anchors", num_anchors), ("block_size", block_size), ("first_target", first_target)):
        require_at_least(size, 1, name)
    if tail not in ("truncate", "exclude"):
        raise ValueError(f'tail must be "truncate" or "exclude", got {tail!r}')
    remaining = document_remaining[0]
    keys = _document_keys(remaining, document_ids if document_keys is None else document_keys)
    high, low = slot_words(key, keys, offsets_from_remaining(remaining), salt=1)
    room = max(first_target, block_size - 1) if tail == "exclude" else first_target
    candidates = _candidates(labels[0], remaining, first_target, room)
    scores = torch.where(candidates, (high >> 2 << 32) | low, _NEVER)
    return _lowest(pad(scores, (0, max(0, num_anchors - len(scores))), value=_NEVER), num_anchors)


def check_stream(**tensors: Tensor) -> None:
    """Raise unless all tensors have one common shape ``(1, T)``."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    first = next(iter(shapes.values()))
    if any(shape != first for shape in shapes.values()) or len(first) != 2 or first[0] != 1:
        raise ValueError(f"one stream of shape (1, T) is needed for each of these, got {shapes}")


def check_drawn(anchors: Tensor, anchor_valid: Tensor) -> None:
    """Raise unless the two are what `select_anchors` returns."""
    if anchors.ndim != 1 or anchor_valid.shape != anchors.shape:
        raise ValueError(
            f"anchors and anchor_valid must both be (A,), got {tuple(anchors.shape)} and {tuple(anchor_valid.shape)}"
        )
    if anchors.is_floating_point() or anchor_valid.dtype != torch.bool:
        raise ValueError(
            f"anchors must be integers and anchor_valid bool, got {anchors.dtype} and {anchor_valid.dtype}"
        )


def _document_keys(remaining: Tensor, given: Tensor | None) -> Tensor:
    if given is not None:
        check_stream(document_remaining=remaining[None], document_keys=given)
        return given[0]
    return (remaining == 0).cumsum(0) - (remaining == 0).to(torch.int64)  # documents that ended before this slot


def _candidates(labels: Tensor, remaining: Tensor, first_target: int, room: int) -> Tensor:
    trained = labels != IGNORE_INDEX
    ahead = pad(trained[first_target:], (0, min(first_target, len(trained))), value=False)
    return trained & (remaining >= room) & ahead


def _lowest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    lowest, slots = scores.sort(stable=True)
    anchors = torch.where(lowest[:count] < _NEVER, slots[:count], _NEVER).sort().values
    valid = anchors < _NEVER
    return torch.where(valid, anchors, 0), valid

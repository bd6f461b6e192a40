"""What happens to documents that are over the budget: named, cut, split or dropped, before anything is packed."""

from dataclasses import dataclass

import numpy as np

from .blocks import Array, index_dtype, unsigned_dtype
from .policy import Policy
from .wording import counted

_NAMED = 5


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spans:
    """The pieces to pack, in the order of the documents; pieces of no tokens are left out of packs.

    Attributes:
        lengths: Tokens in each piece, any integer dtype, shape ``(spans,)``.
        documents: Each piece's document, or None where piece i is of document i.
        starts: First token of each piece within its document, or None where all are 0.
        truncated: Documents that lose tokens.
        split: Documents in several pieces.
    """

    lengths: Array
    documents: Array | None = None
    starts: Array | None = None
    truncated: int = 0
    split: int = 0


def over_budget(policy: Policy) -> str:
    """Word the limit: ``the budget of 10``, with the alignment where it lowers it."""
    aligned = f" ({policy.limit} after rounding down to align={policy.align})" if policy.limit < policy.budget else ""
    return f"the budget of {policy.budget}{aligned}"


def cut_overlong(lengths: Array, policy: Policy) -> Spans:
    """Apply the over-long policy.

    Args:
        lengths: Tokens per document, any integer dtype.
        policy: Its ``concat`` cuts documents anyway: there, "error" and "split" leave them as they are.

    Returns:
        Pieces that fit a pack (except under ``concat``).

    Raises:
        ValueError: If documents are over the budget and the policy is "error".
    """
    if int(lengths.max(initial=0)) <= policy.limit:
        return Spans(lengths=lengths)
    if policy.strategy == "concat" and policy.overlong in ("error", "split"):
        return Spans(lengths=lengths)
    over = lengths > policy.limit
    if policy.overlong == "error":
        raise overlong_error(lengths, np.flatnonzero(over), policy)
    if policy.overlong == "split":
        return _split(lengths, over, policy.limit)
    short = np.empty(len(lengths), dtype=unsigned_dtype(policy.limit))
    np.minimum(lengths, policy.limit, out=short, casting="unsafe")
    if policy.overlong == "drop":
        short[over] = 0
        return Spans(lengths=short)
    starts = None
    if policy.overlong == "truncate_left":
        starts = np.zeros(len(lengths), dtype=index_dtype(int(lengths.max())))
        starts[over] = lengths[over] - policy.limit
    return Spans(lengths=short, starts=starts, truncated=int(np.count_nonzero(over)))


def overlong_error(lengths: Array, documents: Array, policy: Policy) -> ValueError:
    """Word the error that names documents over the budget, their number, and the ways out.

    Example:
        >>> print(overlong_error(np.array([3, 17]), np.array([1]), Policy(budget=16)))
        document 1 has 17 tokens, over the budget of 16; raise the budget, or choose what happens with
        overlong='truncate', 'truncate_left', 'split' or 'drop'
    """
    named = [f"document {document} has {lengths[document]} tokens" for document in documents[:_NAMED].tolist()]
    more = f" and {counted(len(documents) - _NAMED, 'more document')}" if len(documents) > _NAMED else ""
    count = f" ({len(documents)} of {len(lengths)} documents)" if len(documents) > 1 else ""
    return ValueError(
        f"{', '.join(named)}{more}, over {over_budget(policy)}{count}; raise the budget, or choose what happens with\n"
        "overlong='truncate', 'truncate_left', 'split' or 'drop'"
    )


def _split(lengths: Array, over: Array, limit: int) -> Spans:
    """Cut full pieces off the over-long documents, and then what is left."""
    which = np.flatnonzero(over)
    spans = len(lengths) + int(((lengths[which] - 1) // limit).sum(dtype=np.int64))
    pieces = np.ones(len(lengths), dtype=index_dtype(spans))
    pieces[which] = (lengths[which] - 1) // limit + 1
    last = np.cumsum(pieces, dtype=pieces.dtype)[which] - 1
    documents = np.repeat(np.arange(len(lengths), dtype=pieces.dtype), pieces)
    cut = over[documents]
    short = np.empty(len(documents), dtype=unsigned_dtype(limit))
    short[~cut] = lengths[~over]
    short[cut] = limit
    short[last] = (lengths[which] - 1) % limit + 1
    many = pieces[which]
    first = np.cumsum(many, dtype=documents.dtype) - many
    nth = np.arange(np.count_nonzero(cut), dtype=documents.dtype) - np.repeat(first, many)
    starts = np.zeros(len(documents), dtype=index_dtype(int(lengths.max())))
    starts[cut] = np.multiply(nth, limit, dtype=starts.dtype)
    return Spans(lengths=short, documents=documents, starts=starts, split=len(which))

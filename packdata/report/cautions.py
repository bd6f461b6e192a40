"""What a user should be warned of before training on a packing, one sentence each."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64

from packdata.planning import Ledger
from packdata.planning.wording import counted

from .denominators import Counts

PADDING = 0.10
"""Share of padding from which on a warning is due."""


def padding_caution(*, padding: int, slots: int) -> Iterator[str]:
    """Warn of much padding."""
    if slots and padding / slots > PADDING:
        yield (
            f"{padding / slots:.1%} of the slots are padding (over {PADDING:.0%}): "
            "another budget, a higher max_documents, strategy 'best_fit' or overlong 'split' may fill better."
        )


def ledger_cautions(ledger: Ledger) -> Iterator[str]:
    """Warn of what was lost."""
    if ledger.tokens_truncated:
        documents = counted(ledger.documents_truncated, "document")
        yield f"Truncated: {counted(ledger.tokens_truncated, 'token')} of {documents}; overlong 'split' keeps them."
    if ledger.documents_dropped:
        documents, tokens = counted(ledger.documents_dropped, "document"), counted(ledger.tokens_dropped, "token")
        why = f", {ledger.documents_untargeted:,} of them for want of a target" if ledger.documents_untargeted else ""
        yield f"Dropped: {documents} with {tokens}{why}."
    if ledger.targets_lost_to_cuts:
        targets = counted(ledger.targets_lost_to_cuts, "target")
        yield f"Lost to cuts: {targets}, since the first token of a piece is never learnt."
    if ledger.documents_empty:
        yield f"Empty, and in no pack: {counted(ledger.documents_empty, 'document')}."


def batch_cautions(
    batch: Mapping[str, Any], counts: Counts, tokenizer: Any = None, *, where: str = ""
) -> Iterator[str]:
    """Warn of crossed boundaries, of documents in which nothing is learnt, and of missing or ambiguous end markers.

    Args:
        batch: The documents that were looked at.
        counts: Its counts.
        tokenizer: What names the markers, in ``eos_token_id`` and ``pad_token_id``; others are silent.
        where: Which documents these are, for the sentence, where not all.
    """
    if batch.get("cross_document_attention"):
        yield "Documents of a row attend to one another, as was asked for (cross_document_attention)."
    if batch.get("cross_document_targets"):
        yield "A document's last token predicts the next one's first, as was asked for (cross_document_targets)."
    if counts.documents_without_targets:
        yield (
            f"{counts.documents_without_targets:,} of {counts.documents:,} documents{where} have no target: "
            "they cost compute and teach nothing."
        )
    eos, pad = (getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
    if eos is None:
        return
    missing = int((_last_tokens(batch) != eos).sum())
    if missing:
        yield (
            f"{missing:,} of {counts.documents:,} documents{where} do not end with the EOS token {eos}: "
            "a model would not learn to stop. Give eos_token_id when packing. (Pieces of cut documents count, too.)"
        )
    if pad == eos:
        yield (
            f"The padding token is the EOS token {eos}: whoever masks padding by its id also masks every EOS. "
            "Targets of packdata do not depend on the id."
        )


def _last_tokens(batch: Mapping[str, Any]) -> Int64[np.ndarray, " documents"]:
    document_ids = batch["document_ids"].cpu().numpy()
    after = np.pad(document_ids, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
    return np.asarray(batch["input_ids"].cpu().numpy()[(document_ids >= 0) & (document_ids != after)])

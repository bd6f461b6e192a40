"""The tokens of a batch as one stream, before they are given slots: documents, supervision and the one shift.

What a feature says about a token (its label, its mask, its log-probability) is about *predicting* that token, and the
slot that predicts it is the one before. `TokenStream.shift` moves such values there, for labels and columns alike:

    tokens      11  12  13 | 21  22
    labels      11  12  13 | 21  22        un-shifted: what is to be learnt
    shifted     12  13   · | 22   ·        what each slot predicts; a document's first token is predicted by none
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packdata.layout import IGNORE_INDEX, Array

from .features import SUPERVISION, Features


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TokenStream:
    """The documents of a batch, end to end; those without a token are left out.

    Attributes:
        lengths: Tokens of each document, int64, shape ``(documents,)``.
        ends: One past the last token of each document, as indices of the stream.
        feature_of: The feature of each document.
        reach_of: The pack or row of each document: what it may be joined with.
        stops: The last token of each document that predicts no other document's first, as indices of the stream.
    """

    lengths: Array
    ends: Array
    feature_of: Array
    reach_of: Array
    stops: Array

    @classmethod
    def of(cls, features: Features, *, by_rows: bool, joined: bool) -> "TokenStream":
        """String the features' documents together.

        Args:
            features: What was read.
            by_rows: Each feature has a row of its own.
            joined: A document's last token predicts the first of the next one in its pack or row.
        """
        lengths, feature_of = features.lengths, np.arange(len(features.mappings))
        if features.documents is not None:
            feature_of = np.repeat(feature_of, features.documents)
        if np.count_nonzero(lengths) < len(lengths):
            filled = lengths > 0
            lengths, feature_of = lengths[filled], feature_of[filled]
        apart = by_rows or features.documents is not None
        reach_of = feature_of if apart else np.zeros(len(lengths), np.int64)
        ends = lengths.cumsum()
        stops = ends - 1
        if joined:
            stops = stops[np.diff(reach_of, append=-1) != 0]
        return cls(lengths=lengths, ends=ends, feature_of=feature_of, reach_of=reach_of, stops=stops)

    def shift(self, values: Array, pad: int | float, out: Array) -> None:
        """Write each token's value to the token before, which predicts it; ``pad`` where none is predicted."""
        out[:-1] = values[1:]
        out[self.stops] = pad


def read_labels(features: Features, stream: TokenStream, targets: str | Sequence[str] | None, ids: Array) -> Array:
    """Combine labels and masks into one label per token, un-shifted.

    Args:
        features: What was read.
        stream: Its documents.
        targets: As `PackingCollator` takes it.
        ids: The token ids, int64, shape ``(tokens,)``.

    Returns:
        int64, shape ``(tokens,)``, ``IGNORE_INDEX`` where a token is not to be learnt; ``ids`` itself if all are.
    """
    keys: list[str]
    if not features.mappings or targets == "all":
        keys = []
    elif targets is None:
        keys = [key for key in SUPERVISION if key in features.keys]
    else:
        keys = [targets] if isinstance(targets, str) else list(targets)
    labels = ids
    if "labels" in keys:
        labels = np.concatenate(features.per_token("labels", "iu"), dtype=np.int64)
        _check_labels(labels, features)
    learnt: Array | None = None
    for key in keys:
        if key != "labels":
            mask = np.concatenate([column != 0 for column in features.per_token(key, "biu")])
            labels = np.where(mask, labels, IGNORE_INDEX)
            learnt = mask if learnt is None else learnt & mask
    if "labels" not in keys and ids.min(initial=0) < 0:
        _check_learnt(ids, learnt, features, stream)
    return labels


def _check_labels(labels: Array, features: Features) -> None:
    wrong = (labels < 0) & (labels != IGNORE_INDEX)
    if wrong.any():
        token = int(np.argmax(wrong))
        raise ValueError(
            f"feature {_feature_of(token, features)}: labels must be token ids or {IGNORE_INDEX} (not learnt), "
            f"got {labels[token]}; write {IGNORE_INDEX} where another library's ignore index stands"
        )


def _check_learnt(ids: Array, learnt: Array | None, features: Features, stream: TokenStream) -> None:
    """Refuse negative ids as targets: the loss would ignore -100, and a device fails on others."""
    wrong = ids < 0 if learnt is None else learnt & (ids < 0)
    wrong[0] = wrong[stream.stops[:-1] + 1] = False  # nothing predicts these
    if wrong.any():
        token = int(np.argmax(wrong))
        raise ValueError(
            f"feature {_feature_of(token, features)}: input_ids must not be negative where they are learnt, got "
            f"{ids[token]}: leave placeholders out with labels or completion_mask"
        )


def _feature_of(token: int, features: Features) -> int:
    return int(np.searchsorted(np.cumsum([len(ids) for ids in features.input_ids]), token, side="right"))

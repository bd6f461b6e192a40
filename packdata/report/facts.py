"""The numbers of a packing, each with a name for people, a key for machines and a text."""

from dataclasses import dataclass
from typing import Any

from packdata.planning import Ledger

from .denominators import Counts, Denominators
from .overview import Overview
from .overviews import overview_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number.

    Attributes:
        key: Name for machines.
        label: Name for people.
        value: The number.
        text: How it is written.
    """

    key: str
    label: str
    value: int | float
    text: str


def fact(key: str, label: str, value: int | float, text: str | None = None) -> Fact:
    """Make a fact; integers are written with thousands separators unless a text is given."""
    return Fact(key=key, label=label, value=value, text=f"{value:,}" if text is None else text)


def facts_of(overview: Overview) -> list[Fact]:
    """List the totals of a packing."""
    loads, pairs, across = overview.loads, overview.attention_pairs, overview.attention_pairs_across
    saved = 1 - pairs / across if across else 0.0
    most = max((overview.bounds[1:] - overview.bounds[:-1]).tolist(), default=0)
    return [
        fact("packs", "packs (rows)", overview.packs),
        fact("budget", "slots in a pack (budget)", overview.budget),
        fact("spans", "documents as packed", overview.spans),
        fact("most_spans", "most documents in a pack", most),
        fact("tokens", "tokens", overview.tokens),
        fact("padding", "padding slots", overview.padding),
        fact("fill", "fill", overview.fill, f"{overview.fill:.2%}"),
        fact("emptiest", "tokens in the emptiest pack", int(loads.min(initial=overview.budget)) if len(loads) else 0),
        fact("longest", "longest document as packed", int(overview.lengths.max(initial=0))),
        fact("attention_pairs", "attention pairs within documents", pairs),
        fact("attention_pairs_across", "pairs if packs were one document", across),
        fact("attention_saved", "attention saved by boundaries", saved, f"{saved:.1%}"),
    ]


def ledger_facts(ledger: Ledger) -> list[Fact]:
    """List a ledger's counts that are known, with padding and fill."""
    counts = {name: value for name, value in ledger.to_dict().items() if value is not None}
    facts = [fact(f"ledger.{name}", name.replace("_", " "), value) for name, value in counts.items()]
    return [
        *facts,
        fact("ledger.padding", "padding", ledger.padding),
        fact("ledger.fill", "fill", ledger.fill, f"{ledger.fill:.4%}"),
    ]


def counting_facts(counts: Counts) -> list[Fact]:
    """Follow the slots down to the targets, one signed number a step."""
    steps = {
        "slots": ("slots", counts.slots),
        "padding": ("padding", -counts.padding),
        "first_tokens": ("first tokens of documents, which nothing predicts", -counts.first_tokens),
        "masked": ("tokens that labels or masks leave out", -counts.masked),
        "targets": ("targets: the denominator of the loss", counts.targets),
    }
    return [fact(f"counts.{key}", label, value, f"{value:,}") for key, (label, value) in steps.items()]


def division_facts(means: Denominators) -> list[Fact]:
    """Name what each divisor makes of the same losses; the right one comes first, the wrong one last."""
    total, sequences = f"{means.total:g}", len(means.losses)
    sum_of_means = f"{means.sequence_mean * sequences:g}"
    return [
        _division("token_mean", total, means.targets, "targets: token mean, the loss", means.token_mean),
        _division("sequence_mean", sum_of_means, sequences, SEQUENCE_MEAN, means.sequence_mean),
        _division("slot_mean", total, means.slots, SLOT_MEAN, means.slot_mean),
    ]


SEQUENCE_MEAN = "sequences: mean of the documents' means, another aggregation"
SLOT_MEAN = "slots: slot mean, WRONG, as it counts slots that predict nothing"


def _division(key: str, numerator: str, divisor: int, what: str, value: int | float) -> Fact:
    return fact(key, f"{numerator} / {divisor:,} {what}", value, f"{value:.6f}")


def numbers_of(obj: Any, tokenizer: Any = None) -> dict[str, Any]:
    """Give the numbers of a packing by their keys, and its warnings, for JSON."""
    overview = overview_of(obj, tokenizer)
    facts = facts_of(overview)
    facts += [] if overview.ledger is None else ledger_facts(overview.ledger)
    facts += [] if overview.counts is None else counting_facts(overview.counts)
    return {fact.key: fact.value for fact in facts} | {"title": overview.title, "warnings": overview.warnings}

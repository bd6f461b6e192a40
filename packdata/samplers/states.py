"""Saved states: small JSON-able dicts that say where a sampler stands and to what dataset and policy that applies."""

from collections.abc import Mapping
from typing import Any

from .dealing import Progress, Share

VERSION = 1

HINT = "resume with the sampler's own state, or set_epoch() to begin an epoch"


def make_state(kind: str, epoch: int, used: Progress, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Put a point into a fresh dict.

    Args:
        kind: Name of the sampler's class.
        epoch: The epoch.
        used: What was used of it.
        identity: What a sampler that resumes must share, JSON-able.

    Returns:
        A dict of strings, integers, booleans, None, lists and dicts.
    """
    return {
        "version": VERSION,
        "sampler": kind,
        "epoch": epoch,
        "used": [list(turn) for turn in used],
        "identity": dict(identity),
    }


def read_state(state: Any, *, kind: str, identity: Mapping[str, Any]) -> tuple[int, Progress]:
    """Read the point out of a state, and refuse one that belongs elsewhere.

    Args:
        state: What ``make_state`` returned, also after a trip through JSON.
        kind: Name of the class of the sampler that resumes.
        identity: Its identity.

    Returns:
        The epoch, and what was used of it.

    Raises:
        ValueError: If it is no sampler's state, or another sampler's; the difference is named.
    """
    if not isinstance(state, Mapping) or not {"version", "sampler", "epoch", "used", "identity"} <= set(state):
        raise ValueError(f"state must be what a {kind}'s state_dict() returned, got {state!r:.200}")
    if state["version"] != VERSION:
        raise ValueError(f"state has version {state['version']!r}, this packdata reads version {VERSION}")
    saved = {"sampler": state["sampler"], **_as_dict(state["identity"])}
    here = {"sampler": kind, **identity}
    for name in [*here, *saved]:
        if (name in saved, saved.get(name)) != (name in here, here.get(name)):
            then, now = (f"is {side[name]!r}" if name in side else "has none" for side in (saved, here))
            raise ValueError(f"state belongs to another run: its {name} {then}, here it {now}; {HINT}")
    return _natural(state["epoch"], 0), _turns(state["used"])


def own_batches(used: Progress, share: Share) -> int:
    """Count the batches of an epoch that a sampler of this share handed out: all, or one for each step."""
    return sum(batches if share.rank is None else -(-batches // world) for world, batches in used)


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _turns(used: Any) -> Progress:
    turns = used if isinstance(used, list | tuple) else [used]
    if not all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in turns):
        raise ValueError(f"state is damaged: used must be pairs of (ranks, batches), got {used!r}")
    return tuple((_natural(world, 1), _natural(batches, 1)) for world, batches in turns)


def _natural(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"state is damaged: expected an integer of at least {least}, got {value!r}")
    return value

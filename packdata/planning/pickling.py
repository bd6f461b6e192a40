"""Plans as bytes: workers are sent them, so each array travels in the fewest bytes a number that hold it.

A plan of a million documents in memory is 16 to 24 MB, by its int64 document numbers and offsets; as bytes it is a
third of that. What comes out of the bytes is the plan that went in, dtypes included.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import Array
from .storage import ARRAYS

if TYPE_CHECKING:
    from .plan import Plan


def narrow_fields(plan: "Plan") -> dict[str, Any]:
    """Return a plan's fields, each array with the dtype to give it back; sizes of packs stand for ``bounds``."""
    state = {field.name: getattr(plan, field.name) for field in fields(plan)}
    state["bounds"] = np.diff(plan.bounds, prepend=0)
    return state | {name: _narrow(state[name]) for name in ARRAYS if state[name] is not None}


def restore_plan(kind: type["Plan"], narrow: dict[str, Any]) -> "Plan":
    """Make the plan whose fields `narrow_fields` returned."""
    arrays = {name: narrow[name] for name in ARRAYS if narrow[name] is not None}
    restored: dict[str, Any] = narrow | {name: array.astype(dtype) for name, (array, dtype) in arrays.items()}
    restored["bounds"] = restored["bounds"].cumsum()
    return kind(**restored)


def _narrow(array: Array) -> tuple[Array, str]:
    array = np.asarray(array)  # a memory map pickles as another type
    if array.min(initial=0) < 0:  # of no plan that checks
        return array, array.dtype.str
    return array.astype(np.min_scalar_type(int(array.max(initial=0)))), array.dtype.str

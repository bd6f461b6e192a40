"""Which documents share a pack: numpy only."""

from .ledger import Ledger
from .plan import Pack, Plan
from .planner import plan_packs

__all__ = ["Ledger", "Pack", "Plan", "plan_packs"]

"""Which documents share a pack: numpy only."""

from .ledger import Ledger
from .patterns import Patterns, plan_patterns
from .plan import Pack, Plan
from .planner import plan_packs

__all__ = ["Ledger", "Pack", "Patterns", "Plan", "plan_packs", "plan_patterns"]

"""Which documents share a pack: numpy only."""

from .estimates import Estimate, estimate
from .ledger import Ledger
from .patterns import Patterns, plan_patterns
from .plan import Pack, Plan
from .planner import plan_packs
from .policy import Policy

__all__ = ["Estimate", "Ledger", "Pack", "Patterns", "Plan", "Policy", "estimate", "plan_packs", "plan_patterns"]

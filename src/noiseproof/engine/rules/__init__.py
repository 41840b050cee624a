"""How the errors of operations and layers become every record's gradient."""

from __future__ import annotations

from noiseproof.engine.rules import recurrent
from noiseproof.engine.rules.rule import register_rule, rules_for

__all__ = ["recurrent", "register_rule", "rules_for"]

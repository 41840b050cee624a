"""One file a kind of layer: how its inputs and errors become per-record gradients."""

from __future__ import annotations

from noiseproof.engine.rules import convolution, linear, recurrent
from noiseproof.engine.rules.rule import LayerRule, register_rule, rules_for
from noiseproof.engine.rules.vmap import VmapRule

__all__ = ["LayerRule", "VmapRule", "convolution", "linear", "recurrent", "register_rule", "rules_for"]

"""One file a kind of layer: how its (activation, error) pairs become per-record gradients."""

from noiseproof.gradients.engine.rules.choice import rules_for

__all__ = ["rules_for"]

"""One file a kind of layer: how its (activation, error) pairs become per-record gradients."""

from __future__ import annotations

from noiseproof.engine.rules.register import rules_for

__all__ = ["rules_for"]

"""Recipes for networks: the papers' and small good ones. None of them mixes records (no batch normalisation)."""

from __future__ import annotations

from noiseproof.networks import published, small
from noiseproof.networks.fitting import Training, fit_stack
from noiseproof.networks.network import Network, names, suggest
from noiseproof.networks.stacked import StackedNetwork

# The families register their networks when they are imported.
_FAMILIES = (small, published)

__all__ = ["Network", "StackedNetwork", "Training", "fit_stack", "names", "suggest"]

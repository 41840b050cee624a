"""Networks by name: the papers' and small good ones; many trained as one. None mixes records (no batch normalisation)."""

from __future__ import annotations

from noiseproof.networks import published, small  # noqa: F401  (they register their networks)
from noiseproof.networks.distance import tpvd
from noiseproof.networks.fitting import Training, fit_stack
from noiseproof.networks.network import Network, names, register, suggest
from noiseproof.networks.stacked import StackedNetwork

__all__ = ["Network", "StackedNetwork", "Training", "fit_stack", "names", "register", "suggest", "tpvd"]

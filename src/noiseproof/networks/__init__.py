"""Recipes for networks: the papers' and small good ones. None of them mixes records (no batch normalisation)."""

from noiseproof.networks import dense, lin, mao, mapped, phan, recurrent, small_cnn
from noiseproof.networks.fitting import Training, fit_stack
from noiseproof.networks.network import Network, names
from noiseproof.networks.stacked import StackedNetwork
from noiseproof.networks.suggestions import suggest

# The families register their networks when they are imported.
_FAMILIES = (dense, small_cnn, recurrent, lin, mao, phan, mapped)

__all__ = ["Network", "StackedNetwork", "Training", "fit_stack", "names", "suggest"]

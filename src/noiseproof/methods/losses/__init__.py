"""Noise at the loss: synthetic records, as published (rdp-gan) and proven (dp-gan, zero-gan, marginals, moments)."""

from __future__ import annotations

from noiseproof.methods.losses.dp_gan import DpGan
from noiseproof.methods.losses.marginals import Marginals
from noiseproof.methods.losses.moments import Moments
from noiseproof.methods.losses.rdp_gan import RdpGan
from noiseproof.methods.losses.zero_gan import ZeroGan

__all__ = ["DpGan", "Marginals", "Moments", "RdpGan", "ZeroGan"]

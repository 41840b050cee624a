"""Noise at the loss: generators of synthetic records, as published (rdp-gan) and proven (dp-gan, zero-gan)."""

from __future__ import annotations

from noiseproof.methods.losses.dp_gan import DpGan
from noiseproof.methods.losses.rdp_gan import RdpGan
from noiseproof.methods.losses.zero_gan import ZeroGan

__all__ = ["DpGan", "RdpGan", "ZeroGan"]

"""Noise at the loss: generators of synthetic records, as published (rdp-gan) and proven (dp-gan, zero-gan)."""

from noiseproof.losses.dp_gan import DpGan
from noiseproof.losses.rdp_gan import RdpGan
from noiseproof.losses.zero_gan import ZeroGan

__all__ = ["DpGan", "RdpGan", "ZeroGan"]

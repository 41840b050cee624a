"""Noise at the gradients: DP-SGD and the Noisy Gradient family, on a per-record gradient engine."""

from __future__ import annotations

from noiseproof.methods.gradients.dp_mf import DpMf
from noiseproof.methods.gradients.dp_sgd import AdaptiveGradients, DpSgd, DpSgdAdaptive, DpSgdBounded
from noiseproof.methods.gradients.noisy_gradient import NoisyGradient, NoisyGradients
from noiseproof.methods.gradients.quantile import QuantileFlat, QuantileGradients, QuantileLayer

__all__ = [
    "AdaptiveGradients",
    "DpMf",
    "DpSgd",
    "DpSgdAdaptive",
    "DpSgdBounded",
    "NoisyGradient",
    "NoisyGradients",
    "QuantileFlat",
    "QuantileGradients",
    "QuantileLayer",
]

"""Noise at the gradients: DP-SGD and the Noisy Gradient family, on a per-record gradient engine."""

from noiseproof.gradients.adaptive_gradients import AdaptiveGradients
from noiseproof.gradients.dp_sgd import DpSgd
from noiseproof.gradients.dp_sgd_adaptive import DpSgdAdaptive
from noiseproof.gradients.dp_sgd_bounded import DpSgdBounded
from noiseproof.gradients.noisy_gradient import NoisyGradient
from noiseproof.gradients.noisy_gradients import NoisyGradients
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.gradients.quantile_flat import QuantileFlat
from noiseproof.gradients.quantile_gradients import QuantileGradients
from noiseproof.gradients.quantile_layer import QuantileLayer
from noiseproof.gradients.sampling import PoissonSampler
from noiseproof.gradients.schedules import Schedule

__all__ = [
    "AdaptiveGradients",
    "DpSgd",
    "DpSgdAdaptive",
    "DpSgdBounded",
    "NoisyGradient",
    "NoisyGradients",
    "PoissonSampler",
    "PrivateGradients",
    "QuantileFlat",
    "QuantileGradients",
    "QuantileLayer",
    "Schedule",
]

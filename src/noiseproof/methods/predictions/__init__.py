"""Noise at the predictions: the weights stay secret, and every answer costs.

As published: `neuron-laplace` and `neuron-gaussian` (Lu et al. 2022). Proven siblings: `logits`, `teachers`, `votes`.
"""

from __future__ import annotations

from noiseproof.methods.predictions.logits import Logits
from noiseproof.methods.predictions.lu import Convexified, Sensitivity
from noiseproof.methods.predictions.neuron import NeuronGaussian, NeuronLaplace, NeuronNoise
from noiseproof.methods.predictions.teachers import Teachers
from noiseproof.methods.predictions.votes import Votes

__all__ = [
    "Convexified",
    "Logits",
    "NeuronGaussian",
    "NeuronLaplace",
    "NeuronNoise",
    "Sensitivity",
    "Teachers",
    "Votes",
]

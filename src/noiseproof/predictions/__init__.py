"""Noise at the predictions: the weights stay secret, and every answer costs.

As published: `neuron-laplace` and `neuron-gaussian` (Lu et al. 2022). Proven siblings: `logits`, `teachers`, `votes`.
"""

from noiseproof.predictions.convexified import Convexified
from noiseproof.predictions.logits import Logits
from noiseproof.predictions.neuron import NeuronNoise
from noiseproof.predictions.neuron_gaussian import NeuronGaussian
from noiseproof.predictions.neuron_laplace import NeuronLaplace
from noiseproof.predictions.sensitivity import Sensitivity
from noiseproof.predictions.teachers import Teachers
from noiseproof.predictions.votes import Votes

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

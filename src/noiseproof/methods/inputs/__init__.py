"""Noise at the inputs: records, or the loss's coefficients, are perturbed once, and training costs nothing more.

As published: `adlm` and `ilm` (Phan et al. 2017). Proven sibling: `functional`.
"""

from __future__ import annotations

from noiseproof.methods.inputs.adlm import Adlm, Ilm
from noiseproof.methods.inputs.functional import Functional
from noiseproof.methods.inputs.layers import LocalResponse, LossNoise, MinMax, bounded, error_bound, taylor_loss
from noiseproof.methods.inputs.perturbation import InputNoise
from noiseproof.methods.inputs.relevance import average, release_relevance, relevances, split

__all__ = [
    "Adlm",
    "Functional",
    "Ilm",
    "InputNoise",
    "LocalResponse",
    "LossNoise",
    "MinMax",
    "average",
    "bounded",
    "error_bound",
    "release_relevance",
    "relevances",
    "split",
    "taylor_loss",
]

"""Noise at the inputs: records, or the loss's coefficients, are perturbed once, and training costs nothing more.

As published: `adlm` and `ilm` (Phan et al. 2017). Proven sibling: `functional`.
"""

from noiseproof.inputs.adlm import Adlm
from noiseproof.inputs.functional import Functional
from noiseproof.inputs.ilm import Ilm
from noiseproof.inputs.input_noise import InputNoise
from noiseproof.inputs.normalisation import LocalResponse, MinMax, bounded
from noiseproof.inputs.private_relevance import average, release_relevance
from noiseproof.inputs.relevance import relevances
from noiseproof.inputs.split import split
from noiseproof.inputs.taylor import LossNoise, error_bound, taylor_loss

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

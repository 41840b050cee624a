"""Noise at the inputs: records, or the loss's coefficients, are perturbed once, and training costs nothing more.

As published: `adlm` and `ilm` (Phan et al. 2017). Proven sibling: `functional`.
"""

from __future__ import annotations

from noiseproof.methods.inputs.adlm import Adlm, Ilm
from noiseproof.methods.inputs.functional import Functional

__all__ = ["Adlm", "Functional", "Ilm"]

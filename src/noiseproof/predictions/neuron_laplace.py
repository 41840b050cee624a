"""neuron-laplace: Laplace noise on one output neuron (Lu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noiseproof.guarantees.card import Claim
from noiseproof.methods import register
from noiseproof.predictions.composition import Law
from noiseproof.predictions.neuron_method import NeuronMethod


@register
@dataclass(frozen=True)
class NeuronLaplace(NeuronMethod):
    """Lu et al.'s private predictions: Laplace noise on one output neuron, picked by the exponential mechanism.

    The budget's epsilon covers all of its queries; each gets epsilon / queries, of which choosing the neuron and noising
    it get a part of 1 / (2 classes + 1) each.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-DP for one removed record (theorem 6, and sequential composition over queries). It fails for
    three classes and more; for two it would hold if no neuron moved by more than d-z. See `NeuronNoise`, `Sensitivity`.
    """

    name: ClassVar[str] = "neuron-laplace"
    claims: ClassVar[str] = "epsilon for a record, over all queries: epsilon / queries each"
    law: ClassVar[Law] = "laplace"

    def claim_of(self, epsilon: float) -> Claim:
        """epsilon-DP."""
        return Claim(epsilon=epsilon, delta=0.0, source="Lu et al., theorems 6 and 1, section 5.3")

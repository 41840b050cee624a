"""neuron-gaussian: Gaussian noise on one output neuron (Lu et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from noiseproof.guarantees.card import Claim
from noiseproof.methods import register
from noiseproof.predictions.composition import Law, theorem2_delta
from noiseproof.predictions.neuron_method import NeuronMethod


@register
@dataclass(frozen=True)
class NeuronGaussian(NeuronMethod):
    """Lu et al.'s private predictions: Gaussian noise on one output neuron, picked by the exponential mechanism.

    The budget's epsilon covers all of its queries; each gets epsilon / sqrt(queries), of which choosing the neuron and
    noising it get a part of 1 / sqrt(4 classes + 1) each. The budget's delta is not used.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-GDP for one removed record, stated as (epsilon, delta(epsilon)) by theorem 2, whose delta is
    .127 at epsilon 1 and .99995 at 10. It fails for three classes and more; for two it would hold if no neuron moved by
    more than d-z. See `NeuronNoise`, `Sensitivity`.
    """

    name: ClassVar[str] = "neuron-gaussian"
    claims: ClassVar[str] = "epsilon-GDP for a record, over all queries: epsilon / sqrt(queries) each"
    law: ClassVar[Law] = "gaussian"

    def claim_of(self, epsilon: float) -> Claim:
        """epsilon-GDP, as theorem 2 reads it."""
        delta = min(theorem2_delta(epsilon), math.nextafter(1.0, 0.0))  # it rounds to 1 from epsilon 19 on
        return Claim(epsilon=epsilon, delta=delta, source="Lu et al., theorems 6, 3 and 2, section 5.3")

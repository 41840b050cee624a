"""ilm: identical Laplace noise on every input feature (Phan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from noiseproof.inputs.method import InputMethod
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Randomness
    from noiseproof.networks import Network
    from noiseproof.progress import Progress


@register
@dataclass(frozen=True)
class Ilm(InputMethod):
    """Phan et al.'s identical Laplace mechanism: the same noise on all features, and on the loss's coefficients.

    Formal guarantee
    ----------------
    Claimed: epsilon_2 + epsilon_3, for one replaced record. Proven with `draw="record"` and `coefficients="first-order"`:
    each record's features are released with eps_x = sum_j r_j |L| epsilon_2 / D_h and its label with
    eps_y = 2 |L| epsilon_3 / D_F in the local model, so that everything trained on them is (eps_x + eps_y)-DP. Unit: record.
    Neighbours: replace-one, whatever the budget says. With `draw="batch"`, or labels read as they are: nothing.
    The number of epochs changes neither. Costs: one draw a feature, then an ordinary training.
    """

    name: ClassVar[str] = "ilm"
    claims: ClassVar[str] = "epsilon for a record, whatever the number of epochs"

    def _relevance(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> None:
        return None

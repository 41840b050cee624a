"""adlm: the Adaptive Laplace Mechanism, more noise on features that matter less (Phan et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Budget
from noiseproof.inputs import relevance_network
from noiseproof.inputs.input_noise import check_bounds
from noiseproof.inputs.method import InputMethod
from noiseproof.inputs.private_relevance import Normalised, average, normalise, release_relevance
from noiseproof.inputs.relevance_network import Relevance, RelevanceNetwork
from noiseproof.inputs.split import split
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Randomness
    from noiseproof.networks import Network
    from noiseproof.progress import Progress


@register
@dataclass(frozen=True)
class Adlm(InputMethod):
    """Phan et al.'s adaptive Laplace mechanism: less noise on features that matter more, by private relevances.

    `relevance` says which network the relevances are of: `functional` (a linear one, fitted under DP at
    `network_epsilon`), `trained` (the same network trained on the records without noise: the paper's way) or the path of a
    bundle; with `public_network` that bundle's network used no private record.

    Formal guarantee
    ----------------
    Claimed: epsilon_1 + epsilon_2 + epsilon_3, for one replaced record. Proven with `draw="record"`,
    `coefficients="first-order"` and a relevance network that is public or DP-trained: each record's features are released
    with eps_x = sum_j r_j |L| epsilon_j / D_h and its label with eps_y = 2 |L| epsilon_3 / D_F in the local model, the
    relevances with epsilon_1 / 2; the sum of these and of the network's own cost holds for everything trained on the
    result. Unit: record. Neighbours: replace-one, whatever the budget says. Else nothing is proven, and the card says why.
    The number of epochs changes neither number. Costs: relevances of all records, one draw a feature, then an ordinary
    training.
    """

    name: ClassVar[str] = "adlm"
    claims: ClassVar[str] = "epsilon for a record, whatever the number of epochs"

    relevance_share: float = 0.25
    relevance: str = "functional"
    public_network: bool = False
    network_epsilon: float = 1.0
    """What `relevance="functional"` spends on its network, beside the budget that is claimed."""
    relevance_epochs: int = 12
    """Epochs of `relevance="trained"`."""
    normalised: Normalised = "min-max"
    floor: float = 0.1
    """The least beta, before all are scaled to sum to the number of features."""
    power: float = 1.0
    """Relevances are raised to it before the budget is split by them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("relevance_share", "network_epsilon", "relevance_epochs"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SettingError(f"adlm's setting {name} must be positive, not {value}.")
        split(torch.ones(1), self.floor, self.power)
        normalise(torch.ones(1, 1), self.normalised)
        if self.public_network and self.relevance in ("functional", "trained"):
            raise SettingError("a public relevance network is read from a bundle: set relevance to its folder.")

    @property
    def _relevance_share(self) -> float:
        return self.relevance_share

    def _relevance(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> Relevance:
        check_bounds(dataset.features)
        chosen = self._network(network, dataset, budget, rng, progress)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        mean = average(chosen.module.to(device), dataset.features.to(device), normalised=self.normalised)
        chosen.module.cpu()
        return Relevance(release_relevance(mean, len(dataset), self.parts(budget.epsilon)[0], rng), chosen)

    def _network(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> RelevanceNetwork:
        if self.relevance == "functional":
            spend = Budget(self.network_epsilon, budget.delta, "replace-one")
            return relevance_network.functional(dataset, spend, rng, progress)
        if self.relevance == "trained":
            seed = int(torch.randint(2**31, (1,), generator=rng.generator))
            return relevance_network.trained(network, dataset, self.relevance_epochs, seed, progress)
        return relevance_network.from_bundle(self.relevance, dataset.public.shape, public=self.public_network)

    def _beta(self, dataset: Dataset, relevance: Relevance | None) -> torch.Tensor:
        assert relevance is not None
        return split(relevance.private.values, self.floor, self.power)

"""Whose relevances they are: a network that is public, was trained under DP at a cost that is added, or was not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.methods.inputs.quadratic import Law
from noiseproof.methods.inputs.relevance import PrivateRelevance
from noiseproof.networks import Training, fit_stack
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card, Randomness
    from noiseproof.progress import Progress


NOT_PRIVATE = (
    "The network whose relevances decide where noise goes was trained on the private records without noise, and no part "
    "of the budget covers that."
)


@dataclass(frozen=True, eq=False)
class RelevanceNetwork:
    """A network to take relevances from, and what having it cost under replace-one; `why` says why no cost is known."""

    module: nn.Module
    source: str
    epsilon: float = 0.0
    delta: float = 0.0
    why: str | None = None


@dataclass(frozen=True, eq=False)
class Relevance:
    """Private relevances and the network they are of."""

    private: PrivateRelevance
    network: RelevanceNetwork

    @property
    def ran(self) -> dict[str, Any]:
        """What a card says of them."""
        facts: dict[str, Any] = {"relevance network": self.network.source}
        if self.network.why is None:
            facts["epsilon of the relevance network"] = self.network.epsilon
            facts["epsilon of the relevances"] = self.private.proven
        return facts

    @property
    def assumption(self) -> str:
        """What a proof that rests on them must state."""
        return f"the relevance network is as stated: {self.network.source}"


def trained(network: Network, dataset: Dataset, epochs: int, seed: int, progress: Progress) -> RelevanceNetwork:
    """A network trained on the private records without noise, as in the paper.

    Formal guarantee
    ----------------
    None: nothing can be proven of relevances of it.
    """
    device = default_device()
    stack = fit_stack(
        network,
        dataset.features.to(device),
        dataset.labels.to(device),
        [torch.arange(len(dataset))],
        Training(epochs=epochs, batch_size=100),
        seeds=[seed],
        progress=progress,
    )
    return RelevanceNetwork(stack.to("cpu").module(0).eval(), "trained without noise", why=NOT_PRIVATE)


def functional(dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress) -> RelevanceNetwork:
    """A linear network by the functional mechanism, within `budget`.

    Formal guarantee
    ----------------
    That of `functional`, under the budget's neighbours; the cost is the budget's.
    """
    from noiseproof.methods.inputs.functional import Functional

    law: Law = "laplace" if budget.delta == 0 else "gaussian"
    weights, _ = Functional(features="raw", noise=law).weights(dataset, budget, rng=rng, progress=progress)
    # The last weight is the constant's. Each record's features were scaled by one number, which relevances do not see.
    linear = nn.Linear(weights.shape[0] - 1, weights.shape[1])
    with torch.no_grad():
        linear.weight.copy_(weights[:-1].T)
        linear.bias.copy_(weights[-1])
    return RelevanceNetwork(
        nn.Sequential(nn.Flatten(), linear).eval(),
        "linear, by the functional mechanism",
        budget.epsilon,
        budget.delta,
    )


def from_bundle(path: str, shape: tuple[int, ...], *, public: bool) -> RelevanceNetwork:
    """The network of a bundle: `public` if no private record was used for it, else at the cost that its card proves.

    Formal guarantee
    ----------------
    The card's, turned into replace-one where it is for add-or-remove: (2 epsilon, (1 + e^epsilon) delta).
    """
    from noiseproof.releases import bundles
    from noiseproof.releases.release import ModelRelease

    release = bundles.load(path)
    if not isinstance(release, ModelRelease) or release.public.shape != shape:
        raise SettingError(f"{path} is no bundle of a network for records of shape {shape}, so it gives no relevances.")
    name = Path(path).name
    if public:
        return RelevanceNetwork(release.module, f"public, from the bundle {name}")
    epsilon, delta = replace_one(release.card)
    why = None
    if not (math.isfinite(epsilon) and delta < 1):
        why = f"The network of the bundle {name}, whose relevances decide where noise goes, has no proof of its own."
        epsilon = delta = 0.0
    return RelevanceNetwork(release.module, f"{release.method}, from the bundle {name}", epsilon, delta, why)


def replace_one(card: Card) -> tuple[float, float]:
    """What a card proves under replace-one: exchanging a record is removing one and adding another."""
    if card.proven is None:
        return math.inf, 1.0
    epsilon, delta = card.proven.epsilon, card.proven.delta
    if card.neighbours == "replace-one":
        return epsilon, delta
    return 2 * epsilon, (1 + math.exp(epsilon)) * delta

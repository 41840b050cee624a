"""Grouping: DP-PGP's treatment of each layer's largest parameters (Mao et al. 2020, section IV)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Randomness
from noiseproof.guarantees.budget import check_epsilon
from noiseproof.parameters.kmeans import private_kmeans
from noiseproof.parameters.layout import Layout


@dataclass(frozen=True)
class Grouping:
    """How the largest parameters of a layer are grouped and published.

    The share `gamma` of a layer's parameters that is largest in size is grouped around `clusters` private centres, with
    `epsilon_cluster`. A parameter theta of a cluster with centre c is then published as theta + Lap(D / epsilon_shift),
    where D is the cluster's radius, the largest distance of one of its parameters from c. (The paper leaves D, the
    number of clusters and their rounds open.) With `as_printed` it is 2 c - theta + Lap, as line 21 of Algorithm 2 has
    it, which mirrors the parameter at the centre.
    """

    gamma: float = 0.2
    clusters: int = 8
    rounds: int = 5
    as_printed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise SettingError(f"gamma, the share of parameters to be grouped, must lie in [0, 1], not {self.gamma}.")
        if self.clusters < 1 or self.rounds < 1:
            raise SettingError(f"grouping needs at least 1 cluster and 1 round, not {self.clusters} and {self.rounds}.")

    def select(self, target: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
        """For each layer the places of its floor(gamma n) largest parameters, in order."""
        selected = {}
        for layer, place in layout.layers.items():
            size = place.stop - place.start
            count = math.floor(self.gamma * size + 1e-9)
            largest = target[place].abs().argsort(descending=True, stable=True)[:count]
            selected[layer] = place.start + largest.sort().values
        return selected

    def publish(
        self, values: torch.Tensor, epsilon_cluster: float, epsilon_shift: float, rng: Randomness
    ) -> torch.Tensor:
        """One layer's selected parameters as they are published.

        Formal guarantee
        ----------------
        None. The bound that centres and noise are scaled by, and the choice of parameters, are read off the values; the
        Laplace noise would hide one of the *parameters* of a cluster, given that its radius is public and nobody knows
        the others; no model and no record is hidden by it.
        """
        check_epsilon(epsilon_cluster)
        check_epsilon(epsilon_shift)
        largest = float(values.abs().max()) if len(values) else 0.0
        if largest == 0:
            return values.clone()
        found = private_kmeans(values, self.clusters, epsilon_cluster, largest, rng, rounds=self.rounds)
        centres = found.centres[found.cluster]
        own = values.double()
        radius = torch.zeros_like(found.centres).scatter_reduce_(0, found.cluster, (own - centres).abs(), "amax")
        scales = (radius / epsilon_shift)[found.cluster]
        # A cluster of radius 0 has its centre in its only value.
        shifted = rng.add_laplace(own, scales.clamp(min=torch.finfo(torch.float32).tiny))
        return (2 * centres - 2 * own + shifted if self.as_printed else shifted).to(values.dtype)

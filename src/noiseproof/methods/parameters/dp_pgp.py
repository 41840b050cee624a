"""dp-pgp: group the largest parameters by private k-means, draw the others (Mao et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive, Share
from noiseproof.methods.parameters.collection import Collection, ParameterLayout
from noiseproof.methods.parameters.density import Drawn, draw
from noiseproof.methods.parameters.dp_pg import PublishingMethod
from noiseproof.privacy import Budget, Claim, Laplace, Randomness
from noiseproof.privacy.budget import check_epsilon
from noiseproof.progress import SILENT, Progress


@register
@dataclass(frozen=True)
class DpPgp(PublishingMethod):
    """Mao et al.'s grouping: the mean network's largest parameters get Laplace noise by cluster, the others are drawn.

    Formal guarantee
    ----------------
    None. Claimed: max{epsilon_c + epsilon_K, epsilon_j}-DP for a model. What hides one parameter among those of a
    cluster hides neither a model, which moves all of them, nor a record, and the noise is scaled by what is read off
    the parameters; see `publish_grouped`, and `DpPg` for the parameters that are drawn.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> card = npf.train("dp-pgp", records, epsilon=3, models=5, epochs=1, gamma=0.1).card
        >>> card.verdict, card.claimed.unit
        ('nothing proven', 'model')
    """

    name: ClassVar[str] = "dp-pgp"
    claims: ClassVar[str] = "max{epsilon_c + epsilon_K, epsilon_j} for a model (not a record)"

    gamma: Share = 0.2
    """Share of each layer's parameters, the largest, that is grouped."""
    clusters: Count = 8
    """Clusters that each layer's largest parameters are grouped into."""
    rounds_of_kmeans: Count = 5
    """Lloyd's rounds, which share the clustering's epsilon."""
    as_printed: bool = False
    """Whether line 21 is taken as printed, 2 c - theta + Lap, rather than theta + Lap."""
    epsilon_draw: Positive | None = None
    """epsilon_j of a drawn parameter; None takes the budget's epsilon."""
    epsilon_cluster: Positive | None = None
    """epsilon_c of the clustering; None takes a fifth of the budget's, as the paper's (5, 1, 4) does."""
    epsilon_shift: Positive | None = None
    """epsilon_K of the Laplace noise; None takes what the clustering leaves of the budget's."""

    def epsilons(self, budget: Budget) -> tuple[float, float, float]:
        """epsilon_j, epsilon_c and epsilon_K; refused where the paper's sum of them is above the budget."""
        drawn = self.epsilon_draw or budget.epsilon
        cluster = self.epsilon_cluster or budget.epsilon / 5
        shift = self.epsilon_shift or budget.epsilon - cluster
        if shift <= 0 or max(drawn, cluster + shift) > budget.epsilon * (1 + 1e-9):
            raise SettingError(
                f"max(epsilon_cluster + epsilon_shift, epsilon_draw) must not be above the budget's epsilon, "
                f"{budget.epsilon:g}."
            )
        return drawn, cluster, shift

    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Drawn:
        """Algorithm 2: with gamma = 0 the very draws of dp-pg (corollary 3)."""
        epsilon, cluster, shift = self.epsilons(budget)
        target = collection.mean()
        selected = select_largest(target, collection.layout, self.gamma)
        kept = torch.ones(len(target), dtype=torch.bool)
        for places in selected.values():
            kept[places] = False
        mechanism = self.mechanism(len(collection), epsilon)
        columns = None if bool(kept.all()) else kept.nonzero().flatten()
        drawn = draw(collection, self._density(), mechanism, rng, columns=columns, progress=progress)
        if columns is None:
            return drawn
        values = torch.empty_like(target)
        values[columns] = drawn.values
        for places in selected.values():
            if len(places):
                values[places] = publish_grouped(
                    target[places], self.clusters, cluster, shift, rng, self.rounds_of_kmeans, self.as_printed
                )
        return Drawn(values, drawn.fixed, drawn.points)

    def claim(self, budget: Budget) -> Claim:
        """max{epsilon_c + epsilon_K, epsilon_j}, by corollaries 3 and 4."""
        drawn, cluster, shift = self.epsilons(budget)
        epsilon = drawn if self.gamma == 0 else max(cluster + shift, drawn if self.gamma < 1 else 0.0)
        return Claim(epsilon=epsilon, delta=0.0, unit="model", source="Mao et al., corollaries 3 and 4")

    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        drawn, cluster, shift = self.epsilons(budget)
        selected = select_largest(collection.mean(), collection.layout, self.gamma)
        grouped = sum(len(places) for places in selected.values())
        draws = (collection.parameters - grouped) * self.rounds
        one, together = self.true_epsilon(len(collection), draws, drawn, budget.delta)
        why = (
            f"For a model, the {draws} draws of parameters together would be {together:.4g} at delta {budget.delta:g}, "
            "were grids and bandwidths public; they were read off the networks."
        )
        if grouped:
            why += (
                f" The {grouped} grouped parameters have no finite epsilon for a model: it moves all of their means, by "
                "any amount, and the noise of each is scaled for one of them by what was read off them."
            )
        numbers = {
            "epsilon of a draw": drawn,
            "epsilon of the clustering": cluster,
            "epsilon of the shifts": shift,
            "grouped parameters": grouped,
            "true epsilon of a draw": one,
            "true epsilon of the drawn parameters": together,
            "true epsilon of a model": None if grouped else together,
        }
        return why, numbers


def select_largest(target: torch.Tensor, layout: ParameterLayout, gamma: float) -> dict[str, torch.Tensor]:
    """For each layer where its floor(gamma n) largest parameters lie, in order."""
    selected = {}
    for layer, place in layout.layers.items():
        count = math.floor(gamma * (place.stop - place.start) + 1e-9)
        largest = target[place].abs().argsort(descending=True, stable=True)[:count]
        selected[layer] = place.start + largest.sort().values
    return selected


def publish_grouped(
    values: torch.Tensor,
    clusters: int,
    epsilon_cluster: float,
    epsilon_shift: float,
    rng: Randomness,
    rounds: int = 5,
    as_printed: bool = False,
) -> torch.Tensor:
    """One layer's largest parameters as they are published, grouped around private centres.

    A parameter theta of a cluster with centre c is published as theta + Lap(D / epsilon_shift), where D is the cluster's
    radius, the largest distance of one of its parameters from c. (The paper leaves D, the number of clusters and their
    rounds open.) With `as_printed` it is 2 c - theta + Lap, as line 21 of Algorithm 2 has it, which mirrors the
    parameter at the centre.

    Formal guarantee
    ----------------
    None. The bound that centres and noise are scaled by, and the choice of parameters, are read off the values; the
    Laplace noise would hide one of the *parameters* of a cluster, given that its radius is public and nobody knows the
    others; no model and no record is hidden by it.
    """
    check_epsilon(epsilon_shift)
    largest = float(values.abs().max()) if len(values) else 0.0
    if largest == 0:
        return values.clone()
    found = private_kmeans(values, clusters, epsilon_cluster, largest, rng, rounds=rounds)
    centres = found.centres[found.cluster]
    own = values.double()
    radius = torch.zeros_like(found.centres).scatter_reduce_(0, found.cluster, (own - centres).abs(), "amax")
    scales = (radius / epsilon_shift)[found.cluster]
    # A cluster of radius 0 has its centre in its only value.
    shifted = rng.add_laplace(own, scales.clamp(min=torch.finfo(torch.float32).tiny))
    return (2 * centres - 2 * own + shifted if as_printed else shifted).to(values.dtype)


_RATIO = (4 * 0.225**2) ** (1 / 3)
"""epsilon of the counts over epsilon of the sums that makes the centres' error least, in one dimension (there, 4.2)."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Centres in rising order, and each value's cluster."""

    centres: torch.Tensor
    cluster: torch.Tensor


def private_kmeans(
    values: torch.Tensor, k: int, epsilon: float, bound: float, rng: Randomness, *, rounds: int = 5
) -> Clusters:
    """Group values of at most `bound` in size around k centres, by Lloyd's rounds on noisy counts and sums.

    The first centres are spread evenly over [-bound, bound], which is the paper's packing of spheres in one dimension.
    Each round spends epsilon / rounds on noisy counts and sums of the clusters; a cluster whose noisy count is below 1
    keeps its centre.

    Args:
        values: The numbers to group, a tensor of any shape.
        k: How many clusters, at least 1.
        epsilon: The privacy budget of all rounds together.
        bound: A public bound of the values' size, above 0.
        rng: Where the noise comes from.
        rounds: How often centres are moved.

    Returns:
        The centres in rising order, and each value's cluster.

    Raises:
        SettingError: If a setting is out of range.

    Formal guarantee
    ----------------
    The centres are epsilon-DP. Unit: one of the *values* (not a model, not a record). Neighbours: add-or-remove.
    Assumptions: `bound` does not depend on the values (larger values are clipped to it); the randomness's. Each value's
    cluster is not private: it depends on the value itself.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Reproducible
        >>> values = torch.tensor([-0.6, 0.4]).repeat(500)
        >>> found = private_kmeans(values, k=2, epsilon=10.0, bound=1.0, rng=Reproducible(0))
        >>> [round(float(centre), 1) for centre in found.centres]
        [-0.6, 0.4]
    """
    check_epsilon(epsilon)
    if k < 1 or rounds < 1:
        raise SettingError(f"k-means needs at least 1 cluster and 1 round, not {k} and {rounds}.")
    if not (math.isfinite(bound) and bound > 0):
        raise SettingError(f"the values' bound must be a finite number greater than 0, not {bound}.")
    inside = values.detach().double().flatten().clamp(-bound, bound) / bound
    centres = (2 * torch.arange(k, dtype=torch.float64, device=values.device) + 1) / k - 1
    each = epsilon / rounds
    counts = Laplace(1.0, each * _RATIO / (1 + _RATIO))
    sums = Laplace(1.0, each / (1 + _RATIO))
    for _ in range(rounds):
        cluster = _nearest(inside, centres)
        number = counts.release(torch.bincount(cluster, minlength=k).double(), rng)
        total = sums.release(torch.bincount(cluster, weights=inside, minlength=k), rng)
        moved = (total / number.clamp(min=1.0)).clamp(-1, 1)
        centres = torch.where(number < 1, centres, moved).sort().values
    return Clusters(centres * bound, _nearest(inside, centres))


def _nearest(values: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """In one dimension the nearest centre is found by the middles between them."""
    return torch.bucketize(values, (centres[1:] + centres[:-1]) / 2)

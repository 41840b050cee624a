"""Private k-means in one dimension (Su, Cao, Li, Bertino and Jin 2016): Lloyd's rounds on noisy counts and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Laplace, Randomness
from noiseproof.guarantees.budget import check_epsilon

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
    """Group values of at most `bound` in size around k centres.

    The first centres are spread evenly over [-bound, bound], which is the paper's packing of spheres in one dimension.
    Each round spends epsilon / rounds on noisy counts and sums of the clusters; a cluster whose noisy count is below 1
    keeps its centre.

    Formal guarantee
    ----------------
    The centres are epsilon-DP. Unit: one of the *values* (not a model, not a record). Neighbours: add-or-remove.
    Assumptions: `bound` does not depend on the values (larger values are clipped to it); the randomness's. Each value's
    cluster is not private: it depends on the value itself.
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

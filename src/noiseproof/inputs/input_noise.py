"""Noise on inputs: Lap(D_h / (beta_j epsilon_2)) / |L| on feature j (Phan et al., Algorithm 1, lines 8 to 14)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noiseproof.errors import DataError, SettingError
from noiseproof.guarantees import Randomness
from noiseproof.guarantees.budget import check_epsilon

_ENTRIES = 1 << 22
"""Features that get their noise at once, so that memory does not grow with the records."""


@dataclass(frozen=True, eq=False)
class InputNoise:
    """Laplace noise on features: adaptive by `beta`, identical where it is all 1."""

    sensitivity: float
    """D_h = 2 d |h0|."""
    epsilon: float
    batch: int
    beta: torch.Tensor
    """One number a feature, flat, which sum to the number of features."""

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not (self.beta > 0).all():
            raise SettingError("every feature needs a part of the budget greater than 0; give beta a floor.")

    @property
    def bias_scale(self) -> float:
        """The scale of the noise on the bias, whose beta is 1."""
        return self.sensitivity / self.epsilon / self.batch

    @property
    def scales(self) -> torch.Tensor:
        """The scale of each feature's noise, flat, in float64."""
        return self.bias_scale / self.beta.double()

    def perturb(self, features: torch.Tensor, rng: Randomness, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The records with noise of their own on every feature, drawn once; in `out`, which may be `features`, if given.

        Formal guarantee
        ----------------
        `local_epsilon`-DP for each record's features on its own: local DP, hence replace-one for one record of a data
        set, whatever is computed from the result. Assumption: features lie in [0, 1], which is checked.
        """
        check_bounds(features)
        scales = self.scales.cpu().view(features.shape[1:])
        result = torch.empty_like(features) if out is None else out
        rows = max(1, _ENTRIES // max(1, scales.numel()))
        for first in range(0, len(features), rows):
            part = slice(first, first + rows)
            rng.add_laplace(features[part], scales, out=result[part])
        return result

    def picture(self, shape: tuple[int, ...], rng: Randomness) -> torch.Tensor:
        """One draw for a whole batch, of one record's shape: what the authors' program adds to every record alike."""
        return rng.add_laplace(torch.zeros(shape), self.scales.cpu().view(shape))

    def bias(self, records: int, rng: Randomness) -> torch.Tensor:
        """The bias's input, 1, with noise, for each of so many records. It holds nothing private."""
        return rng.add_laplace(torch.ones(records), self.bias_scale)

    def local_epsilon(self, rng: Randomness) -> float:
        """sum_j r_j |L| epsilon_j / D_h with ranges r_j = 1, and a step of the noise's lattice for each feature."""
        return float((1 / self.scales).sum()) + len(self.beta) * rng.rounding(1.0, 1, 1)


def check_bounds(features: torch.Tensor) -> None:
    """Refuse features outside [0, 1], which noise was not scaled for."""
    if len(features) and not (float(features.min()) >= 0 and float(features.max()) <= 1):
        raise DataError(
            "a feature lies outside its public bounds, for which the noise would be too small; code the records by a schema "
            "whose bounds hold, or clip them to [0, 1]."
        )

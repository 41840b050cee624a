"""The loss as a polynomial: cross-entropy's Taylor form, its coefficients and their noise (Phan et al., eqs 24 and 25)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from noiseproof.guarantees import Randomness
from noiseproof.guarantees.budget import check_epsilon


def first_order(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """1/2 - y_l for each record and class: the only coefficients that depend on a label."""
    return 0.5 - functional.one_hot(labels, classes).float()


def taylor_loss(logits: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Each record's sum over classes of log 2 + c_l z_l + z_l^2 / 8, with first-order coefficients c_l."""
    return (math.log(2) + coefficients * logits + logits.square() / 8).sum(1)


def sensitivity(classes: int, hidden: int) -> float:
    """D_F = M (|h| + |h|^2 / 4), lemma 5: 1812.5 for 10 classes and 25 units."""
    return classes * (hidden + hidden**2 / 4)


def error_bound(classes: int) -> float:
    """Lemma 7: M (e^2 + 2e - 1) / (e (1 + e)^2), which the paper says the Taylor form costs at most, on average."""
    return classes * (math.e**2 + 2 * math.e - 1) / (math.e * (1 + math.e) ** 2)


@dataclass(frozen=True)
class LossNoise:
    """Laplace noise on the loss's first-order coefficients: Lap(D_F / epsilon_3) / |L|.

    The coefficients of order 0 and 2 are the same for every record and public, so they stay as they are: noise on them
    protects nobody, and could leave the loss without a minimum.
    """

    classes: int
    hidden: int
    """|h_k|, the width of the last hidden layer."""
    epsilon: float
    batch: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def sensitivity(self) -> float:
        """D_F."""
        return sensitivity(self.classes, self.hidden)

    @property
    def scale(self) -> float:
        """The noise's scale on a coefficient."""
        return self.sensitivity / self.epsilon / self.batch

    def perturb(self, coefficients: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Coefficients with independent noise on each.

        Formal guarantee
        ----------------
        `local_epsilon`-DP for each record's label on its own (local DP, hence replace-one for a label).
        """
        return rng.add_laplace(coefficients, self.scale)

    def local_epsilon(self, rng: Randomness) -> float:
        """2 |L| epsilon_3 / D_F: another label changes two coefficients by 1, and rounding may add a step to each."""
        return 2 / self.scale + self.classes * rng.rounding(1.0, 1, 1)

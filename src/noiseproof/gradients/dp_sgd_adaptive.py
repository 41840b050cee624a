"""dp-sgd-adaptive: dp-sgd whose clipping norm follows a private quantile of the gradient norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from noiseproof.errors import SettingError
from noiseproof.gradients.adaptive_gradients import AdaptiveGradients
from noiseproof.gradients.dp_sgd import DpSgd
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness


@register
@dataclass(frozen=True)
class DpSgdAdaptive(DpSgd):
    """DP-SGD whose clipping norm follows a private quantile of the gradient norms.

    Formal guarantee
    ----------------
    That of `dp-sgd` at the same sigma: the sum and the count of unclipped records are one Gaussian mechanism (see
    `AdaptiveGradients`). Andrew, Thakkar, McMahan, Ramaswamy 2021.
    """

    name: ClassVar[str] = "dp-sgd-adaptive"

    quantile: float = 0.5
    count_sigma: float | None = None
    """Noise on the count of unclipped records; None is a twentieth of the expected batch, or more where sigma asks."""
    speed: float = 0.2
    """How fast the clipping norm follows: it moves by exp(-speed * (noisy share - quantile)) a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_schedule != "constant" or self.clip_schedule != "constant":
            raise SettingError(
                "dp-sgd-adaptive sets its own clipping norm at constant noise; leave schedules constant."
            )

    def _private(self, module: nn.Module, sigma: float, rate: float, rng: Randomness) -> PrivateGradients:
        return AdaptiveGradients(
            module,
            clip=self.clip,
            sigma=sigma,
            rate=rate,
            rng=rng,
            quantile=self.quantile,
            count_sigma=self.count_sigma or max(self.batch / 20, sigma),
            speed=self.speed,
        )

"""dp-sgd-bounded: dp-sgd whose updates never leave the ball of radius C, which is what Lin et al. wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from noiseproof.gradients.dp_sgd import DpSgd
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness


@register
@dataclass(frozen=True)
class DpSgdBounded(DpSgd):
    """DP-SGD whose noisy mean is clipped again, so that no update leaves the ball of radius C.

    Formal guarantee
    ----------------
    That of `dp-sgd`: the second clipping is post-processing.
    """

    name: ClassVar[str] = "dp-sgd-bounded"

    def _private(self, module: nn.Module, sigma: float, rate: float, rng: Randomness) -> PrivateGradients:
        return PrivateGradients(module, clip=self._clip(), sigma=self.schedule(sigma), rate=rate, rng=rng, bound=True)

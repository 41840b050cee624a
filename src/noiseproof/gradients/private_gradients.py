"""Private gradients: clip every record's gradient, sum, add Gaussian noise once (DP-SGD, Abadi et al. 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.engine import RecordGradients
from noiseproof.gradients.schedules import Schedule
from noiseproof.guarantees import Gaussian, Neighbours, accountants
from noiseproof.guarantees.events import DpEvent, sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness


class PrivateGradients(BatchGradients):
    """DP-SGD's gradient for the user's own loop: `backward(losses)`, then any optimiser's `step()`.

    `clip` and `sigma` are numbers or `Schedule`s; the noise on the sum has standard deviation sigma * clip.
    With `bound=True` the noisy mean is clipped to `clip` again, so that no update leaves that ball.

    Formal guarantee
    ----------------
    Each step is a Poisson-sampled Gaussian mechanism with noise multiplier sigma(t) on a sum of per-record gradients
    of L2 norm at most clip(t); the whole is their adaptive composition, and everything computed from the gradients is
    post-processing. Unit: record. Neighbours: add-or-remove (replace-one doubles the sensitivity; the accountant is
    told). Assumes that each loss depends on its own record and the public state only (layers that mix records are
    refused), that the rate and `expected_batch` are public, that sums are exact (floating-point error of a sum is not
    accounted for), and that the sample stays secret. Abadi et al. 2016; Mironov et al. 2019.
    """

    shareable = True

    def __init__(
        self,
        module: nn.Module,
        *,
        clip: float | Schedule,
        sigma: float | Schedule,
        rate: float,
        rng: Randomness | None = None,
        bound: bool = False,
    ) -> None:
        from noiseproof.guarantees import Secure

        super().__init__(module, rate=rate, rng=rng if rng is not None else Secure())
        self._clip = clip if isinstance(clip, Schedule) else Schedule(clip)
        self._sigma = sigma if isinstance(sigma, Schedule) else Schedule(sigma)
        self.bound = bound

    @property
    def clip(self) -> float:
        """The clipping norm of the step that comes next."""
        return self._clip.at(self.steps)

    @property
    def sigma(self) -> float:
        """The noise multiplier of the step that comes next."""
        return self.sigma_at(self.steps)

    def sigma_at(self, step: int) -> float:
        """The noise multiplier of a step, counted from 0."""
        return self._sigma.at(step)

    def epsilon(self, delta: float, *, accountant: str = "pld", neighbours: Neighbours = "add-or-remove") -> float:
        """The epsilon of the steps taken so far. Reading it changes nothing."""
        return accountants.epsilon(self.events.event, delta, accountant=accountant, neighbours=neighbours).epsilon

    def _accumulate(self, gradients: RecordGradients) -> None:
        self._add(gradients.clipped_vector(self.clip, 1 / self.expected_batch))

    def _event(self) -> DpEvent:
        return sampled_gaussian(self.rate, self.sigma)

    def _finish(self) -> torch.Tensor:
        mean = self._noised_mean(self.clip, self.sigma)
        return bounded(mean, self.clip) if self.bound else mean

    def _noised_mean(self, clip: float, sigma: float) -> torch.Tensor:
        """The sum of the clipped gradients, noised, over the expected batch: records were weighted by its inverse."""
        scale = Gaussian(clip / self.expected_batch, sigma).scale(self._rng, self.coordinates)
        return self.ranks.noised(self._take_sum(), lambda part: self._rng.add_gaussian(part, scale, out=part))


def bounded(gradient: torch.Tensor, clip: float) -> torch.Tensor:
    """The gradient, scaled down to norm `clip` if it is longer."""
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (clip / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp(max=1)

"""DP-SGD's gradients for a training loop of your own: every record clipped, the sum noised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.engine.batch_gradients import BatchGradients
from noiseproof.engine.clipping import RecordGradients
from noiseproof.engine.sampling import Schedule
from noiseproof.privacy import Gaussian, Neighbours, Secure, accountants
from noiseproof.privacy.events import DpEvent, sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness


class PrivateGradients(BatchGradients):
    """DP-SGD's gradient for a loop of your own: `backward(losses)`, then any optimizer's `step()`.

    Examples:
        >>> network = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        >>> engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.1, sample_rate=0.1)
        >>> for x, y in engine.batches(torch.randn(100, 4), torch.randint(2, (100,)), steps=5):
        ...     losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        ...     if engine.backward(losses):
        ...         optimizer.step()
        >>> 1 < engine.epsilon(delta=1e-5) < 2
        True

    Args:
        module: The network; every trainable parameter gets a private gradient.
        max_grad_norm: The L2 norm that each record's gradient is clipped to: a number, or a `Schedule` by step.
        noise_multiplier: The noise on the sum has the standard deviation noise_multiplier * max_grad_norm; also a
            number or a `Schedule`.
        sample_rate: The probability with which each record is in a batch.
        rng: Where samples and noise come from; `Secure()` if not given.
        bound: Whether the noisy mean is clipped to `max_grad_norm` again, so that no update leaves that ball.
        group_size: How many of the records may be one person's, each sampled and clipped by itself: events are then a
            person's (`GroupDpEvent`). To sample persons instead, give `batches` their `groups`.

    Raises:
        UnsupportedError: If the network has layers that mix records, or is sharded.
        SettingError: If a setting is out of range.

    Formal guarantee
    ----------------
    Each step is a Poisson-sampled Gaussian mechanism with noise multiplier sigma(t) on a sum of per-record gradients
    of L2 norm at most clip(t); the whole is their adaptive composition, and everything computed from the gradients is
    post-processing. Unit: record. Neighbours: add-or-remove (replace-one doubles the sensitivity; the accountant is
    told). Assumes that each loss depends on its own record and the public state only (layers that mix records are
    refused), that the rate and `expected_batch` are public, that sums over records are exact (what rounding adds to one
    record's own share is bounded, see `contributions`), and that the sample stays secret. Abadi et al. 2016; Mironov et
    al. 2019.
    """

    shareable = True

    def __init__(
        self,
        module: nn.Module,
        *,
        max_grad_norm: float | Schedule,
        noise_multiplier: float | Schedule,
        sample_rate: float,
        rng: Randomness | None = None,
        bound: bool = False,
        group_size: int = 1,
    ) -> None:
        rng = Secure() if rng is None else rng
        super().__init__(module, sample_rate=sample_rate, rng=rng, group_size=group_size)
        self._clip = max_grad_norm if isinstance(max_grad_norm, Schedule) else Schedule(max_grad_norm)
        self._sigma = noise_multiplier if isinstance(noise_multiplier, Schedule) else Schedule(noise_multiplier)
        self.bound = bound

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm of the step that comes next."""
        return self._clip.at(self.steps)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the step that comes next."""
        return self.sigma_at(self.steps)

    def sigma_at(self, step: int) -> float:
        """The noise multiplier of a step, counted from 0."""
        return self._sigma.at(step)

    def epsilon(self, delta: float, *, accountant: str = "pld", neighbours: Neighbours = "add-or-remove") -> float:
        """The epsilon of the steps taken so far. Reading it changes nothing."""
        return accountants.epsilon(self.events.event, delta, accountant=accountant, neighbours=neighbours).epsilon

    def _accumulate(self, gradients: RecordGradients) -> None:
        self._add(gradients.clipped_vector(self.max_grad_norm, 1 / self.expected_batch))

    def _event(self) -> DpEvent:
        return sampled_gaussian(self.sample_rate, self.noise_multiplier, group_size=self.group_size)

    def _finish(self) -> torch.Tensor:
        mean = self._noised_mean(self.max_grad_norm, self.noise_multiplier)
        return bounded(mean, self.max_grad_norm) if self.bound else mean

    def _noised_mean(self, max_grad_norm: float, noise_multiplier: float) -> torch.Tensor:
        """The sum of the clipped gradients, noised, over the expected batch: records were weighted by its inverse."""
        scale = Gaussian(max_grad_norm / self.expected_batch, noise_multiplier).scale(self._rng, self.coordinates)
        return self.ranks.noised(self._take_sum(), lambda part: self._rng.add_gaussian(part, scale, out=part))


def bounded(gradient: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """The gradient, scaled down to that norm if it is longer."""
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (max_grad_norm / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp(max=1)

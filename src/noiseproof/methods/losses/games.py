"""Games at the losses: what one record's presence does to the discriminator's step that is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.common import seeded_by
from noiseproof.methods.gradients.games import clipped_sum_game
from noiseproof.methods.losses.gan import NoiseTuning
from noiseproof.networks.generators import DenseDiscriminator
from noiseproof.privacy import Budget, Claim, Filter, Game, accountants, calibration
from noiseproof.privacy.events import sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.methods.losses.rdp_gan import RdpGan
    from noiseproof.methods.losses.zero_gan import ZeroGan
    from noiseproof.privacy import Randomness


_RECORDS, _WIDTH = 8, 6


def filtered_sum_game(name: str, max_grad_norm: float, budget: Budget) -> Game:
    """dp-sgd's game against the filtered step: a canary at the clipping norm, or not."""

    def gradients(module: nn.Module, noise_multiplier: float, rng: Randomness) -> FilteredGradients:
        # Every step is a trial of its own, so that the filter of this object must let many pass.
        wide = Filter(Budget(1e4 * budget.epsilon, budget.delta, budget.neighbours))
        return FilteredGradients(
            module,
            wide,
            NoiseTuning("constant", noise_multiplier),
            max_grad_norm=max_grad_norm,
            sample_rate=1.0,
            rng=rng,
        )

    return clipped_sum_game(name, gradients, budget)


def zero_game(method: ZeroGan, budget: Budget) -> Game:
    """One noised number, to which a canary adds `clip` or nothing (replace-one: minus that)."""
    from noiseproof.methods.losses.zero_gan import noised_sum

    sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
    swap = budget.neighbours == "replace-one"

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        slope = 1e3 * method.max_grad_norm * (1 if world else -1)
        slopes = torch.tensor([0.0, slope] if world or swap else [0.0])
        return torch.stack([noised_sum(slopes, method.max_grad_norm, sigma, rng).double() for _ in range(trials)])

    proven = accountants.epsilon(sampled_gaussian(1.0, sigma), budget.delta, neighbours=budget.neighbours).proof()
    claimed = Claim(
        epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="the accountant, for one step"
    )
    name = f"{method.name}: a canary with a steep loss"
    return Game(name, play, budget.neighbours, budget.delta, claimed, proven, gaussian=True)


def span_game(method: RdpGan, budget: Budget) -> Game:
    """One discriminator step on eight records, of which one has, or has not, a feature that no other has.

    The noise is what Theorem 4 asks for at the budget, for one iteration of one step that sees all records. The weights
    that read that feature move if and only if the record is there: noise on the loss's value has no gradient, and noise
    on the output's error, or a scaled gradient, stays in the span of the private activations.
    """
    from noiseproof.methods.losses import claims
    from noiseproof.methods.losses.rdp_gan import noised_loss

    sensitivity = claims.sensitivity(method.bound, _RECORDS)
    terms = {"rate": 1.0, "order": method.order, "sensitivity": sensitivity}
    sigma = claims.calibrated(budget.epsilon, budget.delta, steps=1, iterations=1, **terms)
    torch_generator = torch.Generator().manual_seed(0)
    records = torch.rand(_RECORDS, _WIDTH, generator=torch_generator)
    records[:, -1] = 0.0
    labels = torch.arange(_RECORDS) % 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        discriminator = DenseDiscriminator((_WIDTH,), 2, hidden=8)

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        seen = records.clone()
        seen[0, -1] = float(world)
        scores = torch.empty(trials, dtype=torch.float64)
        weights = next(discriminator.parameters())
        for trial in range(trials):
            loss = noised_loss(discriminator(seen, labels), method.noise_on, sigma, rng)
            (gradient,) = torch.autograd.grad(loss, [weights])
            scores[trial] = float(gradient[:, _WIDTH - 1].abs().sum() > 0)
        return scores

    claimed = Claim(
        epsilon=claims.total(claims.iteration(1.0, method.order, sensitivity, sigma, 1, budget.delta), 1),
        delta=budget.delta,
        neighbours="replace-one",
        source="Theorem 4 of Ma et al. 2020, for one step",
    )
    return Game(f"{method.name}: a feature that only one record has", play, "replace-one", budget.delta, claimed)


# Filtered gradients: DP-SGD's gradient whose noise may be chosen as training goes, each step paid for by a filter.


class FilteredGradients(PrivateGradients):
    """`PrivateGradients` at the noise that `tuning` says now; a step that the filter refuses releases nothing.

    Formal guarantee
    ----------------
    All that is released is (epsilon, delta)-DP of the filter's budget, whatever `tuning` made of earlier releases: each
    step is a Poisson-sampled Gaussian mechanism that was paid for before its gradient became visible (`Filter`).
    Assumptions: those of `PrivateGradients`.
    """

    def __init__(
        self,
        module: nn.Module,
        filter: Filter,
        tuning: NoiseTuning,
        *,
        max_grad_norm: float,
        sample_rate: float,
        rng: Randomness,
    ) -> None:
        super().__init__(module, max_grad_norm=max_grad_norm, noise_multiplier=1.0, sample_rate=sample_rate, rng=rng)
        self._filter, self._tuning = filter, tuning

    def sigma_at(self, step: int) -> float:
        """The noise multiplier of the step that comes next; only that one is known."""
        return self._tuning.sigma

    @property
    def affordable(self) -> bool:
        """Whether the step that comes next fits into what is left of the budget."""
        return self._filter.fits(self._event())

    def _finish(self) -> torch.Tensor:
        self._filter.spend(self._event())
        return super()._finish()

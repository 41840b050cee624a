"""Games at the gradients: one crafted record, and what its presence does to the gradients that are released.

They run the very code that trainings run, on a module whose loss is linear, so that a record's gradient *is* the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.guarantees import Budget, Claim, Game, Proof, accountants, calibration
from noiseproof.guarantees.events import EventLog, sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness

_STEPS, _RATE, _WIDTH = 4, 0.5, 3


class _LinearLoss(nn.Module):
    """loss(record) = <w, record>: the gradient is the record itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(_WIDTH, 1, bias=False)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.weights(records).squeeze(1)  # type: ignore[no-any-return]


def sampled_sum_game(
    name: str,
    gradients: Callable[[nn.Module, float, float, Randomness], PrivateGradients],
    sigma: float | None,
    budget: Budget,
) -> Game:
    """A canary of ten times the clipping norm over a few Poisson-sampled steps, scored by the likelihood ratio.

    `gradients(module, rate, sigma, rng)` is what is attacked. Neighbours differ in the canary (or, replace-one, in
    its sign); the others' gradients are zero, which is the worst case for the sum.
    """
    replace = budget.neighbours == "replace-one"
    if sigma is None:
        sigma = calibration.sigma(budget.epsilon, budget.delta, _RATE, _STEPS, neighbours=budget.neighbours).sigma
    module = _LinearLoss()

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = _randomness(generator)
        scores = torch.empty(trials, dtype=torch.float64)
        for trial in range(trials):
            attacked = gradients(module, _RATE, sigma, rng)
            records = torch.zeros(2 if world or replace else 1, _WIDTH)
            if len(records) == 2:
                records[1, 0] = 10 * attacked.clip * (1 if world else -1)
            scores[trial] = _likelihood_ratio(attacked, module, records, replace)
            attacked.close()
        return scores

    log = EventLog()
    attacked = gradients(module, _RATE, sigma, _randomness(torch.Generator()))
    for step in range(_STEPS):
        log.append(sampled_gaussian(_RATE, attacked.sigma_at(step)))
    attacked.close()
    spent = accountants.epsilon(log.event, budget.delta, neighbours=budget.neighbours)
    proven = Proof(epsilon=spent.epsilon, delta=budget.delta, accountant=spent.accountant)
    claimed = Claim(
        epsilon=proven.epsilon,
        delta=budget.delta,
        neighbours=budget.neighbours,
        source="the accountant, for these steps",
    )
    return Game(f"{name}: a canary at the clipping norm", play, budget.neighbours, budget.delta, claimed, proven)


def _likelihood_ratio(attacked: PrivateGradients, module: nn.Module, records: torch.Tensor, replace: bool) -> float:
    ratio = 0.0
    for (batch,) in attacked.batches(records, steps=_STEPS):
        # Before `backward`: an adaptive clipping norm moves with the step.
        clip, sigma = attacked.clip, getattr(attacked, "sum_sigma", attacked.sigma)
        attacked.backward(module(batch) if len(batch) else None)
        gradient = attacked.parameters[0].grad
        assert gradient is not None
        seen = float(gradient[0, 0]) * attacked.expected_batch / clip
        ratio += _log_mixture(seen, sigma)
        if replace:
            ratio -= _log_mixture(-seen, sigma)
    return ratio


def _log_mixture(seen: float, sigma: float) -> float:
    """log of ((1 - q) N(0, sigma^2) + q N(1, sigma^2)) / N(0, sigma^2) at `seen`."""
    shift = torch.tensor((2 * seen - 1) / (2 * sigma**2), dtype=torch.float64)
    weights = torch.tensor([1 - _RATE, _RATE], dtype=torch.float64).log()
    return float(torch.logaddexp(weights[0], weights[1] + shift))


def huge_gradient_game(
    name: str,
    gradients: Callable[[nn.Module, float, Randomness], BatchGradients],
    score: Callable[[torch.Tensor], float],
    budget: Budget,
    *,
    other: float,
) -> Game:
    """One more record, with a gradient of norm a million, in one step that sees every record.

    The record that is there anyway has a gradient of norm `other` in another direction. `score(gradient)` is larger the
    more the step looks as if the canary was there.
    """
    module = _LinearLoss()

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = _randomness(generator)
        records = torch.zeros(1 + world, _WIDTH)
        records[0, 1] = other
        if world:
            records[1, 0] = 1e6
        scores = torch.empty(trials, dtype=torch.float64)
        attacked = gradients(module, 1.0, rng)
        for trial, (batch,) in enumerate(attacked.batches(records, steps=trials)):
            attacked.backward(module(batch))
            gradient = attacked.parameters[0].grad
            assert gradient is not None
            scores[trial] = score(gradient[0].double())
        attacked.close()
        return scores

    return Game(f"{name}: a canary with a huge gradient", play, "add-or-remove", budget.delta)


def _randomness(generator: torch.Generator) -> Randomness:
    from noiseproof.guarantees import Reproducible

    return Reproducible(int(torch.randint(2**62, (1,), generator=generator)))

"""Games at the gradients: one crafted record, and what its presence does to the gradients that are released.

They run the very code that trainings run, on a module whose loss is linear, so that a record's gradient *is* the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.engine.private_gradients import BatchGradients, PrivateGradients
from noiseproof.methods.common import seeded_by
from noiseproof.privacy import Budget, Claim, Game, accountants, calibration
from noiseproof.privacy.events import sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness


_WIDTH = 3
_STEPS = 20
"""Trials that one object plays before a fresh one takes over, so that an adaptive clipping norm stays near its start."""


class _LinearLoss(nn.Module):
    """loss(record) = <w, record>: the gradient is the record itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(_WIDTH, 1, bias=False)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.weights(records).squeeze(1)


def clipped_sum_game(
    name: str,
    gradients: Callable[[nn.Module, float, Randomness], PrivateGradients],
    budget: Budget,
) -> Game:
    """A canary of ten times the clipping norm in one step that sees every record: a Gaussian shifted by the norm, or not.

    `gradients(module, sigma, rng)` is what is attacked, at rate 1 and at the noise that meets the budget there, so that
    the game's promise is the budget's whatever the noise of a training was. Neighbours differ in the canary (or, replace-one, in
    its sign); the others' gradients are zero, which is the worst case for the sum. Every step is a trial of its own.
    """
    replace = budget.neighbours == "replace-one"
    sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
    module = _LinearLoss()

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        records = torch.zeros(2 if world or replace else 1, _WIDTH)
        if len(records) == 2:
            records[1, 0] = 1e3 * (1 if world else -1)
        scores = []
        for start in range(0, trials, _STEPS):
            attacked = gradients(module, sigma, rng)
            # A public constant, the same in both worlds; so large that a second clipping of the mean hides nothing.
            attacked.expected_batch = 1e4
            for (batch,) in attacked.batches(records, steps=min(_STEPS, trials - start)):
                clip = attacked.max_grad_norm  # before `backward`: an adaptive clipping norm moves with the step
                attacked.backward(module(batch))
                scores.append(_gradient(attacked)[0] * attacked.expected_batch / clip)
            attacked.close()
        return torch.stack(scores)

    event = sampled_gaussian(1.0, sigma)
    proven = accountants.epsilon(event, budget.delta, neighbours=budget.neighbours).proof()
    claimed = Claim(
        epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="the accountant, for one step"
    )
    return Game(
        f"{name}: a canary at the clipping norm",
        play,
        budget.neighbours,
        budget.delta,
        claimed,
        proven,
        gaussian=True,
    )


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
        rng = seeded_by(generator)
        records = torch.zeros(1 + world, _WIDTH)
        records[0, 1] = other
        if world:
            records[1, 0] = 1e6
        scores = torch.empty(trials, dtype=torch.float64)
        attacked = gradients(module, 1.0, rng)
        for trial, (batch,) in enumerate(attacked.batches(records, steps=trials)):
            attacked.backward(module(batch))
            scores[trial] = score(_gradient(attacked))
        attacked.close()
        return scores

    return Game(f"{name}: a canary with a huge gradient", play, "add-or-remove", budget.delta)


def _gradient(attacked: BatchGradients) -> torch.Tensor:
    gradient = attacked.parameters[0].grad
    assert gradient is not None
    return gradient[0].double()

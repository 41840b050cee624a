"""dp-sgd: clip each record's gradient, noise their sum (Abadi et al. 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from noiseproof.errors import SettingError
from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.games import clipped_sum_game
from noiseproof.gradients.method import GradientMethod
from noiseproof.gradients.preconditioner import Preconditioner, Statistics, linear_layer
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.gradients.schedules import Decay, Schedule
from noiseproof.gradients.views import Views
from noiseproof.guarantees import Budget, Claim, Game, accountants, calibration
from noiseproof.guarantees.events import ComposedDpEvent, DpEvent, EventLog, sampled_gaussian
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Card, Randomness
    from noiseproof.scale.checkpoints import Checkpoints

_ASSUMPTIONS = (
    "batches are Poisson samples drawn by the library and kept secret",
    "the number of records is public: sampling rate and the divisor of sums are computed from it",
    "each record's loss depends on that record and public state alone (layers that mix records are refused)",
    "sums of clipped gradients are exact (floating-point error of the sum is not accounted for)",
)
_OF_STATISTICS = "so are the sums of the preconditioner's statistics, over records scaled down to root mean square 1"


@register
@dataclass(frozen=True)
class DpSgd(GradientMethod):
    """DP-SGD: clip each record's gradient, sum, add Gaussian noise once, divide by the expected batch.

    The noise multiplier is calibrated to the budget before training, unless `sigma` is given.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP as the accountant gives it for the steps really taken: a composition of Poisson-sampled Gaussian
    mechanisms, and of the two of `Preconditioner.release` if `precondition` asks for them. Unit: record. Neighbours: as
    the budget says. Assumptions: see `PrivateGradients`. Settings must not have been tuned on the private records. Abadi
    et al. 2016; Mironov, Talwar, Zhang 2019; Koskela et al. 2020 (PLD).
    Costs: some 1.3 to 2 times the time of training without privacy.
    """

    name: ClassVar[str] = "dp-sgd"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, by the moments accountant"

    sigma: float | None = None
    """Noise multiplier at the first step; None calibrates it to the budget."""
    accountant: str = "pld"
    sigma_schedule: Decay = "constant"
    sigma_decay: float = 0.0
    clip_schedule: Decay = "constant"
    clip_decay: float = 0.0
    every: int = 100
    """Steps between changes of a `step` schedule."""
    precondition: float = 0.0
    """The share of the budget (of its mu^2) that goes to statistics of the features, by which a linear network learns
    faster; 0 for none. See `Preconditioner`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.precondition < 1:
            raise SettingError(f"{self.name}'s setting precondition must lie in [0, 1), not {self.precondition}.")
        if self.precondition and self._views() != Views():
            raise SettingError(f"{self.name} cannot take views of records that a preconditioner has transformed.")

    def schedule(self, sigma: float) -> Schedule:
        """The noise multiplier by step, from that start."""
        return Schedule(sigma, self.sigma_schedule, self.sigma_decay, self.every)

    def gradients(
        self, module: nn.Module, *, rate: float, steps: int, budget: Budget, rng: Randomness
    ) -> BatchGradients:
        """Clipped, noised sums at the calibrated noise."""
        return self._private(module, self.calibrated(rate, steps, budget), rate, rng)

    def _private(self, module: nn.Module, sigma: float, rate: float, rng: Randomness) -> PrivateGradients:
        return PrivateGradients(module, clip=self._clip(), sigma=self.schedule(sigma), rate=rate, rng=rng)

    def _clip(self) -> Schedule:
        return Schedule(self.clip, self.clip_schedule, self.clip_decay, self.every)

    def calibrated(self, rate: float, steps: int, budget: Budget) -> float:
        """The noise multiplier at the first step for a training of that many steps."""
        if self.sigma is not None:
            return self.sigma
        terms = {"accountant": self.accountant, "neighbours": budget.neighbours}
        start = 1.0
        if self.sigma_schedule == "constant":
            start = calibration.sigma(budget.epsilon, budget.delta, rate, steps, **terms).sigma
            if not self.precondition:
                return start
            # Gaussians add up in mu^2, or 1 / sigma^2.
            start /= math.sqrt(1 - self.precondition)
        before = self._statistics(budget).events if self.precondition else ()

        def epsilon(sigma: float) -> float:
            event = ComposedDpEvent([*before, planned_event(rate, self.schedule(sigma), steps)])
            return accountants.epsilon(event, budget.delta, **terms).epsilon

        return calibration.calibrate(epsilon, budget.epsilon, start=start)

    def _statistics(self, budget: Budget) -> Statistics:
        return Statistics.within(self.precondition, budget.epsilon, budget.delta, budget.neighbours)

    def _preconditioner(
        self,
        module: nn.Module,
        gradients: BatchGradients,
        dataset: Dataset,
        budget: Budget,
        checkpoints: Checkpoints | None,
    ) -> Preconditioner | None:
        if not self.precondition:
            return None
        linear_layer(module)  # refuses other networks before anything is spent
        if checkpoints is not None:
            raise SettingError(
                "a training with a preconditioner cannot be interrupted, since checkpoints do not hold its statistics and "
                "they must not be released twice; set precondition to 0."
            )
        return Preconditioner.release(
            dataset.features,
            self._statistics(budget),
            gradients.events,
            rng=gradients.randomness[-1],
            ranks=gradients.ranks,
        )

    def _before(self) -> int:
        return 2 if self.precondition else 0

    def _card(self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness) -> Card:
        assert isinstance(gradients, PrivateGradients)
        spent = accountants.epsilon(
            gradients.events.event, budget.delta, accountant=self.accountant, neighbours=budget.neighbours
        )
        assumptions = (*_ASSUMPTIONS, _OF_STATISTICS) if self.precondition else _ASSUMPTIONS
        proven = spent.proof(*assumptions, *rng.assumptions)
        claimed = Claim(
            epsilon=budget.epsilon if self.sigma is None else proven.epsilon,
            delta=budget.delta,
            neighbours=budget.neighbours,
            source="the budget that the noise was calibrated to" if self.sigma is None else "Abadi et al. 2016",
        )
        ran = {
            **self._ran(gradients),
            "sigma": gradients.sigma_at(0),
            "clip": self.clip,
            "batch": gradients.expected_batch,
            **(self._spent_before(budget) if self.precondition else {}),
        }
        return self.card(dataset, budget, rng, claimed=claimed, proven=proven, ran=ran)

    def _spent_before(self, budget: Budget) -> dict[str, Any]:
        """What the statistics have as noise, and would cost alone."""
        noise = self._statistics(budget)
        alone = accountants.epsilon(
            ComposedDpEvent(noise.events), budget.delta, accountant=self.accountant, neighbours=budget.neighbours
        )
        return {"statistics sigmas": [noise.sides, noise.joint], "statistics epsilon": alone.epsilon}

    def game(self, budget: Budget) -> Game:
        """A canary whose gradient has exactly the clipping norm, in one step that sees every record."""
        constant = replace(self, sigma_schedule="constant", clip_schedule="constant")

        def gradients(module: nn.Module, sigma: float, rng: Randomness) -> PrivateGradients:
            return constant._private(module, sigma, 1.0, rng)

        return clipped_sum_game(self.name, gradients, budget)


def planned_event(rate: float, sigma: Schedule, steps: int) -> DpEvent:
    """The event of `steps` Poisson-sampled Gaussian steps with that noise."""
    log = EventLog()
    for step in range(steps):
        log.append(sampled_gaussian(rate, sigma.at(step)))
    return log.event

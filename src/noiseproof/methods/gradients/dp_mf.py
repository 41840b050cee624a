"""dp-mf: descent on gradients whose noise is correlated over the steps, so that no sampling has to be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import torch
from torch import nn

from noiseproof.engine.batch_gradients import BatchGradients, Sampling
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Count, LinearLoss, first_gradient, proven_game, seeded_by
from noiseproof.methods.gradients.descent import LrSchedule, lr_share
from noiseproof.methods.gradients.dp_sgd import ASSUMPTIONS, DpSgd
from noiseproof.privacy import EventLog, Gaussian, accountants, calibration
from noiseproof.privacy.factorization import Banded, Participation, Strategy, Workload
from noiseproof.privacy.strategies import MOST_STEPS, StrategyName, strategy

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.methods.gradients.preconditioner import Preconditioner
    from noiseproof.privacy import Budget, Card, Game, Randomness


@register
@dataclass(frozen=True)
class DpMf(DpSgd):
    """DP-SGD with correlated noise (matrix factorization): proven for records in a fixed order, without any sampling.

    Every record has one place in each epoch; the noise of a step takes back part of the noise of the steps before it, so
    that less of it is left in the weights. With `sampled` each batch is a Poisson sample of its place, which amplifies.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP by `CorrelatedGradients`: one Gaussian mechanism on C G for all steps together, or one
    Poisson-sampled Gaussian mechanism an epoch with `sampled`. Unit: record, or person where the records' persons are
    known: then persons have places in an epoch, and a person's gradient is clipped. Neighbours: as the budget says. Without
    `sampled` nothing rests on secret or random samples: each record takes part at most once an epoch, and that is
    enforced. Settings must not have been tuned on the private records. Denisov et al. 2022; Choquette-Choo et al. 2023;
    Kalinin and Lampert 2024; McMahan et al. 2024.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("dp-mf", records, epsilon=3, epochs=2, batch_size=50)
        >>> release.card.verdict
        'proven'
        >>> release.card.ran["steps"]
        8
    """

    name: ClassVar[str] = "dp-mf"
    claims: ClassVar[str] = "(epsilon, delta) for a record, by the sensitivity of a matrix factorization"

    strategy: StrategyName | Literal["auto"] = "banded"
    """The kind of matrix by which noise is correlated, such as `banded` or `tree`: see `privacy.strategies.strategy`. `auto` is
    dense where that takes no more than 1 GiB of memory, and banded elsewhere."""
    bands: Count = 16
    """Of `toeplitz` and `banded`: how many steps noise is correlated over, at most an epoch's."""
    buffers: Count = 4
    """Of `buffered`."""
    sampled: bool = False
    """Whether batches are Poisson samples, each of one of `bands` places: sampling amplifies, and must be secret."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_schedule != "constant" or self.clip_schedule != "constant":
            raise SettingError("dp-mf has one strategy for all steps; leave the schedules of noise and norm constant.")
        if self.person_sampling != "persons":
            raise SettingError("dp-mf visits persons, not their records one by one; leave person_sampling at persons.")
        if self.sampled and self.strategy not in ("auto", "toeplitz", "banded"):
            raise SettingError(f"sampling is accounted for with banded strategies, not with {self.strategy}.")

    def rate(self, records: int) -> float:
        """The share of a place's records that a batch draws: all of them, unless it is `sampled`."""
        return min(1.0, self.batch_size * self.bands / records) if self.sampled else 1.0

    def steps(self, records: int) -> int:
        """Whole epochs of as many batches as the records fill; with `sampled`, as many steps as `dp-sgd` takes."""
        if self.sampled:
            return max(1, math.ceil(self.epochs * records / self.batch_size))
        return math.ceil(self.epochs) * max(1, round(records / self.batch_size))

    def charged(self, sample_rate: float, steps: int) -> int:
        """One Gaussian mechanism for all steps, or a sampled one a round."""
        return math.ceil(steps / self.bands) if sample_rate < 1 else 1

    def kind(self, steps: int, coordinates: int) -> StrategyName:
        """The kind of strategy for so many steps on a gradient of so many coordinates."""
        if self.strategy != "auto":
            return self.strategy
        # Two vectors of float32 a step.
        small = steps <= MOST_STEPS and 8 * steps * coordinates <= 2**30
        return "dense" if small and not self.sampled else "banded"

    def planned(self, steps: int, coordinates: int = 0) -> Strategy:
        """The strategy of a training of that many steps; it depends on public numbers alone."""
        kind = self.kind(steps, coordinates)
        times = math.ceil(steps / self.bands) if self.sampled else math.ceil(self.epochs)
        apart = min(self.bands, steps) if self.sampled else steps // times
        participation = Participation(steps, times, apart, fixed=not self.sampled)
        momentum = self.momentum if self.optimizer == "sgd" and kind != "tree" else 0.0
        rates = learning_rates(self.lr_schedule, steps) if kind in ("banded", "dense") else None
        return strategy(
            kind,
            participation,
            bands=min(self.bands, participation.separation),
            buffers=self.buffers,
            workload=Workload(momentum, rates),
        )

    def least_noise(self, records: int, budget: Budget) -> DpMf:
        """The same training, sampled, with as many bands as leave the least noise in the weights.

        More bands cancel more of the noise and amplify less. One band is `dp-sgd`, so that by its expected error the
        result is no worse. It depends on public numbers alone.

        Args:
            records: How many there are.
            budget: What the noise is calibrated to.

        Returns:
            The method with its number of bands, a power of two.
        """
        best, least = self, math.inf
        for power in range(max(1, records // self.batch_size).bit_length()):
            tried = replace(self, sampled=True, bands=2**power)
            steps, rate = tried.steps(records), tried.rate(records)
            # Toeplitz strategies are found at once and leave hardly more noise.
            plan = replace(tried, strategy="toeplitz", lr_schedule="constant").planned(steps)
            assert isinstance(plan, Banded)
            workload = Workload(self.momentum if self.optimizer == "sgd" else 0.0)
            # At rate 1 all steps are one mechanism, below each round is one of its own.
            sensitivity = plan.largest_column if rate < 1 else plan.sensitivity
            spread = sensitivity * math.sqrt(plan.variances(workload).mean())
            noise = spread * tried.calibrated(rate, tried.charged(rate, steps), budget)
            best, least = (tried, noise) if noise < least else (best, least)
        return best

    def gradients(
        self, module: nn.Module, *, steps: int, budget: Budget, **sampling: Unpack[Sampling]
    ) -> BatchGradients:
        """Clipped sums with the strategy's noise, at the calibrated noise multiplier."""
        rate = sampling["sample_rate"]
        noise = self.calibrated(rate, self.charged(rate, steps), budget)
        plan = self.planned(steps, sum(one.numel() for one in module.parameters() if one.requires_grad))
        return CorrelatedGradients(module, plan, max_grad_norm=self.max_grad_norm, noise_multiplier=noise, **sampling)

    def _preconditioner(
        self, module: nn.Module, gradients: BatchGradients, dataset: Dataset, budget: Budget, interruptible: bool
    ) -> Preconditioner | None:
        found = super()._preconditioner(module, gradients, dataset, budget, interruptible)
        assert isinstance(gradients, CorrelatedGradients)
        gradients.offset = len(gradients.events)
        return found

    def _card(
        self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness, ran: dict[str, Any]
    ) -> Card:
        assert isinstance(gradients, CorrelatedGradients)
        kind = self.kind(gradients.strategy.participation.steps, gradients.coordinates)
        ran = {**ran, **gradients.facts, "strategy": kind}
        return super()._card(gradients, dataset, budget, rng, ran)

    def assumptions(self) -> tuple[str, ...]:
        """What the proof stands on; without `sampled`, nothing about how batches are drawn."""
        drawn = "batches are Poisson samples of each place's records, drawn by the library and kept secret"
        return (drawn, *ASSUMPTIONS[1:]) if self.sampled else ASSUMPTIONS[1:]

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A canary in a training of four steps that it visits twice: all four releases, weighted as tells most."""
        replace = budget.neighbours == "replace-one"
        sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
        plan = strategy(self.kind(4, 1), Participation(4, 2, 2, fixed=True), bands=2, buffers=1)
        matrix = torch.from_numpy(plan.matrix())
        seen = matrix[:, [0, 2]].sum(1)
        module = LinearLoss()

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            records = torch.zeros(1 + canaries if world or replace else 1, module.weights.in_features)
            records[1:, 0] = 1e3 * (1 if world else -1)
            groups = torch.arange(len(records)).clamp(max=1)
            owned: dict[str, Any] = {"groups": groups, "max_records_per_person": canaries} if canaries > 1 else {}
            attacked = CorrelatedGradients(
                module, plan, max_grad_norm=self.max_grad_norm, noise_multiplier=sigma, sample_rate=1.0, rng=rng
            )
            attacked.expected_batch, attacked.places = 1.0, torch.zeros(int(groups[-1]) + 1, dtype=torch.int64)
            scores = []
            for _ in range(trials):
                # A training of its own, without making the object anew: its events and its noise begin again.
                attacked.events, attacked.steps, attacked._stream = EventLog(), 0, None
                released = []
                for (batch,) in attacked.batches(records, steps=4, **owned):
                    attacked.backward(module(batch) if len(batch) else None)
                    released.append(first_gradient(attacked)[0])
                scores.append(seen @ (matrix @ torch.stack(released)))
            attacked.close()
            return torch.stack(scores)

        spent = accountants.epsilon(Gaussian(1.0, sigma).event, budget.delta, neighbours=budget.neighbours)
        title = "dp-mf: a canary in two of four steps"
        return proven_game(title, play, budget, spent.proof(), gaussian=True, canaries=canaries)


def learning_rates(schedule: LrSchedule, steps: int) -> tuple[float, ...] | None:
    """The share of the learning rate that each step of a schedule has; None where it stays the same."""
    if schedule == "constant":
        return None
    return tuple(lr_share(schedule, step / steps) for step in range(steps))

"""dp-sgd and its variants: clip each record's gradient, noise their sum (Abadi et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import torch
from torch import nn

from noiseproof.engine import PrivateGradients, RecordGradients, clip_weights
from noiseproof.engine.batch_gradients import BatchGradients, Sampling
from noiseproof.engine.persons import PersonSampler, Reduction
from noiseproof.engine.sampling import Decay, Schedule
from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import BelowOne, Count, Positive, Within, claim_of, clipped_sum_game
from noiseproof.methods.gradients.method import GradientMethod, Sampled
from noiseproof.methods.gradients.preconditioner import Preconditioner, Statistics, linear_layer
from noiseproof.privacy import Budget, Game, Gaussian, accountants, calibration
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, EventLog, sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy import Card, Randomness


ASSUMPTIONS = (
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

    The noise multiplier is calibrated to the budget before training, unless `noise_multiplier` is given.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP as the accountant gives it for the steps really taken: a composition of Poisson-sampled Gaussian
    mechanisms, and of the two of `Preconditioner.release` if `precondition` asks for them. Unit: record, or person where
    the records' persons are known: then persons are sampled and a person's gradient is clipped, or, with
    `person_sampling=records`, so many records of each at most are sampled and clipped, accounted for as a mixture of
    Gaussians over their binomial number (Charles et al. 2024; Choquette-Choo et al. 2024). Neighbours: as
    the budget says. Assumptions: see `PrivateGradients`. Settings must not have been tuned on the private records. Abadi
    et al. 2016; Mironov, Talwar, Zhang 2019; Koskela et al. 2020 (PLD).
    Costs: some 1.3 to 2 times the time of training without privacy.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("dp-sgd", records, epsilon=3, epochs=2, batch_size=50)
        >>> release.card.verdict
        'proven'
        >>> release.predict(torch.rand(5, 4)).shape
        torch.Size([5, 2])
    """

    name: ClassVar[str] = "dp-sgd"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record, by the moments accountant"
    bound: ClassVar[bool] = False
    """Whether noisy means are clipped again."""

    max_grad_norm: Positive = 0.1
    """L2 norm that each record's (or person's) gradient is clipped to, at the first step."""
    micro_batch_size: Count = 512
    """Records whose gradients are in memory at once; changes nothing but memory."""
    noise_multiplier: float | None = None
    """Noise multiplier at the first step; None calibrates it to the budget."""
    accountant: str = "pld"
    """What the noise is calibrated and epsilon computed with, by its name in `privacy.accountants`; `pld` is the tightest."""
    sigma_schedule: Decay = "constant"
    """How the noise multiplier changes with the step t: `constant`, `time`, `exponential` or `step`."""
    sigma_decay: float = 0.0
    """k of that schedule. `time` divides by 1 + k t, `exponential` by e^(k t); `step` multiplies by k every `every` steps."""
    clip_schedule: Decay = "constant"
    """The same for the clipping norm."""
    clip_decay: float = 0.0
    """k of the clipping norm's schedule."""
    every: int = 100
    """Steps between changes of a `step` schedule."""
    max_records_per_person: Count = 8
    """Where records have persons: how many of a person's records count at most, chosen uniformly."""
    person_gradient: Reduction = "mean"
    """Whether what is clipped of a person is the mean over these records' gradients, or their sum."""
    person_sampling: Literal["persons", "records"] = "persons"
    """`persons`: each step samples persons, and chooses among their records afresh. `records`: the records that count are
    chosen once, and each step samples, and clips, records. See docs/persons.md for which is better when."""
    precondition: BelowOne = 0.0
    """The share of the budget (of its mu^2) that goes to statistics of the features, by which a linear network learns
    faster; 0 for none. See `Preconditioner`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precondition and self._augmentations():
            raise SettingError(f"{self.name} cannot augment records that a preconditioner has transformed.")

    def schedule(self, noise_multiplier: float) -> Schedule:
        """The noise multiplier by step, from that start."""
        return Schedule(noise_multiplier, self.sigma_schedule, self.sigma_decay, self.every)

    def gradients(
        self, module: nn.Module, *, steps: int, budget: Budget, **sampling: Unpack[Sampling]
    ) -> BatchGradients:
        """Clipped, noised sums at the calibrated noise."""
        group = sampling.get("group_size", 1)
        return self._private(module, self.calibrated(sampling["sample_rate"], steps, budget, group), **sampling)

    def _private(self, module: nn.Module, noise_multiplier: float, **sampling: Unpack[Sampling]) -> PrivateGradients:
        clip = Schedule(self.max_grad_norm, self.clip_schedule, self.clip_decay, self.every)
        noise = self.schedule(noise_multiplier)
        return PrivateGradients(module, max_grad_norm=clip, noise_multiplier=noise, bound=self.bound, **sampling)

    def _sampled(self, dataset: Dataset, rng: Randomness) -> Sampled:
        count, group_size = self._units(dataset)
        if dataset.groups is None:
            return Sampled(dataset, count)
        most = self.max_records_per_person
        if self.person_sampling == "persons":
            names = {"max_records_per_person": most, "reduction": self.person_gradient}
            return Sampled(dataset, count, {"groups": dataset.groups, **names})
        chosen, _ = PersonSampler(dataset.groups, most, rng).records_of(torch.arange(dataset.persons))
        return Sampled(dataset.take(chosen), count, group_size=group_size)

    def _units(self, dataset: Dataset) -> tuple[int, int]:
        """How many records or persons are sampled from, and how many of them may be one person's."""
        if dataset.groups is None or self.person_sampling == "persons":
            return dataset.persons, 1
        # How many records persons have is private, so that the rate is by how many they may have.
        return dataset.persons * self.max_records_per_person, self.max_records_per_person

    def calibrated(self, sample_rate: float, steps: int, budget: Budget, group_size: int = 1) -> float:
        """The noise multiplier at the first step for a training of that many steps."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        terms = {"accountant": self.accountant, "neighbours": budget.neighbours}
        start = 1.0
        if self.sigma_schedule == "constant":
            start = calibration.sigma(
                budget.epsilon,
                budget.delta,
                sample_rate,
                steps,
                accountant=self.accountant,
                neighbours=budget.neighbours,
                group_size=group_size,
            ).sigma
            if not self.precondition:
                return start
            # Gaussians add up in mu^2, or 1 / sigma^2.
            start /= math.sqrt(1 - self.precondition)
        before = self._statistics(budget).events if self.precondition else ()

        def epsilon(noise_multiplier: float) -> float:
            planned = planned_event(sample_rate, self.schedule(noise_multiplier), steps, group_size)
            event = ComposedDpEvent([*before, planned])
            return accountants.epsilon(event, budget.delta, **terms).epsilon

        return calibration.calibrate(epsilon, budget.epsilon, start=start)

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent:
        """The statistics of a preconditioner and all steps, at the calibrated noise."""
        count, group_size = self._units(dataset)
        rate = self.rate(count)
        steps = self.charged(rate, self.steps(count))
        before = self._statistics(budget).events if self.precondition else ()
        noise = self.schedule(self.calibrated(rate, steps, budget, group_size))
        return ComposedDpEvent([*before, planned_event(rate, noise, steps, group_size)])

    def charged(self, sample_rate: float, steps: int) -> int:
        """How many sampled Gaussian mechanisms that many steps are."""
        return steps

    def _statistics(self, budget: Budget) -> Statistics:
        return Statistics.within(self.precondition, budget.epsilon, budget.delta, budget.neighbours)

    def _preconditioner(
        self, module: nn.Module, gradients: BatchGradients, dataset: Dataset, budget: Budget, interruptible: bool
    ) -> Preconditioner | None:
        if not self.precondition:
            return None
        linear_layer(module)  # refuses other networks before anything is spent
        if interruptible:
            raise SettingError(
                "a training with a preconditioner cannot be interrupted, since checkpoints do not hold its statistics and "
                "they must not be released twice; set precondition to 0."
            )
        noise, rng = self._statistics(budget), gradients.randomness[-1]
        return Preconditioner.release(
            dataset.features, noise, gradients.events, rng=rng, ranks=gradients.ranks, weights=dataset.weights
        )

    def _card(
        self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness, ran: dict[str, Any]
    ) -> Card:
        assert isinstance(gradients, PrivateGradients)
        terms = {"accountant": self.accountant, "neighbours": budget.neighbours}
        spent = accountants.epsilon(gradients.events.event, budget.delta, **terms)
        statistics = (_OF_STATISTICS,) if self.precondition else ()
        proven = spent.proof(*self.assumptions(), *statistics, *rng.assumptions)
        calibrated = self.noise_multiplier is None
        source = "the budget that the noise was calibrated to" if calibrated else "Abadi et al. 2016"
        claimed = claim_of(budget if calibrated else replace(budget, epsilon=proven.epsilon), source)
        ran = {
            **ran,
            "noise_multiplier": gradients.sigma_at(0),
            "max_grad_norm": self.max_grad_norm,
            "batch_size": gradients.expected_batch,
        }
        if dataset.unit == "person":
            names = ("max_records_per_person", "person_gradient", "person_sampling")
            ran |= {name: getattr(self, name) for name in names}
        if self.precondition:
            noise = self._statistics(budget)
            alone = accountants.epsilon(ComposedDpEvent(noise.events), budget.delta, **terms)
            ran |= {"statistics sigmas": [noise.sides, noise.joint], "statistics epsilon": alone.epsilon}
        return self.card(dataset, budget, rng, claimed=claimed, proven=proven, ran=ran)

    def assumptions(self) -> tuple[str, ...]:
        """What the proof of the steps stands on."""
        return ASSUMPTIONS

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A canary whose gradient has exactly the clipping norm, in one step that sees every record."""
        constant = replace(self, sigma_schedule="constant", clip_schedule="constant")

        def gradients(module: nn.Module, noise_multiplier: float, rng: Randomness) -> PrivateGradients:
            return constant._private(module, noise_multiplier, sample_rate=1.0, rng=rng)

        return clipped_sum_game(self.name, gradients, budget, canaries=canaries)


def planned_event(sample_rate: float, noise_multiplier: Schedule, steps: int, group_size: int = 1) -> DpEvent:
    """The event of `steps` Poisson-sampled Gaussian steps with that noise, for who has so many records at most."""
    log = EventLog()
    for step in range(steps):
        log.append(sampled_gaussian(sample_rate, noise_multiplier.at(step), group_size=group_size))
    return log.event


@register
@dataclass(frozen=True)
class DpSgdBounded(DpSgd):
    """DP-SGD whose noisy mean is clipped again, so that no update leaves the ball of radius C.

    Formal guarantee
    ----------------
    That of `dp-sgd`: the second clipping is post-processing.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> npf.train("dp-sgd-bounded", records, epsilon=3, epochs=2, batch_size=50).card.verdict
        'proven'
    """

    name: ClassVar[str] = "dp-sgd-bounded"
    bound: ClassVar[bool] = True


@register
@dataclass(frozen=True)
class DpSgdAdaptive(DpSgd):
    """DP-SGD whose clipping norm follows a private quantile of the gradient norms.

    Formal guarantee
    ----------------
    That of `dp-sgd` at the same sigma: the sum and the count of unclipped records are one Gaussian mechanism (see
    `AdaptiveGradients`). Andrew, Thakkar, McMahan, Ramaswamy 2021.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> npf.train("dp-sgd-adaptive", records, epsilon=3, epochs=2, batch_size=50, quantile=0.7).card.verdict
        'proven'
    """

    name: ClassVar[str] = "dp-sgd-adaptive"

    quantile: Within = 0.5
    """The share of records whose gradients are to stay unclipped; `max_grad_norm` is where the clipping norm starts."""
    count_sigma: Positive | None = None
    """Noise on the count of unclipped records; None is a twentieth of the expected batch, or more where sigma asks."""
    speed: Positive = 0.2
    """How fast the clipping norm follows: it moves by exp(-speed * (noisy share - quantile)) a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_schedule != "constant" or self.clip_schedule != "constant":
            raise SettingError(
                "dp-sgd-adaptive sets its own clipping norm at constant noise; leave schedules constant."
            )

    def _private(self, module: nn.Module, noise_multiplier: float, **sampling: Unpack[Sampling]) -> PrivateGradients:
        return AdaptiveGradients(
            module,
            max_grad_norm=self.max_grad_norm,
            noise_multiplier=noise_multiplier,
            quantile=self.quantile,
            count_sigma=self.count_sigma or max(self.batch_size / 20, noise_multiplier),
            speed=self.speed,
            **sampling,
        )


class AdaptiveGradients(PrivateGradients):
    """`PrivateGradients` that moves its clipping norm towards a quantile of the norms, at no cost in epsilon.

    Every step also releases a noisy count of the records whose gradient was not clipped; the norm is then multiplied by
    exp(-speed * (noisy share - quantile)).

    Args:
        module: The network; every trainable parameter gets a private gradient.
        max_grad_norm: The clipping norm of the first step.
        noise_multiplier: sigma, the noise multiplier that a step is accounted with.
        quantile: The share of records whose gradients are to stay unclipped, in (0, 1).
        count_sigma: The standard deviation of the noise on the count, above noise_multiplier / 2; `dp-sgd-adaptive` takes a
            twentieth of the expected batch, or the noise multiplier where that is more.
        speed: How fast the clipping norm follows.
        sampling: `sample_rate`, `rng` and `group_size`, as for `PrivateGradients`.

    Raises:
        UnsupportedError: If the network has layers that mix records.
        SettingError: If a setting is out of range.

    Formal guarantee
    ----------------
    The pair (sum, count) is *one* Gaussian mechanism with noise multiplier sigma: the sum of clipped gradients has
    sensitivity `clip` and noise `z clip`, the sum of (unclipped - 1/2) has sensitivity 1/2 and noise `count_sigma`, and
    `sigma^-2 = z^-2 + (2 count_sigma)^-2`. So the accounted event is that of DP-SGD at sigma; z is a little larger.
    Unit: record; neighbours: add-or-remove (replace-one: both sensitivities double alike, the accountant is told).
    The clipping norm of a step is a function of earlier releases only. Andrew, Thakkar, McMahan, Ramaswamy 2021, Thm 1.

    Examples:
        >>> import torch
        >>> from noiseproof.methods.gradients import AdaptiveGradients
        >>> from noiseproof.privacy import Secure
        >>> network = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        >>> noise = {"noise_multiplier": 1.1, "count_sigma": 5.0}
        >>> engine = AdaptiveGradients(network, max_grad_norm=1.0, **noise, sample_rate=0.5, rng=Secure())
        >>> for x, y in engine.batches(torch.randn(100, 4), torch.randint(2, (100,)), steps=5):
        ...     losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        ...     if engine.backward(losses):
        ...         optimizer.step()
        >>> engine.max_grad_norm == 1.0  # it has moved
        False
        >>> 6 < engine.epsilon(delta=1e-5) < 8
        True
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        quantile: float = 0.5,
        count_sigma: float,
        speed: float = 0.2,
        **sampling: Unpack[Sampling],
    ) -> None:
        super().__init__(module, max_grad_norm=max_grad_norm, noise_multiplier=noise_multiplier, **sampling)
        if not 0 < quantile < 1:
            raise SettingError(f"the quantile must lie in (0, 1), not {quantile}.")
        if 2 * count_sigma <= noise_multiplier:
            raise SettingError(
                f"the count's noise must exceed sigma / 2 = {noise_multiplier / 2:.4g}, not {count_sigma:.4g}; "
                "else no noise on the gradients could keep the promise."
            )
        self.sum_sigma = (noise_multiplier**-2 - (2 * count_sigma) ** -2) ** -0.5
        self._norm = float(max_grad_norm)
        self._quantile, self._count_sigma, self._speed = quantile, count_sigma, speed
        self._count = 0.0

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm of the step that comes next."""
        return self._norm

    def state(self) -> dict[str, Any]:
        """Also the clipping norm that it has come to."""
        return {**super().state(), "norm": self._norm}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state` gave."""
        super().restore(state)
        self._norm = state["norm"]

    def forget_waiting(self) -> None:
        """Drop what an interrupted step has left."""
        super().forget_waiting()
        self._count = 0.0

    def _accumulate(self, gradients: RecordGradients) -> None:
        squared = gradients.squared_norms()
        self._add(gradients.weighted_vector(clip_weights(squared, self._norm, 1 / self.expected_batch)))
        self._count += float((squared <= self._norm**2).sum()) - len(squared) / 2

    def _finish(self) -> torch.Tensor:
        mean = self._noised_mean(self._norm, self.sum_sigma)
        spread = Gaussian(0.5, 2 * self._count_sigma).scale(self._rng, 1)
        counted = mean.new_tensor([self._count], dtype=torch.float64)
        count = self.ranks.noised(counted, lambda part: self._rng.add_gaussian(part, spread))
        share = float(count) / self.expected_batch + 0.5
        self._count = 0.0
        self._norm *= math.exp(-self._speed * (share - self._quantile))
        return mean

"""dp-gan: noise on the discriminator's gradients of real records, through a filter; the generator is post-processing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.losses.critics import LinearCritic, features_for
from noiseproof.methods.losses.games import FilteredGradients, filtered_sum_game
from noiseproof.methods.losses.gan import Gan, GanMethod, Model, NoiseTuning, cosine, count_right, teach
from noiseproof.privacy import Claim, EventLog, Filter, Gaussian, accountants, calibration
from noiseproof.privacy.budget import Budget
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, GaussianDpEvent, sampled_gaussian
from noiseproof.progress import SILENT, Progress, Task
from noiseproof.releases.release import DataRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Card, Game, Proof, Randomness


ASSUMPTIONS = (
    "batches are Poisson samples drawn by the library and kept secret, or all records",
    "the number of records is public: sampling rate, the divisor of sums and the number of rows are computed from it",
    "each record's loss depends on that record and public state alone",
    "sums of clipped gradients are exact (floating-point error of the sum is not accounted for)",
)
Watch = Callable[[int, Gan], None]
"""Called after every discriminator step with their number and the generator (post-processing: it may be looked at)."""

_SHARE = 0.1
"""The epsilon, as a share of the budget's, that the labels' histogram would cost alone; together it costs far less."""


@dataclass
class Run:
    """One training as it goes: the budget, the noise, what happened so far."""

    gan: Gan
    dataset: Dataset
    rng: Randomness
    filter: Filter
    tuning: NoiseTuning
    events: EventLog
    sample_rate: float
    reference: Dataset | None = None
    watch: Watch | None = None
    steps: int = 0
    looks: int = 0
    sigmas: tuple[float, float] = (0.0, 0.0)
    """The noise of the first step and of the last."""

    def spend(self, event: DpEvent) -> None:
        """Pay for an event before its result is released."""
        self.filter.spend(event)
        self.events.append(event)


@register
@dataclass(frozen=True)
class DpGan(GanMethod):
    """DP-GAN: clipped, noised discriminator gradients on real records; the generator is free post-processing.

    By default the discriminator is a critic that is linear in public features (pairs of a table's slots, random Fourier
    features of pictures), looks at all records in a few steps, and answers its best; `model=dense` or `conv` take the
    paper's networks, which need far more budget.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP of the budget for the synthetic records. The labels' noised histogram, every discriminator step
    and, with `ant`, every look are Gaussian mechanisms on sums to which a record adds at most `clip` (or 1), on all
    records or a Poisson sample; an RDP filter at one order fixed beforehand refuses what would cross the budget, so that
    schedules may follow what was released. Generated records enter no sum that is paid for. Unit: record. Neighbours: as
    the budget says. The card's epsilon comes from the steps taken. Feldman and Zrnic 2021; Lecuyer 2021; Xie et al. 2018.
    Costs: the discriminator's step at most twice the time of one without privacy.
    """

    name: ClassVar[str] = "dp-gan"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, by an RDP filter"

    steps: int | None = None
    """Discriminator steps that the noise is calibrated to; None is 3 for features and 400 for networks."""
    sample_rate: float | None = None
    """Share of the records in a step's Poisson sample; None is all for features and a twentieth for networks."""
    generator_steps: int | None = None
    """Generator updates per discriminator step: free. None is 300 for features and 1 for networks."""
    max_grad_norm: float = 1.0
    noise_multiplier: float | None = None
    """Noise multiplier at the first step; None calibrates it to the budget at constant noise."""
    lr: float | None = None
    """None is 4e-3 for features and 5e-4 for networks."""
    generated: int = 500
    """Records that the generator makes for each of its updates."""
    width: int = 1000
    """Pairs of random Fourier features, for what is no table."""
    micro_batch_size: int = 512
    score_sigma: float | None = None
    """Noise on `ant`'s count of real records that a classifier of synthetic ones labels right; None is 2% of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive(
            "steps",
            "sample_rate",
            "generator_steps",
            "max_grad_norm",
            "noise_multiplier",
            "lr",
            "generated",
            "width",
            "micro_batch_size",
        )
        self._positive("score_sigma")
        if self.generated < 2:
            raise SettingError(f"{self.name} must generate 2 records or more at a time, not {self.generated}.")
        if self.sample_rate is not None:
            sampled_gaussian(self.sample_rate, 1.0)  # refuses a rate above 1

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        reference: Dataset | None = None,
        watch: Watch | None = None,
    ) -> DataRelease:
        """Train within the budget and release `rows` synthetic records; `model` names the networks, not `network`.

        `reference` holds public records of the same shape for `ant`'s score, which then costs nothing.
        """
        model = self._network(dataset.public, "features")
        gan = self._start(dataset, model, rng, relaxed=None if model == "features" else 0.5)
        run = self._prepare(gan, dataset, budget, rng, model, reference, watch)
        self._release_shares(run, budget)
        total = self._steps(model)
        with gan.seeded(), progress.task(self.name, total) as task:
            self._train(run, model, task)
        return self._release(gan, dataset, self._card(run, model, budget))

    def _steps(self, model: Model) -> int:
        return self.steps or (3 if model == "features" else 400)

    def _updates(self, model: Model) -> int:
        return self.generator_steps or (300 if model == "features" else 1)

    def _rate(self, model: Model) -> float:
        return self.sample_rate or (1.0 if model == "features" else 0.05)

    def _prepare(
        self,
        gan: Gan,
        dataset: Dataset,
        budget: Budget,
        rng: Randomness,
        model: Model,
        reference: Dataset | None,
        watch: Watch | None,
    ) -> Run:
        rate = self._rate(model)
        labels = GaussianDpEvent(self._label_sigma(budget))
        steps = self._steps(model)

        def planned(noise_multiplier: float) -> DpEvent:
            return ComposedDpEvent([labels, sampled_gaussian(rate, noise_multiplier, steps)])

        def epsilon(noise_multiplier: float) -> float:
            return accountants.epsilon(
                planned(noise_multiplier), budget.delta, accountant="rdp", neighbours=budget.neighbours
            ).epsilon

        sigma = self.noise_multiplier or calibration.calibrate(epsilon, budget.epsilon, low=1e-2)
        filter = Filter(budget, "rdp", planned=planned(sigma))
        while self.noise_multiplier is None and not filter.fits(planned(sigma)):
            # The filter knows fewer orders than the accountant: by a hair, what is planned may not fit.
            sigma *= 1.002
            filter = Filter(budget, "rdp", planned=planned(sigma))
        return Run(gan, dataset, rng, filter, self._noise(sigma), EventLog(), rate, reference, watch)

    def _label_sigma(self, budget: Budget) -> float:
        return calibration.sigma(
            _SHARE * budget.epsilon, budget.delta, 1.0, 1, accountant="gdp", neighbours=budget.neighbours
        ).sigma

    def _release_shares(self, run: Run, budget: Budget) -> None:
        """Release the labels' noised histogram; what is generated follows it."""
        sigma = self._label_sigma(budget)
        counts = torch.bincount(run.dataset.labels, minlength=run.gan.classes).double()
        run.spend(GaussianDpEvent(sigma))
        noised = Gaussian(1.0, sigma).release(counts, run.rng).clamp_min(0.5)
        run.gan.shares = noised / noised.sum()

    def _train(self, run: Run, model: Model, task: Task) -> None:
        if model == "features":
            self._train_critic(run, task)
        else:
            self._train_networks(run, model, task)

    def _gradients(self, run: Run, module: nn.Module) -> FilteredGradients:
        gradients = FilteredGradients(
            module, run.filter, run.tuning, max_grad_norm=self.max_grad_norm, sample_rate=run.sample_rate, rng=run.rng
        )
        gradients.events = run.events
        return gradients

    def _batches(self, run: Run, gradients: FilteredGradients, limit: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Pieces of the real batches of every step that is wanted and fits into the budget."""
        records = run.gan.coding.encode(run.dataset.features).to(run.gan.device)
        labels = run.dataset.labels.to(run.gan.device)
        while gradients.steps < limit and gradients.affordable:
            yield from gradients.batches(records, labels, steps=1, micro_batch_size=self.micro_batch_size)

    def _train_critic(self, run: Run, task: Task) -> None:
        gan = run.gan
        critic = LinearCritic(features_for(gan.coding, width=self.width), gan.classes).to(gan.device)
        gradients = self._gradients(run, critic)
        gradients.expected_batch = run.sample_rate * len(run.dataset)
        training = CriticTraining(gan, critic, self.lr or 4e-3, self.generated)
        limit, updates = self._steps("features"), self._updates("features")
        try:
            for records, labels in self._batches(run, gradients, limit):
                sigma = run.tuning.sigma
                losses = -critic(records, labels) if len(labels) else None
                if not gradients.backward(losses):
                    continue
                gradient = critic.weights.weight.grad
                assert gradient is not None
                # Features have norm 1: a smaller clipping norm shrinks all of them alike, which is undone.
                training.real.add(-gradient / min(1.0, self.max_grad_norm), 1 / sigma**2)
                critic_loss, loss = training.update(updates, limit * updates)
                self._after_step(run, sigma, task, critic_loss, loss)
        finally:
            gradients.close()
        # Updates are free: those that the budget's end kept from happening are made up for.
        if training.done < limit * updates and run.steps:
            training.update(limit * updates - training.done, limit * updates)

    def _train_networks(self, run: Run, model: Model, task: Task) -> None:
        gan = run.gan
        discriminator = gan.discriminator(model)
        gradients = self._gradients(run, discriminator)
        gradients.expected_batch = run.sample_rate * len(run.dataset)
        rate = self.lr or 5e-4
        judge = torch.optim.Adam(discriminator.parameters(), lr=rate, betas=(0.5, 0.999))
        maker = torch.optim.Adam(gan.generator.parameters(), lr=rate, betas=(0.5, 0.999))
        try:
            for records, labels in self._batches(run, gradients, self._steps(model)):
                sigma = run.tuning.sigma
                judge.zero_grad(set_to_none=True)
                losses = functional.softplus(-discriminator(records, labels)) if len(labels) else None
                if not gradients.backward(losses):
                    continue
                with gradients.paused():
                    # Backward passes add to what stands in `.grad`: the generated half goes on top of the noised one.
                    judged = judge_generated(gan, discriminator, self.generated)
                    judge.step()
                    for _ in range(self._updates(model)):
                        loss = fool(gan, discriminator, maker, self.generated)
                self._after_step(run, sigma, task, judged, loss)
        finally:
            gradients.close()

    def _after_step(self, run: Run, noise_multiplier: float, task: Task, judged: float, fooled: float) -> None:
        run.steps += 1
        run.sigmas = (run.sigmas[0] or noise_multiplier, noise_multiplier)
        if run.watch is not None:
            run.watch(run.steps, run.gan)
        run.tuning.advance(self._look(run) if run.tuning.looks else None)
        task.advance(discriminator=judged, generator=fooled, spent=f"{run.filter.spent.epsilon:.3g}")

    def _look(self, run: Run) -> float | None:
        """ANT's score: how many records a classifier of synthetic ones labels right; None if it cannot be paid for."""
        labels = teach(run.gan.sample(2000, run.dataset.name))
        run.gan.generator.train()
        if run.reference is not None:
            return count_right(labels, run.reference) / len(run.reference)
        sigma = self.score_sigma or max(1.0, 0.02 * len(run.dataset))
        event = GaussianDpEvent(sigma)
        if not run.filter.fits(event):
            return None
        run.spend(event)
        run.looks += 1
        right = torch.tensor([float(count_right(labels, run.dataset))], dtype=torch.float64)
        return float(Gaussian(1.0, sigma).release(right, run.rng)) / len(run.dataset)

    def _proof(self, run: Run, budget: Budget) -> Proof:
        """The epsilon of what ran: by the filter where the noise followed releases, else by the tightest accountant."""
        if self.tuning == "ant":
            spent = run.filter.spent
        else:
            spent = accountants.epsilon(run.events.event, budget.delta, neighbours=budget.neighbours)
            if spent.epsilon > run.filter.spent.epsilon:
                spent = run.filter.spent
        return spent.proof(*ASSUMPTIONS, *run.rng.assumptions)

    def _card(self, run: Run, model: Model, budget: Budget) -> Card:
        claimed = Claim(
            epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="the budget of the filter"
        )
        notes = () if run.steps else ("The budget did not cover a single step: the records are noise.",)
        return self.card(
            run.dataset,
            budget,
            run.rng,
            claimed=claimed,
            proven=self._proof(run, budget),
            ran=self._ran(run, model, budget),
            notes=notes,
        )

    def _ran(self, run: Run, model: Model, budget: Budget) -> dict[str, Any]:
        return {
            "steps": run.steps,
            "sample_rate": run.sample_rate,
            "sampler": "all records" if run.sample_rate == 1 else "poisson",
            "noise_multiplier": run.sigmas[0],
            "last sigma": run.sigmas[1],
            "max_grad_norm": self.max_grad_norm,
            "tuning": self.tuning,
            "looks": run.looks,
            "label sigma": self._label_sigma(budget),
            "filter order": run.filter.order,
            "spent by the filter": run.filter.spent.epsilon,
            "model": model,
        }

    def game(self, budget: Budget) -> Game:
        """A canary at the clipping norm in one filtered step that sees every record."""
        return filtered_sum_game(self.name, self.max_grad_norm, budget)


class RealSide:
    """The mean of the real records' features as known so far: noised releases, weighted by their exactness."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._weight = 0.0

    def add(self, noised: torch.Tensor, weight: float) -> None:
        """Take in a release whose noise has variance 1 / weight."""
        part = weight * noised.detach()
        self._sum = part if self._sum is None else self._sum + part
        self._weight += weight

    @property
    def mean(self) -> torch.Tensor:
        """The best estimate."""
        assert self._sum is not None
        return self._sum / self._weight


class CriticTraining:
    """A generator's updates against a linear critic that always answers its best: free of charge."""

    def __init__(self, gan: Gan, critic: LinearCritic, lr: float, generated: int) -> None:
        self.real = RealSide()
        self.done = 0
        self._gan, self._critic = gan, critic
        self._rate, self._generated = lr, generated
        self._maker = torch.optim.Adam(gan.generator.parameters(), lr=lr)

    def update(self, updates: int, total: int) -> tuple[float, float]:
        """Update the generator so many times; the critic's loss and the generator's, at the last of them."""
        gan, real = self._gan, self.real.mean
        judged = made = 0.0
        for _ in range(updates):
            labels = gan.labels(self._generated)
            means = self._critic.means(gan.generate(labels), labels)
            best = (real - means).detach()
            loss = -(best * means).sum()
            self._maker.zero_grad(set_to_none=True)
            loss.backward()
            cosine(self._maker, self._rate, self.done, total)
            self._maker.step()
            self.done += 1
            judged, made = -float(best.square().sum()), float(loss.detach())
        with torch.no_grad():
            self._critic.weights.weight.copy_(best)
        return judged, made


def judge_generated(gan: Gan, discriminator: nn.Module, count: int) -> float:
    """The discriminator's loss on generated records, its gradient left in `.grad`."""
    labels = gan.labels(count)
    loss = functional.softplus(discriminator(gan.generate(labels).detach(), labels)).mean()
    loss.backward()
    return float(loss.detach())


def fool(gan: Gan, discriminator: nn.Module, maker: torch.optim.Optimizer, count: int) -> float:
    """One update of the generator towards what the discriminator takes for real; its loss."""
    labels = gan.labels(count)
    loss = functional.softplus(-discriminator(gan.generate(labels), labels)).mean()
    maker.zero_grad(set_to_none=True)
    loss.backward()
    maker.step()
    return float(loss.detach())

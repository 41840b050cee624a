"""dp-gan: noise on the discriminator's gradients of real records, through a filter; the generator is post-processing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from noiseproof.data import Dataset, Public
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive, Rate, claim_of, crowded, each_trial, proven_game
from noiseproof.methods.losses.critics import Fourier, LinearCritic, features_for
from noiseproof.methods.losses.filtered import CriticTraining, FilteredGradients, Run, StepCallback
from noiseproof.methods.losses.gan import (
    Gan,
    GanMethod,
    Model,
    adam,
    as_classes,
    backward_generated,
    count_correct,
    fit_classifier,
    update_generator,
)
from noiseproof.networks import Network
from noiseproof.privacy import (
    Filter,
    Game,
    Gaussian,
    Proof,
    Randomness,
    Reproducible,
    accountants,
    calibration,
)
from noiseproof.privacy.budget import Budget
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, GaussianDpEvent, sampled_gaussian
from noiseproof.progress import SILENT, Progress, Task
from noiseproof.releases.release import DataRelease

ASSUMPTIONS = (
    "batches are Poisson samples drawn by the library and kept secret, or all records",
    "the number of records is public: sampling rate, the divisor of sums and the number of rows are computed from it",
    "each record's loss depends on that record and public state alone",
    "sums of clipped gradients are exact (floating-point error of the sum is not accounted for)",
)

_SHARE = 0.1
"""The epsilon, as a share of the budget's, that the labels' histogram would cost alone; together it costs far less."""


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
    schedules may follow what was released. Generated records enter no sum that is paid for. Unit: record, or person: a
    person then adds the mean over their records, clipped, and counts for 1 in histogram and looks. Neighbours: as
    the budget says. The card's epsilon comes from the steps taken; with `ant`, whose steps follow noised scores, it is
    the budget's. Feldman and Zrnic 2021; Lecuyer 2021; Xie et al. 2018.
    Costs: the discriminator's step at most twice the time of one without privacy.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("dp-gan", records, epsilon=3, rows=100, generator_steps=5)
        >>> release.card.verdict
        'proven'
        >>> release.dataset.features.shape
        torch.Size([100, 4])
    """

    name: ClassVar[str] = "dp-gan"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record, by an RDP filter"
    linear: ClassVar[Mapping[str, Any]] = {"steps": 3, "sample_rate": 1.0, "generator_steps": 300, "lr": 4e-3}
    """What settings that are None stand for with a critic linear in features."""
    networks: ClassVar[Mapping[str, Any]] = {"steps": 400, "sample_rate": 0.05, "generator_steps": 1, "lr": 5e-4}
    """The same with networks."""

    steps: Count | None = None
    """Discriminator steps that the noise is calibrated to; None is 3 for features and 400 for networks."""
    sample_rate: Rate | None = None
    """Share of the records in a step's Poisson sample; None is all for features and a twentieth for networks."""
    generator_steps: Count | None = None
    """Generator updates per discriminator step: free. None is 300 for features and 1 for networks."""
    max_grad_norm: Positive = 1.0
    """`clip`: the L2 norm that the discriminator's gradient of each record, or person, is clipped to."""
    noise_multiplier: Positive | None = None
    """Noise multiplier at the first step; None calibrates it to the budget at constant noise."""
    lr: Positive | None = None
    """None is 4e-3 for features and 5e-4 for networks."""
    generated: Annotated[int, Ge(2)] = 500
    """Records that the generator makes for each of its updates."""
    width: Count = 1000
    """Pairs of random Fourier features, for what is no table."""
    micro_batch_size: Count = 512
    """Records whose gradients are in memory at once; changes nothing but memory."""
    max_records_per_person: Count = 64
    """Where records have persons: how many of a person's records a step takes at most; their mean is what is clipped."""
    score_sigma: Positive | None = None
    """Noise on `ant`'s count of real records that a classifier of synthetic ones labels right; None is 2% of them."""

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        reference: Dataset | None = None,
        callback: StepCallback | None = None,
    ) -> DataRelease:
        """Train within the budget and release `rows` synthetic records; `model` names the networks, not `network`.

        `reference` holds public records of the same shape for `ant`'s score, which then costs nothing.
        """
        given, dataset = dataset, as_classes(dataset)
        model = self._model(dataset.public, "features")
        gan = self._start(dataset, model, rng, relaxed=None if model == "features" else 0.5)
        run = self._prepare(gan, dataset, budget, rng, model)
        run.reference, run.callback = reference, callback
        noised = self._count_labels(run, budget).clamp_min(0.5)
        gan.shares = noised / noised.sum()
        with gan.seeded(), progress.task(self.name, run.limit) as task:
            self._train(run, task)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=claim_of(budget, "the budget of the filter"),
            proven=self._proof(run, budget),
            ran=self._ran(run, budget),
            notes=() if run.steps else ("The budget did not cover a single step: the records are noise.",),
        )
        return self._release(gan, given, card).logged(run.events.runs)

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent | None:
        """The labels' histogram and all steps; None where the noise changes on the way."""
        if self.tuning != "constant":
            return None
        return self._planned(self._model(as_classes(dataset).public, "features"), budget)[0]

    def _usual(self, model: Model, *names: str) -> list[Any]:
        usual = self.linear if model == "features" else self.networks
        return [getattr(self, name) or usual[name] for name in names]

    def _planned(self, model: Model, budget: Budget) -> tuple[DpEvent, float, Filter]:
        """What a run at constant noise does to the records, the noise multiplier, and the filter that it fits into."""
        steps, rate = self._usual(model, "steps", "sample_rate")
        labels = GaussianDpEvent(self._label_sigma(budget))

        def planned(noise_multiplier: float) -> DpEvent:
            return ComposedDpEvent([labels, sampled_gaussian(rate, noise_multiplier, steps)])

        def epsilon(noise_multiplier: float) -> float:
            event = planned(noise_multiplier)
            return accountants.epsilon(event, budget.delta, accountant="rdp", neighbours=budget.neighbours).epsilon

        sigma = self.noise_multiplier or calibration.calibrate(epsilon, budget.epsilon, low=1e-2)
        filter = Filter(budget, "rdp", planned=planned(sigma))
        while self.noise_multiplier is None and not filter.fits(planned(sigma)):
            # The filter knows fewer orders than the accountant: by a hair, what is planned may not fit.
            sigma *= 1.002
            filter = Filter(budget, "rdp", planned=planned(sigma))
        return planned(sigma), sigma, filter

    def _prepare(self, gan: Gan, dataset: Dataset, budget: Budget, rng: Randomness, model: Model) -> Run:
        steps, rate, updates, lr = self._usual(model, "steps", "sample_rate", "generator_steps", "lr")
        _, sigma, filter = self._planned(model, budget)
        return Run(gan, dataset, rng, model, steps, updates, lr, rate, filter, self._noise(sigma))

    def _label_sigma(self, budget: Budget) -> float:
        epsilon, delta, near = _SHARE * budget.epsilon, budget.delta, budget.neighbours
        return calibration.sigma(epsilon, delta, 1.0, 1, accountant="gdp", neighbours=near).sigma

    def _count_labels(self, run: Run, budget: Budget) -> torch.Tensor:
        """Release the labels' noised histogram; what is generated follows it."""
        sigma = self._label_sigma(budget)
        counts = torch.bincount(run.dataset.labels, run.dataset.weights, minlength=run.gan.classes).double()
        run.spend(GaussianDpEvent(sigma))
        return Gaussian(1.0, sigma).release(counts, run.rng)

    def _train(self, run: Run, task: Task) -> None:
        if run.model == "features":
            self._train_critic(run, task)
        else:
            self._train_networks(run, task)

    def _batches(self, run: Run, gradients: FilteredGradients) -> Iterator[tuple[torch.Tensor, ...]]:
        """Pieces of the real batches of every step that is wanted and fits into the budget."""
        gradients.events, gradients.expected_batch = run.events, run.expected_batch
        records = run.gan.coding.encode(run.dataset.features).to(run.gan.device)
        labels = run.dataset.labels.to(run.gan.device)
        try:
            while gradients.steps < run.limit and gradients.affordable:
                yield from gradients.batches(
                    records,
                    labels,
                    steps=1,
                    micro_batch_size=self.micro_batch_size,
                    groups=run.dataset.groups,
                    max_records_per_person=self.max_records_per_person,
                )
        finally:
            gradients.close()

    def _gradients(self, run: Run, module: nn.Module) -> FilteredGradients:
        return FilteredGradients(
            module, run.filter, run.tuning, max_grad_norm=self.max_grad_norm, sample_rate=run.sample_rate, rng=run.rng
        )

    def _critic(self, gan: Gan) -> LinearCritic:
        return LinearCritic(features_for(gan.coding, width=self.width), gan.classes).to(gan.device)

    def _looks(self, run: Run, critic: LinearCritic) -> Iterator[torch.Tensor]:
        """Each step's noised mean of the real records' features, by class."""
        gradients = self._gradients(run, critic)
        for records, labels in self._batches(run, gradients):
            losses = -critic(records, labels) if len(labels) else None
            if gradients.backward(losses):
                gradient = critic.weights.weight.grad
                assert gradient is not None
                # Features have norm 1: a smaller clipping norm shrinks all of them alike, which is undone.
                yield -gradient / min(1.0, self.max_grad_norm)

    def _train_critic(self, run: Run, task: Task) -> None:
        critic = self._critic(run.gan)
        training = CriticTraining(run, critic, self.generated)
        for noised in self._looks(run, critic):
            sigma = run.tuning.sigma
            training.add(noised, 1 / sigma**2)
            self._after_step(run, sigma, task, *training.update(run.updates))
        training.finish()

    def _train_networks(self, run: Run, task: Task) -> None:
        gan, discriminator = run.gan, run.gan.discriminator(run.model)
        gradients = self._gradients(run, discriminator)
        optimizer, generator_optimizer = (adam(module, run.lr) for module in (discriminator, gan.generator))
        for records, labels in self._batches(run, gradients):
            sigma = run.tuning.sigma
            optimizer.zero_grad(set_to_none=True)
            losses = functional.softplus(-discriminator(records, labels)) if len(labels) else None
            if not gradients.backward(losses):
                continue
            with gradients.paused():
                # Backward passes add to what stands in `.grad`: the generated half goes on top of the noised one.
                found = backward_generated(gan, discriminator, self.generated)
                optimizer.step()
                for _ in range(run.updates):
                    loss = update_generator(gan, discriminator, generator_optimizer, self.generated)
            self._after_step(run, sigma, task, found, loss)

    def _after_step(self, run: Run, sigma: float, task: Task, discriminator: float, generator: float) -> None:
        run.steps += 1
        run.sigmas = (run.sigmas[0] or sigma, sigma)
        if run.callback is not None:
            run.callback(run.steps, run.gan)
        run.tuning.advance(self._score(run) if run.tuning.wants_score else None)
        task.advance(discriminator=discriminator, generator=generator, spent=f"{run.filter.spent.epsilon:.3g}")

    def _score(self, run: Run) -> float | None:
        """ANT's: how many records a classifier of synthetic ones labels right; None if it cannot be paid for."""
        classifier = fit_classifier(run.gan.sample(2000, run.dataset.name))
        if run.reference is not None:
            return count_correct(classifier, run.reference) / len(run.reference)
        persons = run.dataset.persons
        sigma = self.score_sigma or max(1.0, 0.02 * persons)
        event = GaussianDpEvent(sigma)
        if not run.filter.fits(event):
            return None
        run.spend(event)
        right = torch.tensor([float(count_correct(classifier, run.dataset))], dtype=torch.float64)
        return float(Gaussian(1.0, sigma).release(right, run.rng)) / persons

    def _proof(self, run: Run, budget: Budget) -> Proof:
        """The epsilon of the steps, by the tightest accountant; where the noise followed releases, the filter's budget.

        What a filter has spent when training ends is no guarantee then: it depends on what was released.
        """
        assumptions = (*ASSUMPTIONS, *run.rng.assumptions)
        if self.tuning == "ant":
            return Proof(epsilon=budget.epsilon, delta=budget.delta, accountant="rdp filter", assumptions=assumptions)
        tight = accountants.epsilon(run.events.event, budget.delta, neighbours=budget.neighbours)
        return min(tight, run.filter.spent, key=lambda spent: spent.epsilon).proof(*assumptions)

    def _ran(self, run: Run, budget: Budget) -> dict[str, Any]:
        return {
            "steps": run.steps,
            "sample_rate": run.sample_rate,
            "sampler": "all records" if run.sample_rate == 1 else "poisson",
            "noise_multiplier": run.sigmas[0],
            "last sigma": run.sigmas[1],
            "max_grad_norm": self.max_grad_norm,
            "tuning": self.tuning,
            "label sigma": self._label_sigma(budget),
            "filter order": run.filter.order,
            "model": run.model,
        }

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A whole training with a canary of a class of its own: the labels' noised histogram and all noised steps.

        The generator and its records are made of these, so that none of them tells more. Two others have opposite features,
        whose sums are 0; under replace-one the canary's features turn to their opposite.
        """
        near, public = budget.neighbours, Public((8,), ("others", "canary"))
        method = replace(self, model="features", width=1, rows=None)
        gan = Gan(public, "features", latent=1, seed=0)
        critic = method._critic(gan)
        assert isinstance(critic.features, Fourier)
        # Features are the cosine and sine of one angle: 0 of an empty record, and half a turn of the other.
        slopes = critic.features.directions[:, 0].clamp_min(0)
        opposite = torch.stack([torch.zeros(8), slopes * (math.pi / slopes.square().sum())])
        features, labels = torch.cat([opposite, opposite.flip(0)]), torch.tensor([0, 0, 1, 1])
        everyone = Dataset("game", features, labels, public)
        without = [0, 1] if near == "add-or-remove" else [0, 1, 3]
        worlds = [
            crowded(everyone.take(torch.tensor(taken)), 2, canaries if len(taken) > 2 else 1)
            for taken in (without, [0, 1, 2])
        ]
        label_sigma = method._label_sigma(budget)
        planned = method._prepare(gan, worlds[1], budget, Reproducible(0), "features")
        method = replace(method, noise_multiplier=planned.tuning.sigma)

        def train(world: int, rng: Randomness) -> tuple[float, Run]:
            run = method._prepare(gan, worlds[world], budget, rng, "features")
            # The likelihood ratio, but for a constant: what the canary would add, weighed by how exact each release is.
            score = float(method._count_labels(run, budget)[1]) / label_sigma**2
            for look in method._looks(run, critic):
                sigma = run.tuning.sigma
                score += method._evidence(look, critic, features[2]) * run.expected_batch / sigma**2
                method._after_step(run, sigma, Task(), 0.0, 0.0)
            return score, run

        proven = self._proof(train(1, Reproducible(0))[1], budget)
        return proven_game(
            f"{self.name}: a canary of its own class, in a whole training",
            each_trial(lambda world, rng: train(world, rng)[0]),
            budget,
            proven,
            gaussian=planned.sample_rate == 1 and self.tuning != "ant",
            canaries=canaries,
        )

    def _evidence(self, look: torch.Tensor, critic: LinearCritic, canary: torch.Tensor) -> float:
        """What a look says of the canary, in units of what it adds."""
        return float(look[1].double() @ critic.features(canary[None])[0].double())

"""What all methods at the losses share: a generator conditional on the label, its settings, and noise that changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data.dataset import Dataset, Public
from noiseproof.engine.sampling import Decay, Schedule
from noiseproof.errors import SettingError
from noiseproof.methods import Method
from noiseproof.methods.common import Count, Finite, NonNegative, initial_seed
from noiseproof.methods.losses.coding import Coding, check_records
from noiseproof.networks.generators import (
    ConvDiscriminator,
    ConvGenerator,
    DenseDiscriminator,
    DenseGenerator,
    Generator,
    TableGenerator,
)
from noiseproof.privacy import Card, Randomness
from noiseproof.privacy.card import Place
from noiseproof.releases.release import DataRelease
from noiseproof.tensors import default_device, seeded, seeded_generator

Tuning = Literal["constant", "time", "exp", "step", "ant"]
Model = Literal["auto", "features", "dense", "conv"]

_LEAST_SIDE = 16
_CHUNK = 1000


class Gan:
    """What generates: all of it is public or post-processing of what was paid for."""

    def __init__(self, public: Public, model: Model, *, latent: int, seed: int, relaxed: float | None = None) -> None:
        self.coding = Coding(public)
        self.public = public
        self.classes = len(public.classes)
        self.shares = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        """How often each label is generated."""
        self.device = default_device()
        self._seed = seed
        self._random = seeded_generator(seed)
        with seeded(seed):
            self.generator: Generator = self._build(model, latent, relaxed).to(self.device)

    def _build(self, model: Model, latent: int, relaxed: float | None) -> Generator:
        shape = self.coding.shape
        if self.coding.table:
            return TableGenerator(self.coding.sizes, self.classes, latent, temperature=relaxed)
        if model != "dense" and suits_convolutions(shape):
            return ConvGenerator(shape, self.classes, latent)
        return DenseGenerator(shape, self.classes, latent)

    def discriminator(self, model: Model) -> nn.Module:
        """The network that judges records: convolutions or dense layers."""
        kind = ConvDiscriminator if model == "conv" else DenseDiscriminator
        with seeded(self._seed + 1):
            return kind(self.coding.shape, self.classes).to(self.device)

    def labels(self, count: int) -> torch.Tensor:
        """Labels in their shares, as evenly as whole numbers allow."""
        start = torch.rand((), generator=self._random, dtype=torch.float64)
        places = (torch.arange(count, dtype=torch.float64) + start) / count
        return torch.searchsorted(self.shares.cumsum(0), places).clamp(max=self.classes - 1).to(self.device)

    def generate(self, labels: torch.Tensor) -> torch.Tensor:
        """Coded records of those labels, through which gradients flow."""
        noise = torch.randn(len(labels), self.generator.latent, generator=self._random).to(self.device)
        return self.generator(noise, labels)

    def numbers(self, labels: torch.Tensor) -> torch.Tensor:
        """A number drawn evenly within the part of the target's range that each label stands for."""
        return (labels + torch.rand(len(labels), generator=self._random)) / BINS

    def sample(self, rows: int, name: str) -> Dataset:
        """Synthetic records in the code of the private ones, in random order."""
        self.generator.eval()
        labels = self.labels(rows)[torch.randperm(rows, generator=self._random).to(self.device)]
        with torch.no_grad(), self.seeded():
            parts = [self.coding.decode(self.generate(chunk).cpu(), self._random) for chunk in labels.split(_CHUNK)]
        self.generator.train()
        features = torch.cat(parts) if parts else torch.zeros(0, *self.public.shape)
        return Dataset(f"synthetic {name}", features.float(), labels.cpu(), self.public)

    def seeded(self) -> AbstractContextManager[None]:
        """Draws of torch's own generator (Gumbel noise) come from this object's seed while it lasts."""
        number = int(torch.randint(2**31, (1,), generator=self._random))
        # With a seed of a secure run's length the number only says which of the seed's streams is meant.
        return seeded(self._seed << 32 | number if self._seed >> 63 else number, self.device)


BINS = 10
"""Equal parts of a numeric target's public range, each of which a generator takes for a class."""


def as_classes(dataset: Dataset) -> Dataset:
    """The records with a numeric target's part of its range for a class; others as they are.

    Formal guarantee
    ----------------
    None is needed: each record is coded alone, by public bounds.
    """
    if dataset.public.task == "classification":
        return dataset
    labels = (dataset.labels * BINS).long().clamp(0, BINS - 1)
    names = tuple(f"part {place + 1} of {BINS}" for place in range(BINS))
    public = replace(dataset.public, task="classification", target_bounds=None, classes=names)
    return replace(dataset, labels=labels, public=public)


def suits_convolutions(shape: tuple[int, ...]) -> bool:
    """Whether convolutions pay: pictures of at least 16 x 16."""
    return len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE


@dataclass(frozen=True)
class Synthesizer(Method):
    """A method whose release are synthetic records."""

    takes_network: ClassVar[bool] = False
    place: ClassVar[Place] = "losses"

    rows: Count | None = None
    """Synthetic records to release; None as many as there are private records, or persons (a number that is public)."""


@dataclass(frozen=True)
class GanMethod(Synthesizer):
    """A generator trained against a discriminator that sees private records; what leaves are generated records."""

    models: ClassVar[tuple[Model, ...]] = get_args(Model)
    """The values that `model` may have."""

    model: Model = "auto"
    """`features`: a critic linear in public features; `dense` or `conv`: the paper's pairs of networks."""
    tuning: Tuning = "constant"
    """How the noise changes: constant, time, exp, step or ant."""
    decay: NonNegative | None = None
    """The schedule's k; None the paper's best for MNIST."""
    every: Count = 100
    """Iterations between changes of `step`, or between scores of `ant`."""
    threshold: Finite = 0.005
    """`ant` lowers the noise when the running mean of the score gains less than this."""
    latent: Count = 64
    """Random numbers that the generator makes a record of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in self.models:
            raise SettingError(f"{self.name}'s model is one of {', '.join(self.models)}, not {self.model!r}.")
        self._noise(1.0)  # refuses an impossible decay

    def _noise(self, start: float) -> NoiseTuning:
        return NoiseTuning(self.tuning, start, self.decay, every=self.every, threshold=self.threshold)

    def _model(self, public: Public, usual: Model) -> Model:
        """What `auto` stands for; convolutions only where they can be."""
        if self.model == "auto":
            return "conv" if usual != "features" and suits_convolutions(public.shape) else usual
        if self.model == "conv" and len(public.shape) == 3 and not suits_convolutions(public.shape):
            raise SettingError(f"{self.name}'s model conv needs pictures of 16 x 16 or more; choose dense or features.")
        return self.model

    def _start(self, dataset: Dataset, model: Model, rng: Randomness, relaxed: float | None = None) -> Gan:
        """The untrained generator; records that cannot be learned from are refused here, before anything is spent."""
        check_records(dataset)
        return Gan(dataset.public, model, latent=self.latent, seed=initial_seed(rng), relaxed=relaxed)

    def _release(self, gan: Gan, dataset: Dataset, card: Card) -> DataRelease:
        synthetic = gan.sample(dataset.persons if self.rows is None else self.rows, dataset.name)
        if dataset.public.task != "classification":
            synthetic = replace(synthetic, labels=gan.numbers(synthetic.labels), public=dataset.public)
        return DataRelease(synthetic, card, self.settings())


def usual(public: Public) -> str:
    """The name of the method to take for such records where nobody chose one: marginals for tables, moments for pictures.

    By the measurements that their pages have; it depends on what is public alone.
    """
    return "moments" if public.is_picture or (math.prod(public.shape) > 128 and not public.columns) else "marginals"


# The two updates of a pair of networks; real records' part of the first is each method's own.


def adam(module: nn.Module, lr: float) -> torch.optim.Adam:
    """The optimizer of a generator or a discriminator."""
    return torch.optim.Adam(module.parameters(), lr=lr, betas=(0.5, 0.999))


def backward_generated(gan: Gan, discriminator: nn.Module, count: int) -> float:
    """The discriminator's loss on generated records, its gradient added to what stands in `.grad`."""
    labels = gan.labels(count)
    loss = functional.softplus(discriminator(gan.generate(labels).detach(), labels)).mean()
    loss.backward()
    return float(loss.detach())


def update_generator(gan: Gan, discriminator: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> float:
    """One update of the generator towards what the discriminator takes for real; its loss."""
    labels = gan.labels(count)
    loss = functional.softplus(-discriminator(gan.generate(labels), labels)).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


# ANT's score: a quick classifier of synthetic records, and how many others it labels right.


Classifier = Callable[[torch.Tensor], torch.Tensor]


def fit_classifier(
    dataset: Dataset,
    *,
    hidden: int | None = None,
    steps: int = 150,
    batch_size: int = 500,
    lr: float = 0.05,
    seed: int = 0,
) -> Classifier:
    """A softmax regression on these records, or a network of one hidden layer: as private as they are."""
    with seeded(seed), torch.enable_grad():
        features = dataset.features.flatten(1)
        widths = (features.shape[1], *(() if hidden is None else (hidden,)), dataset.classes)
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        network = nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer)))
        optimizer = torch.optim.Adam(network.parameters(), lr=lr)
        for _ in range(steps):
            index = torch.randint(len(features), (min(batch_size, len(features)),))
            loss = functional.cross_entropy(network(features[index]), dataset.labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    def answer(features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(network(features.flatten(1)), dim=1)

    return answer


def count_correct(classifier: Classifier, dataset: Dataset) -> float:
    """How many records get their own label: one record, or person (who counts for 1), moves it by at most 1."""
    right = (classifier(dataset.features).argmax(1) == dataset.labels).double()
    return float(right.sum() if dataset.weights is None else right @ dataset.weights)


RATES: dict[Tuning, float] = {"constant": 0.0, "time": 0.05, "exp": 0.01, "step": 0.6, "ant": 0.8}
"""Each schedule's decay rate k where none is given: the best of the paper's for MNIST (Table IV)."""
_DECAYS: dict[Tuning, Decay] = {"time": "time", "exp": "exponential", "step": "step"}


class NoiseTuning:
    """The noise of the iteration that comes next (Ma et al. 2020, section IV).

    `time`, `exp` and `step` follow a `Schedule`; `ant` is multiplied by k whenever the running mean of the scores gained
    less than `threshold` since the last one, a score every `every` iterations.

    Formal guarantee
    ----------------
    None by itself. Formulas of t cost nothing. A score of private records costs what it was released with, and noise
    that depends on it must be paid for through a filter.
    """

    def __init__(
        self, kind: Tuning, start: float, rate: float | None = None, *, every: int = 100, threshold: float = 0.005
    ) -> None:
        self.kind = kind
        self.rate = RATES[kind] if rate is None else rate
        self.start = self.sigma = start
        self.every, self.threshold = every, threshold
        self.iteration = 0
        self._scores: list[float] = []
        if not (math.isfinite(start) and start >= 0):
            raise SettingError(f"noise must start at a finite number of 0 or more, not {start}.")
        if not (0 < self.rate <= 1 if kind in ("step", "ant") else 0 <= self.rate < math.inf):
            limits = "in (0, 1]" if kind in ("step", "ant") else "at 0 or above"
            raise SettingError(f"the decay rate of {kind} must lie {limits}, not {self.rate}.")
        self._schedule = Schedule(start or 1.0, _DECAYS.get(kind, "constant"), self.rate, every)

    @property
    def wants_score(self) -> bool:
        """Whether a score is wanted after the iteration that comes next."""
        return self.kind == "ant" and (self.iteration + 1) % self.every == 0

    def advance(self, score: float | None = None) -> None:
        """Go to the next iteration; with a score where one is wanted."""
        if score is not None:
            before = sum(self._scores) / len(self._scores) if self._scores else 0.0
            self._scores.append(score)
            if sum(self._scores) / len(self._scores) - before < self.threshold:
                self.sigma *= self.rate
        self.iteration += 1
        if self.kind in _DECAYS:
            self.sigma = self._schedule.at(self.iteration) if self.start else 0.0

"""Quality: accuracies of published networks by epoch and by epsilon, beside their collection's and DP-SGD's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.data import load
from noiseproof.methods.gradients import DpSgd
from noiseproof.methods.gradients.descent import descend, make_optimizer
from noiseproof.methods.parameters import Collection, DpPg, DpPgp, train_collection
from noiseproof.methods.parameters.dp_pg import PublishingMethod
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, accountants
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import logits
from papers.mao.plans import Plan, QualityPlan

if TYPE_CHECKING:
    from noiseproof.data import Dataset


@dataclass(frozen=True)
class Point:
    """One published network (or the mean of several draws): what made it, when, at which epsilon, how accurate it is."""

    curve: str
    """`none`, `mean` (the averaged network), `dp-pg`, `dp-sgd`, and `draw`, `cluster`, `shift` for DP-PGP's sweeps."""
    epoch: int
    epsilon: float | None
    train: float
    test: float


@dataclass(frozen=True)
class Slice:
    """One parameter's values in all networks after the last epoch: what figure 3 shows."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Quality:
    """All points of one data set, and the slices of three of its parameters."""

    data: str
    network: str
    parameters: int
    models: int
    records: int
    points: tuple[Point, ...]
    slices: tuple[Slice, ...] = ()

    def of(self, curve: str, epoch: int | None = None, epsilon: float | None = None) -> list[Point]:
        """The points of a curve, at one epoch or epsilon if given."""
        return [
            point
            for point in self.points
            if point.curve == curve
            and (epoch is None or point.epoch == epoch)
            and (epsilon is None or point.epsilon == epsilon)
        ]

    def epsilons(self, curve: str, epoch: int | None = None) -> list[float]:
        """The epsilons that a curve has points for."""
        return sorted({point.epsilon for point in self.of(curve, epoch) if point.epsilon is not None})

    @property
    def last(self) -> int:
        """The last epoch."""
        return max(point.epoch for point in self.points)


def measure(
    plan: QualityPlan, whole: Plan, folder: Path, *, seed: int, workers: int = 1, progress: Progress = SILENT
) -> Quality:
    """Train the collection stage by stage (kept in `folder`), publish at each, and train DP-SGD beside it."""
    found = load(plan.data, progress=progress)
    train = _some(found.train, plan.records, seed)
    test = _some(found.test, plan.tested, seed)
    network = Network(plan.network, train.public.shape, train.classes, dict(plan.options))
    module = network.build(seed)

    measured = _some(train, plan.measured, seed)

    def accuracies(vector: torch.Tensor) -> tuple[float, float]:
        layout.load(module, vector)
        return accuracy(module, measured), accuracy(module, test)

    points: list[Point] = []
    collection: Collection | None = None
    done = 0
    for epoch in plan.stages:
        path = folder / f"{plan.data}-{plan.network}-{epoch}.safetensors"
        collection = train_collection(
            network,
            train,
            plan.models,
            plan.training(epoch - done),
            seed=seed + epoch,
            start=collection,
            path=path,
            workers=workers,
            progress=progress,
        )
        done, layout = epoch, collection.layout
        points += _stage(plan, collection, epoch, accuracies, seed)
    assert collection is not None
    points += _sweeps(plan, collection, done, accuracies, seed)
    points += _dp_sgd(plan, whole, network, train, test, seed)
    slices = _slices(collection)
    return Quality(plan.data, plan.network, collection.parameters, plan.models, len(train), tuple(points), slices)


def accuracy(module: nn.Module, dataset: Dataset) -> float:
    """Share of the records that a network labels right."""
    return float((logits(module, dataset.features).argmax(1) == dataset.labels).double().mean())


def _some(dataset: Dataset, count: int | None, seed: int) -> Dataset:
    if count is None or count >= len(dataset):
        return dataset
    return dataset.take(torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:count])


def _slices(collection: Collection) -> tuple[Slice, ...]:
    """Three parameters, as in figure 3: the middle one of each of the last three layers' weights."""
    weights = [(name, math.prod(shape)) for name, shape in collection.layout.tensors if len(shape) > 1][-3:]
    places = [(name, size // 2, collection.layout.slices[name].start + size // 2) for name, size in weights]
    return tuple(Slice(f"{name}[{index}]", tuple(collection.rows[:, place].tolist())) for name, index, place in places)


_Accuracies = Callable[[torch.Tensor], tuple[float, float]]


def _stage(plan: QualityPlan, collection: Collection, epoch: int, accuracies: _Accuracies, seed: int) -> list[Point]:
    own = torch.tensor([accuracies(row) for row in collection.rows], dtype=torch.float64).mean(0).tolist()
    points = [Point("none", epoch, None, own[0], own[1]), Point("mean", epoch, None, *accuracies(collection.mean()))]
    method = DpPg(resolution=plan.resolution, bandwidth=plan.bandwidth)
    epsilons = plan.by_epoch if epoch != plan.stages[-1] else sorted({*plan.by_epoch, *plan.epsilons})
    return points + [
        _published("dp-pg", method, epsilon, epsilon, plan, collection, epoch, accuracies, seed) for epsilon in epsilons
    ]


def _sweeps(plan: QualityPlan, collection: Collection, epoch: int, accuracies: _Accuracies, seed: int) -> list[Point]:
    """DP-PGP by each of its epsilons; and by the last one with line 21 as printed."""
    points = []
    draw, cluster, shift = plan.fixed
    base = DpPgp(
        resolution=plan.resolution,
        bandwidth=plan.bandwidth,
        epsilon_draw=draw,
        epsilon_cluster=cluster,
        epsilon_shift=shift,
    )
    for epsilon in plan.sweep:
        for curve, method in (
            ("draw", replace(base, epsilon_draw=epsilon)),
            ("cluster", replace(base, epsilon_cluster=epsilon)),
            ("shift", replace(base, epsilon_shift=epsilon)),
            ("shift, as printed", replace(base, epsilon_shift=epsilon, as_printed=True)),
        ):
            enough = 2 * max(*plan.fixed, epsilon)
            points.append(_published(curve, method, enough, epsilon, plan, collection, epoch, accuracies, seed))
    return points


def _published(
    curve: str,
    method: PublishingMethod,
    budget: float,
    epsilon: float,
    plan: QualityPlan,
    collection: Collection,
    epoch: int,
    accuracies: _Accuracies,
    seed: int,
) -> Point:
    """The mean accuracies of several draws."""
    rng = Reproducible(seed)
    drawn = [method.draw(collection, Budget(budget), rng.spawn(turn)).values for turn in range(plan.repeats)]
    train, test = torch.tensor([accuracies(values) for values in drawn], dtype=torch.float64).mean(0).tolist()
    return Point(curve, epoch, epsilon, train, test)


def _dp_sgd(plan: QualityPlan, whole: Plan, network: Network, train: Dataset, test: Dataset, seed: int) -> list[Point]:
    """DP-SGD at the same epochs; its epsilon grows with them."""
    method = DpSgd(
        noise_multiplier=whole.sigma,
        batch_size=plan.batch_size,
        max_grad_norm=1.0,
        lr=0.05,
        momentum=plan.momentum,
    )
    module, budget = network.build(seed), Budget(1.0, whole.delta)
    rate = method.rate(len(train))
    steps = [max(1, round(epoch / rate)) for epoch in plan.stages]
    gradients = method.gradients(module, sample_rate=rate, steps=steps[-1], budget=budget, rng=Reproducible(seed))
    descent = make_optimizer(method.optimizer, gradients.parameters, method.lr, method.momentum)
    points, taken = [], 0
    try:
        for epoch, until in zip(plan.stages, steps, strict=True):
            descend(
                module,
                gradients,
                descent,
                train,
                until - taken,
                rng=Reproducible(seed),
                micro_batch_size=method.micro_batch_size,
            )
            taken = until
            spent = accountants.epsilon(gradients.events.event, whole.delta).epsilon
            points.append(Point("dp-sgd", epoch, spent, accuracy(module, train), accuracy(module, test)))
    finally:
        gradients.close()
    return points

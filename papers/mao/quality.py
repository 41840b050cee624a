"""Quality: accuracies of published networks by epoch and by epsilon, beside their collection's and DP-SGD's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noiseproof.data import load
from noiseproof.files import write_whole
from noiseproof.methods.gradients import DpSgd
from noiseproof.methods.gradients.descent import descend, make_optimizer
from noiseproof.methods.parameters import Collection, DpPg, DpPgp, train_collection
from noiseproof.methods.parameters.density import BandwidthRule
from noiseproof.methods.parameters.dp_pg import PublishingMethod
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, accountants
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import logits
from papers.mao.plans import Plan, QualityPlan
from papers.mao.training import train_stages
from papers.store import settings

if TYPE_CHECKING:
    from noiseproof.data import Dataset


@dataclass(frozen=True)
class Point:
    """One published network (or the mean of several draws): what made it, when, at which epsilon, how accurate it is."""

    curve: str
    """`none`, `mean` (the averaged network), `dp-pg`, `dp-pg, sheather-jones` (beside another bandwidth), `dp-sgd`,
    and `draw`, `cluster`, `shift` for DP-PGP's sweeps; `network 0` and so on are those of the collection, `mean of 0`
    and so on the averages of two from that one on."""
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

    def gains(self, epoch: int) -> list[float]:
        """What the mean of two networks has above these two on average, for each two of the collection."""
        found = []
        for first in range(0, self.models - _FEW + 1, _FEW):
            own = [self.of(f"network {index}", epoch)[0].test for index in range(first, first + _FEW)]
            found.append(self.of(f"mean of {first}", epoch)[0].test - sum(own) / _FEW)
        return found

    @property
    def last(self) -> int:
        """The last epoch."""
        return max(point.epoch for point in self.points)


def measure(
    plan: QualityPlan, whole: Plan, folder: Path, *, seed: int, workers: int = 1, progress: Progress = SILENT
) -> Quality:
    """Train the collection stage by stage (kept in `folder`), publish at each, and train DP-SGD beside it."""
    found = load(plan.data, progress=progress)
    train = some(found.train, plan.records, seed)
    test = some(found.test, plan.tested, seed)
    network = Network(plan.network, train.public.shape, train.classes, dict(plan.options))
    module = network.build(seed)

    measured = some(train, plan.measured, seed)

    def accuracies(vector: torch.Tensor) -> tuple[float, float]:
        layout.load(module, vector)
        return accuracy(module, measured), accuracy(module, test)

    points = _Points(folder / f"{plan.key}.json", settings(plan, seed))
    for epoch, collection in _collections(plan, whole, network, train, folder, seed, workers, progress):
        layout = collection.layout
        _stage(points, plan, collection, epoch, accuracies, seed)
    _sweeps(points, plan, collection, accuracies, seed)
    if plan.dp_sgd and not points.of("dp-sgd"):
        points.add(*_dp_sgd(plan, whole, network, train, measured, test, seed))
    slices = _slices(collection)
    return Quality(plan.data, plan.network, collection.parameters, plan.models, len(train), points.all, slices)


class _Points:
    """Points in the order they are measured, kept in a file as they are, so that a run that was stopped goes on there."""

    def __init__(self, path: Path, belongs: Mapping[str, Any]) -> None:
        self._path, self._belongs = path, json.loads(json.dumps(belongs))
        self.all: tuple[Point, ...] = ()
        if path.exists():
            document = json.loads(path.read_bytes())
            if document["belongs"] == self._belongs:
                self.all = tuple(Point(**point) for point in document["points"])

    def of(self, curve: str) -> list[Point]:
        return [point for point in self.all if point.curve == curve]

    def add(self, *points: Point) -> None:
        self.all += points
        document = {"belongs": self._belongs, "points": [asdict(point) for point in self.all]}
        write_whole(self._path, json.dumps(document))

    def measure(self, curve: str, epoch: int, epsilon: float | None, accuracies: Callable[[], Sequence[float]]) -> None:
        """Add a point, if it is not there yet."""
        if not any((point.curve, point.epoch, point.epsilon) == (curve, epoch, epsilon) for point in self.all):
            train, test = accuracies()
            self.add(Point(curve, epoch, epsilon, train, test))


def _collections(
    plan: QualityPlan,
    whole: Plan,
    network: Network,
    train: Dataset,
    folder: Path,
    seed: int,
    workers: int,
    progress: Progress,
) -> Iterator[tuple[int, Collection]]:
    """The collection after each stage, trained on from the one before."""
    if whole.apart:
        yield from train_stages(
            network,
            train,
            plan.models,
            plan.training(plan.stages[-1]),
            seed=seed,
            path=folder / f"{plan.data}-{plan.network}-{plan.lr:g}",
            precision=plan.precision,
            stages=plan.stages,
            workers=workers,
        ).items()
        return
    collection, done = None, 0
    for epoch in plan.stages:
        collection = train_collection(
            network,
            train,
            plan.models,
            plan.training(epoch - done),
            seed=seed + epoch,
            start=collection,
            path=folder / f"{plan.data}-{plan.network}-{epoch}.safetensors",
            workers=workers,
            progress=progress,
        )
        done = epoch
        yield epoch, collection


def accuracy(module: nn.Module, dataset: Dataset) -> float:
    """Share of the records that a network labels right."""
    return float((logits(module, dataset.features).argmax(1) == dataset.labels).double().mean())


def some(dataset: Dataset, count: int | None, seed: int) -> Dataset:
    """So many of the records, drawn at random; all if None."""
    if count is None or count >= len(dataset):
        return dataset
    return dataset.take(torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:count])


def _slices(collection: Collection) -> tuple[Slice, ...]:
    """Three parameters, as in figure 3: the middle one of each of the last three layers' weights."""
    weights = [(name, math.prod(shape)) for name, shape in collection.layout.tensors if len(shape) > 1][-3:]
    places = [(name, size // 2, collection.layout.slices[name].start + size // 2) for name, size in weights]
    return tuple(Slice(f"{name}[{index}]", tuple(collection.rows[:, place].tolist())) for name, index, place in places)


_Accuracies = Callable[[torch.Tensor], tuple[float, float]]
_BESIDE: BandwidthRule = "sheather-jones"
_FEW = 2
"""Networks that are averaged apart from the others, so that what averaging gains is seen several times."""


def _stage(
    points: _Points, plan: QualityPlan, collection: Collection, epoch: int, accuracies: _Accuracies, seed: int
) -> None:
    """The collection's networks, their mean, the means of two of them, and DP-PG by epsilon."""
    for index, row in enumerate(collection.rows):
        points.measure(f"network {index}", epoch, None, partial(accuracies, row))
    own = [(point.train, point.test) for point in points.all if point.epoch == epoch and point.curve[:7] == "network"]
    points.measure("none", epoch, None, lambda: _mean(own))
    points.measure("mean", epoch, None, lambda: accuracies(collection.mean()))
    for first in range(0, len(collection) - _FEW + 1, _FEW):
        few = collection.rows[first : first + _FEW].mean(0)
        points.measure(f"mean of {first}", epoch, None, partial(accuracies, few))
    last = epoch == plan.stages[-1]
    epsilons = sorted({*plan.by_epoch, *plan.epsilons}) if last else plan.by_epoch
    for epsilon in epsilons:
        drawn = partial(_drawn, DpPg(resolution=plan.resolution, bandwidth=plan.bandwidth), epsilon)
        points.measure("dp-pg", epoch, epsilon, partial(drawn, plan, collection, accuracies, seed))
    for epsilon in plan.beside if last else ():
        drawn = partial(_drawn, DpPg(resolution=plan.resolution, bandwidth=_BESIDE), epsilon)
        points.measure(f"dp-pg, {_BESIDE}", epoch, epsilon, partial(drawn, plan, collection, accuracies, seed))


def _sweeps(points: _Points, plan: QualityPlan, collection: Collection, accuracies: _Accuracies, seed: int) -> None:
    """DP-PGP by each of its epsilons; and by the last one with line 21 as printed."""
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
            drawn = partial(_drawn, method, enough, plan, collection, accuracies, seed)
            points.measure(curve, plan.stages[-1], epsilon, drawn)


def _drawn(
    method: PublishingMethod,
    budget: float,
    plan: QualityPlan,
    collection: Collection,
    accuracies: _Accuracies,
    seed: int,
) -> list[float]:
    """The mean accuracies of several draws."""
    rng = Reproducible(seed)
    return _mean(
        [accuracies(method.draw(collection, Budget(budget), rng.spawn(turn)).values) for turn in range(plan.repeats)]
    )


def _mean(accuracies: Sequence[tuple[float, float]]) -> list[float]:
    return torch.tensor(accuracies, dtype=torch.float64).mean(0).tolist()


def _dp_sgd(
    plan: QualityPlan, whole: Plan, network: Network, train: Dataset, measured: Dataset, test: Dataset, seed: int
) -> list[Point]:
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
            points.append(Point("dp-sgd", epoch, spent, accuracy(module, measured), accuracy(module, test)))
    finally:
        gradients.close()
    return points

"""One cell of the study: a method on a data set at an epsilon, trained and measured."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noiseproof.data import Dataset, load
from noiseproof.data.features import Chain, GroupNormMap, ScatteringMap, apply
from noiseproof.files import write_whole
from noiseproof.methods.gradients import DpSgd
from noiseproof.methods.inputs import Adlm, Functional, Ilm
from noiseproof.methods.inputs.adlm import InputMethod
from noiseproof.methods.inputs.perturbation import Look
from noiseproof.methods.inputs.quadratic import solve
from noiseproof.methods.inputs.relevance import PrivateRelevance, Relevance, RelevanceNetwork, split
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases.release import ModelRelease, accuracy, logits
from papers.phan.plans import (
    EXACT,
    EXPLAINING,
    FIRST_PROGRAM,
    LONGER,
    OWN_EXACT,
    OWN_RELEVANCES,
    PROGRAM,
    Plan,
    Setting,
)

_NO_NOISE = 1e9
"""An epsilon at which no noise is to be seen."""


@dataclass(frozen=True)
class Cell:
    """What is run; `epsilon` is None where one run serves all of them."""

    data: str
    curve: str
    epsilon: float | None
    repeat: int

    @property
    def key(self) -> str:
        """The name of the cell's file."""
        words = self.curve.replace(", ", "-").replace(" ", "-")
        return f"{self.data}-{words}-{'all' if self.epsilon is None else format(self.epsilon, 'g')}-{self.repeat}"


@dataclass(frozen=True)
class Point:
    """An accuracy on test records, and what was promised for it."""

    data: str
    curve: str
    epsilon: float
    epochs: float
    accuracy: float
    claimed: float | None = None
    proven: float | None = None
    ran: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """The points of one cell."""

    key: str
    points: tuple[Point, ...]
    seconds: float


def every_cell(plan: Plan, data: list[str]) -> list[Cell]:
    """Every cell of the plan for the data sets that are there: the program's at one epsilon after the other, and others."""
    found = []
    for setting in plan.settings:
        if setting.data not in data:
            continue
        found += [Cell(setting.data, f"functional, {name}", None, 0) for name in reversed(setting.maps)]
        noised = [curve for curve in setting.curves if not curve.startswith("no noise")]
        seeds = range(plan.repeats)
        found += [
            Cell(setting.data, curve, epsilon, repeat)
            for epsilon in setting.epsilons
            for repeat in seeds
            for curve in noised
            if _repeated(curve) and epsilon in _epsilons(curve, setting)
        ]
        exact = [curve for curve in setting.curves if curve not in noised]
        found += [Cell(setting.data, curve, None, repeat) for curve in exact for repeat in seeds]
        found += [
            Cell(setting.data, curve, epsilon, 0)
            for curve in noised
            for epsilon in setting.epsilons
            if not _repeated(curve)
        ]
    return found


def _epsilons(curve: str, setting: Setting) -> tuple[float, ...]:
    """At which epsilons a curve is trained: one of them, where the curve is to explain another."""
    return setting.epsilons[:1] if curve in (*EXPLAINING, *LONGER) else setting.epsilons


def _repeated(curve: str) -> bool:
    """Whether a curve has several seeds, so that gains of one over another can be judged."""
    return curve.endswith(PROGRAM) or curve == "dp-sgd"


def run(cell: Cell, plan: Plan, folder: Path, seed: int) -> CellResult:
    """Train and measure one cell. `folder` holds the relevance networks.

    Formal guarantee
    ----------------
    None: a study measures on public data, again and again. What is proven of a single training is in its points.
    """
    started = time.process_time()
    setting = next(one for one in plan.settings if one.data == cell.data)
    train, test = records(setting)
    if cell.curve in LONGER:
        setting = replace(setting, points=None)
    own = seed * 10_007 + cell.repeat
    if cell.curve.startswith("functional"):
        points = _functional(cell, setting, plan, train, test, own)
    elif cell.curve == "dp-sgd":
        points = _dp_sgd(cell, setting, plan, train, test, own)
    else:
        points = _trained(cell, setting, plan, train, test, folder, own)
    return CellResult(cell.key, tuple(points), time.process_time() - started)


def records(setting: Setting) -> tuple[Dataset, Dataset]:
    """Training and test records of a setting."""
    return _loaded(setting.data, setting.records, setting.crop)


@lru_cache(maxsize=2)
def _loaded(data: str, most: int | None, crop: int | None) -> tuple[Dataset, Dataset]:
    both = load(data)
    train = both.train
    if most is not None and most < len(train):
        train = train.take(torch.arange(most))
    return (train, both.test) if crop is None else (cropped(train, crop), cropped(both.test, crop))


def cropped(dataset: Dataset, side: int) -> Dataset:
    """The middle of every picture."""
    channels, *sides = dataset.public.shape
    top, left = ((length - side) // 2 for length in sides)
    features = dataset.features[:, :, top : top + side, left : left + side].contiguous()
    return replace(dataset, features=features, public=replace(dataset.public, shape=(channels, side, side)))


def method(curve: str, setting: Setting, folder: Path) -> InputMethod:
    """The method that a curve's name stands for."""
    name, _, reading = curve.partition(", ")
    adaptive = _ADAPTIVE.get(curve, GivenAdlm if reading.endswith(PROGRAM) else Adlm)
    kind: type[InputMethod] = adaptive if name == "adlm" else Ilm
    common: dict[str, Any] = {
        "sensitivity": setting.sensitivity,
        "batch_size": setting.batch_size,
        "inputs_share": setting.shares[1],
        "loss_share": setting.shares[2],
        "lr": setting.lr,
    }
    if name == "adlm":
        common["relevance_share"] = setting.shares[0]
    if not reading.endswith(PROGRAM):
        return kind(epochs=setting.printed_epochs, bound="local-response", **common)
    epochs = setting.epochs * (setting.longer if curve in LONGER else 1)
    first = reading.endswith(FIRST_PROGRAM)
    if first:
        # As many steps, each of which stands for more records.
        epochs *= setting.first_batch / setting.batch_size
        common["batch_size"] = setting.first_batch
    if name == "adlm":
        # The program's floors, and its own network's relevances.
        floor = 1e-2 if setting.data == "cifar10" else 1e-5
        common |= {"relevance": str(relevance_file(folder, setting)), "floor": floor}
    return kind(
        epochs=epochs,
        draw=setting.draw,
        # On MNIST the first version hands its training the noise of its evaluation, 0.
        coefficients="matrix" if not first else "hidden" if setting.draw == "once" else "plain",
        bound=setting.bound,
        schedule="constant",
        step_records=setting.step_records,
        **common,
    )


class GivenAdlm(Adlm):
    """AdLM with mean relevances that a file has, since to take them takes as long as a training."""

    def _network(self, *_: Any) -> RelevanceNetwork:
        why = "The network whose relevances decide where noise goes was trained without noise."
        return RelevanceNetwork(nn.Identity(), "trained without noise", why=why)

    def _average(self, module: nn.Module, dataset: Dataset) -> torch.Tensor:
        return MeanRelevances.read(Path(self.relevance)).tensor


@dataclass(frozen=True)
class MeanRelevances:
    """What is kept of a network that was trained without noise: its accuracy, and its relevances' mean over records."""

    accuracy: float
    mean: list[float]

    @property
    def tensor(self) -> torch.Tensor:
        """The mean, flat."""
        return torch.tensor(self.mean)

    def write(self, file: Path) -> None:
        """Keep it."""
        write_whole(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> MeanRelevances:
        """What was kept."""
        return cls(**json.loads(file.read_bytes()))


class ProgramAdlm(GivenAdlm):
    """AdLM with relevances as the authors' script makes them, which are little but noise at these epsilons.

    The mean is stretched to [0, 1] and raised to the power of 4 before its noise; what is negative after it gets the least
    part of the budget.
    """

    def _average(self, module: nn.Module, dataset: Dataset) -> torch.Tensor:
        mean = super()._average(module, dataset)
        return ((mean - mean.min()) / (mean.max() - mean.min())) ** 4

    def _beta(self, dataset: Dataset, relevance: Relevance | None) -> torch.Tensor:
        assert relevance is not None
        return split(relevance.private.values.clamp(min=0.0), self.floor, self.power)


class ExactAdlm(GivenAdlm):
    """AdLM with relevances that have no noise."""

    def _relevance(self, network: Network, dataset: Dataset, *others: Any) -> Relevance:
        chosen = self._network(network, dataset, *others)
        return Relevance(PrivateRelevance(self._average(chosen.module, dataset), math.inf), chosen)


class ExactProgramAdlm(ExactAdlm, ProgramAdlm):
    """AdLM with relevances as the authors' script makes them, but for their noise."""


_ADAPTIVE: Mapping[str, type[Adlm]] = {
    OWN_RELEVANCES: ProgramAdlm,
    EXACT: ExactAdlm,
    OWN_EXACT: ExactProgramAdlm,
}


def relevance_file(folder: Path, setting: Setting) -> Path:
    """Where that network's accuracy and mean relevances are."""
    return folder / f"relevances-{setting.data}.json"


def relevance_bundle(folder: Path, setting: Setting) -> Path:
    """Where the network is that was trained without noise for relevances."""
    return folder / f"relevance-{setting.data}"


def _trained(
    cell: Cell, setting: Setting, plan: Plan, train: Dataset, test: Dataset, folder: Path, seed: int
) -> list[Point]:
    # Next to no noise where one training serves all epsilons.
    epsilon = _NO_NOISE if cell.epsilon is None else cell.epsilon
    chosen = method(cell.curve, setting, folder)
    steps = chosen.steps(len(train))
    batch = min(chosen.batch_size, len(train))
    seen: list[tuple[float, float]] = []

    def look(step: int, module: nn.Module) -> None:
        right = logits(module, test.features).argmax(1) == test.labels
        seen.append((step * batch / len(train), float(right.double().mean())))

    network = setting.recipe(train.public.shape, train.classes)
    # ILM is the same with equal noise: it has AdLM's epsilon_2 and epsilon_3, and nothing in place of epsilon_1.
    claimed = epsilon if isinstance(chosen, Adlm) else epsilon * sum(setting.shares[1:]) / sum(setting.shares)
    # Where a processor only emulates it, bfloat16 takes three times as long as float32.
    has = torch.cpu.get_capabilities()
    narrow = setting.precision == "bfloat16" and bool(has.get("avx512_bf16") or has.get("amx_bf16"))
    # Weights that a cache would keep change with every step.
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow, cache_enabled=False):
        release = chosen.fit(
            network,
            train,
            Budget(claimed, plan.delta),
            rng=Reproducible(seed),
            look=Look(max(1, steps // (setting.points or plan.points)), look),
        )
    if not seen or seen[-1][0] < steps * batch / len(train):
        seen.append((steps * batch / len(train), accuracy(release, test)))
    stated = setting.epsilons if cell.epsilon is None else (cell.epsilon,)
    promised = _promises(release)
    promised["ran"]["precision"] = "bfloat16" if narrow else "float32"
    return [Point(cell.data, cell.curve, each, epochs, right, **promised) for each in stated for epochs, right in seen]


def _dp_sgd(cell: Cell, setting: Setting, plan: Plan, train: Dataset, test: Dataset, seed: int) -> list[Point]:
    assert cell.epsilon is not None
    network = setting.recipe(train.public.shape, train.classes)
    lengths = setting.dp_sgd_epochs if cell.epsilon in setting.over_epochs else setting.dp_sgd_epochs[-1:]
    points = []
    for epochs in lengths:
        release = DpSgd(epochs=epochs, batch_size=setting.dp_sgd_batch).fit(
            network, train, Budget(cell.epsilon, plan.delta), rng=Reproducible(seed)
        )
        points.append(Point(cell.data, cell.curve, cell.epsilon, epochs, accuracy(release, test), **_promises(release)))
    return points


def _functional(cell: Cell, setting: Setting, plan: Plan, train: Dataset, test: Dataset, seed: int) -> list[Point]:
    """The sums do not depend on epsilon, so that one pass over the records serves all of them."""
    if cell.curve.endswith("scattering"):
        scattering = Chain((ScatteringMap(), GroupNormMap()))
        train, test = (apply(part, scattering, cache=False) for part in (train, test))
    chosen = Functional(features="fourier" if cell.curve.endswith("fourier") else "raw")
    embedding = chosen.plan(train, Budget(1.0, plan.delta)).embed
    mapped = torch.cat([embedding(part) for part in test.features.split(4096)]).double()
    sums = chosen.plan(train, Budget(1.0, plan.delta)).sums(train)
    points = []
    for number, epsilon in enumerate(setting.epsilons):
        quadratic = chosen.plan(train, Budget(epsilon, plan.delta))
        rng = Reproducible(seed).spawn(number)
        second, first = quadratic.release(sums, rng)
        weights = solve(second, first, chosen.ridge * quadratic.spread(rng))
        right = float(((mapped @ weights).argmax(1) == test.labels).double().mean())
        proven = quadratic.proof().epsilon
        points.append(Point(cell.data, cell.curve, epsilon, 1.0, right, epsilon, proven, {"features": quadratic.width}))
    return points


def _promises(release: ModelRelease) -> dict[str, Any]:
    card = release.card
    return {
        "claimed": None if card.claimed is None else card.claimed.epsilon,
        "proven": None if card.proven is None else card.proven.epsilon,
        "ran": {key: value for key, value in card.ran.items() if key.startswith(("epsilon", "scale", "D_", "batch"))},
    }

"""Cells: every training of the study, by name; and what one of them found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof import methods
from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.methods.losses.gan import Gan, Model, count_correct, fit_classifier
from noiseproof.methods.losses.quality import pmf, quality
from noiseproof.methods.losses.rdp_gan import RdpGan, Reading
from noiseproof.networks import suggest
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases.release import DataRelease
from papers.ma.judges import sigmoid_accuracy
from papers.ma.plans import DATA, EPSILONS, TUNINGS, Plan, joined, pair, parted
from papers.ma.privacy import FORMULAS, lasting_rate
from papers.ma.published import DECAYS

NOISES = (0.5, 5.0, 10.0)
"""Figure 5's noise scales."""


@dataclass(frozen=True)
class Cell:
    """One training: a method on a set, at a budget or a noise, with a schedule."""

    data: str
    method: str
    epsilon: float | None = None
    sigma: float | None = None
    tuning: str = "constant"
    decay: float | None = None
    noise_on: Reading | None = None
    """Where rdp-gan's noise goes; None is the method's own reading."""
    model: Model | None = None
    """Its pair of networks; None is the plan's."""
    lr: float | None = None
    """Its learning rate; None is the plan's."""
    iterations: int | None = None
    """Of the generator, where there is noise of its own or none; None is the plan's."""
    threshold: float | None = None
    """ANT's tau; None is the method's own."""
    labelled: bool = False
    """Whether Adult's income is the label that the rest is generated for, as it is with ANT, whose score needs one."""
    repeat: int = 0

    @property
    def key(self) -> str:
        """Its name in file names."""
        parts = [self.data, self.method, self.tuning]
        numbers = {"e": self.epsilon, "s": self.sigma, "k": self.decay, "lr": self.lr}
        numbers |= {"i": self.iterations, "tau": self.threshold}
        parts += [f"{letter}{value:g}" for letter, value in numbers.items() if value is not None]
        parts += [word for word in (self.noise_on, self.model, "labelled" if self.labelled else None) if word]
        return "-".join([*parts, *([f"run{self.repeat}"] if self.repeat else [])])


@dataclass(frozen=True)
class CellResult:
    """What a cell's synthetic records are like, and what their card says."""

    key: str
    iterations: int
    steps: int
    accuracy: float
    """A classifier of real test records on synthetic ones (figure 8a; for pictures figures 5 and 6)."""
    by_sigmoids: float
    """The same by the paper's judge."""
    synthetic_to_real: float
    real_to_real: float
    majority: float
    by_class: dict[str, float]
    pmf_errors: dict[str, float]
    shares: dict[str, list[float]]
    correlation_error: float | None
    claimed: float | None
    proven: float | None
    verdict: str
    sigma: float
    last_sigma: float
    warnings: list[str]
    seconds: float
    curve: list[tuple[int, float]] = field(default_factory=list)


READINGS: tuple[Reading, ...] = ("sum", "error")
"""Eqs 8 to 10 with one draw for the batch's sum, and line 9 of algorithm 1 with one for each record."""
NAMED_SIGMA = 10.0
"""What the paper's text names for an epsilon of .5 and 1,000 iterations on MNIST."""


def named(data: str, tuning: str = "constant", repeat: int = 0, noise_on: Reading = "sum") -> Cell:
    """The noise that the paper names, held or lowered by a schedule until the budget of 1,000 such iterations is spent."""
    decay = DECAYS[data].get(tuning)
    return Cell(data, "rdp-gan", sigma=NAMED_SIGMA, tuning=tuning, decay=decay, noise_on=noise_on, repeat=repeat)


LEARNING_RATE = 2e-4
"""At which 1,000 iterations of the paper's pair learn how Adult's columns go together, too."""


def faster(cell: Cell) -> Cell:
    """The same on Adult at that rate."""
    return replace(cell, model="conv", lr=LEARNING_RATE)


def on_adult(method: str, epsilon: float | None = None, repeat: int = 0) -> Cell:
    """What Table III and figures 7 and 8 show on Adult, noise being on a batch's sum."""
    return Cell("adult", method, epsilon, noise_on="sum" if method == "rdp-gan" else None, repeat=repeat)


PAIRS: Mapping[str, tuple[tuple[Model, float, int | None], ...]] = {
    "adult": (
        ("conv", 5e-5, 4_000),
        ("conv", 5e-5, 10_000),
        ("conv", 2e-4, None),
        ("conv", 1e-3, None),
        ("dense", 5e-5, None),
        ("dense", 1e-3, None),
    ),
    "mnist": (("dense", 5e-5, None), ("conv", 5e-5, None), ("conv", 1e-3, None)),
}
"""Pairs of networks, learning rates and iterations beside the plan's: the paper's pair is convolutional, its rate 5e-5."""
PRINTED_THRESHOLD = 0.5
"""The paper's tau, taken as a share of the samples; .005, the method's own, takes it for a percentage."""


def decayed(data: str, tuning: str, rate: float) -> Cell:
    """A schedule of figures 9 and 10: on Adult at the rate at which there is something to lose."""
    cell = replace(named(data, tuning), decay=rate)
    return faster(cell) if data == "adult" else cell


def lasting(data: str, tuning: str, repeat: int = 0) -> Cell:
    """A schedule that falls as slowly as it must to last as long as the paper prints."""
    return replace(named(data, tuning, repeat), decay=lasting_rate(data, tuning))


def readings(plan: Plan) -> tuple[Cell, ...]:
    """The noise that the paper names, and its two epsilons, over seeds; other pairs of networks with one."""
    turns = range(plan.repeats)
    cells: list[Cell] = []
    for turn in turns:
        cells += [Cell(data, "none", repeat=turn) for data in DATA]
        cells += [on_adult(method, epsilon, turn) for method in ("rdp-gan", "dp-gan") for epsilon in EPSILONS]
        cells += [Cell("mnist", "rdp-gan", sigma=sigma, noise_on="sum", repeat=turn) for sigma in NOISES[:-1]]
        cells += [named(data, repeat=turn) for data in DATA]
    cells += [faster(Cell("adult", "none", repeat=turn)) for turn in turns]
    cells += [faster(on_adult("rdp-gan", epsilon, turn)) for turn in turns for epsilon in EPSILONS]
    cells += [Cell("adult", "none", model="conv", lr=5e-5, iterations=4_000, repeat=turn) for turn in turns]
    cells += [Cell("mnist", "rdp-gan", epsilon, noise_on="sum", repeat=turn) for turn in turns for epsilon in EPSILONS]
    cells += [named(data, tuning, turn) for turn in turns for tuning in TUNINGS for data in DATA]
    cells += [Cell("mnist", "dp-gan", epsilon, repeat=turn) for turn in turns for epsilon in EPSILONS]
    cells += [
        replace(decayed(data, tuning, rate), repeat=turn)
        for turn in turns
        for data in DATA
        for tuning in TUNINGS
        for rate in plan.decays[tuning]
    ]
    cells += [Cell(data, "zero-gan", EPSILONS[-1]) for data in DATA]
    cells += [faster(named("adult", tuning, turn)) for turn in turns for tuning in ("constant", *TUNINGS)]
    cells += [replace(faster(named("adult", repeat=turn)), labelled=True) for turn in turns]
    cells += [Cell(data, "none", model=m, lr=lr, iterations=i) for data in DATA for m, lr, i in PAIRS[data]]
    cells += [replace(named(data, "ant", turn), threshold=PRINTED_THRESHOLD) for turn in turns for data in DATA]
    cells += [lasting(data, tuning, turn) for turn in turns for tuning in FORMULAS for data in DATA]
    cells += [named("mnist", repeat=turn, noise_on="error") for turn in turns]
    return tuple(dict.fromkeys(cells))


def every_cell(plan: Plan) -> tuple[Cell, ...]:
    """All trainings of the study, each once."""
    if plan.repeats:
        return readings(plan)
    cells: list[Cell] = []
    for data in DATA:
        cells.append(Cell(data, "none"))
        for epsilon in EPSILONS:
            cells += [Cell(data, "rdp-gan", epsilon), Cell(data, "dp-gan", epsilon)]
        cells.append(Cell(data, "zero-gan", EPSILONS[-1]))
        cells += [Cell(data, "rdp-gan", sigma=sigma) for sigma in NOISES if data == "mnist"]
        for tuning in TUNINGS:
            rates = sorted({DECAYS[data][tuning], *plan.decays[tuning]})
            cells += [Cell(data, "rdp-gan", 0.5, tuning=tuning, decay=rate) for rate in rates]
    # The proven sibling under every schedule, where its runs are cheap.
    cells += [Cell("adult", "dp-gan", 0.5, tuning=tuning, decay=DECAYS["adult"].get(tuning)) for tuning in TUNINGS]
    return tuple(cells)


def run_cell(cell: Cell, plan: Plan, folder: Path, seed: int) -> CellResult:
    """Train one cell and measure what it made; pictures are kept beside the result."""
    train, test = pair(cell.data, plan.records[cell.data], plan.test, seed)
    seed = 10_007 * cell.repeat + seed
    method = method_for(cell, plan)
    # rdp-gan without noise or at a given noise has no budget; one is named for its claim's delta.
    budget = Budget(cell.epsilon or 1.0, 1e-5)
    if cell.sigma is not None and cell.tuning != "constant":
        budget = Budget(_spent(cell, plan, len(train)), 1e-5)
    # Income is generated like every column, but where a schedule's score is of labels.
    columns = cell.data == "adult" and cell.method in ("none", "rdp-gan") and cell.tuning != "ant" and not cell.labelled
    given = joined(train) if columns else train
    judge = fit_classifier(test)
    every = max(1, (method.iterations if isinstance(method, RdpGan) else 10**9) // plan.looks)
    curve: list[tuple[int, float]] = []

    def callback(iteration: int, gan: Gan) -> None:
        if iteration % every == 0:
            sample = gan.sample(500, cell.data)
            sample = parted(sample, train.public) if columns else sample
            curve.append((iteration, count_correct(judge, sample) / 500))

    network = suggest(train.public.shape, train.classes, train.public.kind)
    started = time.process_time()
    release = method.fit(network, given, budget, rng=Reproducible(seed), callback=callback)
    seconds = time.process_time() - started
    assert isinstance(release, DataRelease)
    made = parted(release.dataset, train.public) if columns else release.dataset
    found = quality(made, train, test, seed=seed)
    if made.public.kind == "image":
        picked = torch.cat([(made.labels == place).nonzero().squeeze(1)[:8] for place in range(made.classes)])
        np.savez_compressed(folder / f"{cell.key}.npz", x=made.features[picked].numpy(), y=made.labels[picked].numpy())
    card, ran = release.card, release.card.ran
    return CellResult(
        key=cell.key,
        iterations=int(ran.get("iterations", ran.get("steps", 0))),
        steps=int(ran.get("steps", 0)) or int(ran["iterations"]) * int(ran["discriminator steps"]),
        accuracy=found.real_to_synthetic,
        by_sigmoids=sigmoid_accuracy(test, made, seed=seed),
        synthetic_to_real=found.synthetic_to_real,
        real_to_real=found.real_to_real,
        majority=found.majority,
        by_class=found.by_class,
        pmf_errors=found.pmf_errors,
        shares={name: part.tolist() for name, part in pmf(made).items()} if found.pmf_errors else {},
        correlation_error=found.correlation_error,
        claimed=None if card.claimed is None or cell.method == "none" else card.claimed.epsilon,
        proven=None if card.proven is None else card.proven.epsilon,
        verdict=card.verdict_if_secure,
        sigma=float(ran["noise_multiplier"] if "noise_multiplier" in ran else ran["sigma"]),
        last_sigma=float(ran["last sigma"]),
        warnings=list(found.warnings),
        seconds=seconds,
        curve=curve,
    )


BOUNDS = {"adult": 20.0, "mnist": 25.0}
"""C for batches of 64, Table II."""


def _spent(cell: Cell, plan: Plan, records: int) -> float:
    """What theorem 4 makes of the cell's noise held for all iterations."""
    method = RdpGan(bound=BOUNDS[cell.data], iterations=plan.iterations)
    sensitivity = claims.loss_sensitivity(method.bound, method.batch_size)
    assert cell.sigma is not None
    rate, steps = min(1.0, method.batch_size / records), method.discriminator_steps
    one = claims.iteration_epsilon(rate, method.order, sensitivity, cell.sigma, steps, 1e-5)
    return plan.iterations * one


def method_for(cell: Cell, plan: Plan) -> Any:
    """The method of a cell with its settings."""
    rows = min(plan.test, plan.records[cell.data])
    if cell.method in ("none", "rdp-gan"):
        settings: dict[str, Any] = {
            "iterations": cell.iterations or plan.iterations,
            "model": cell.model or plan.networks[cell.data],
            "lr": cell.lr or plan.lrs[cell.data],
            "every": max(1, plan.iterations // 10),
            # A schedule that is to end with a budget is given the budget, not the noise.
            "sigma": 0.0 if cell.method == "none" else cell.sigma if cell.tuning == "constant" else None,
            "bound": BOUNDS[cell.data],
            **({} if cell.noise_on is None else {"noise_on": cell.noise_on}),
            **({} if cell.threshold is None else {"threshold": cell.threshold}),
        }
        name = "rdp-gan"
    elif cell.method == "zero-gan":
        settings, name = dict(plan.zero_gan), cell.method
    else:
        settings, name = dict(plan.dp_gan[cell.data] if cell.tuning == "constant" else plan.dp_gan_tuned), cell.method
    return methods.build(name, {**settings, "rows": rows, "tuning": cell.tuning, "decay": cell.decay})

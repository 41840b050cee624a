"""Phan et al. (2017): noise at the inputs, adaptive by relevance, beside DP-SGD and beside a sibling with a proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch

from noiseproof.audits import AuditResult, audit
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.errors import SettingError
from noiseproof.methods.baseline import Baseline
from noiseproof.methods.inputs import Adlm, Ilm
from noiseproof.methods.inputs.adlm import PAPER
from noiseproof.methods.inputs.relevance import average
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases import bundles
from noiseproof.releases.release import ModelRelease, accuracy
from papers.phan import lemma7
from papers.phan.cells import (
    Cell,
    CellResult,
    MeanRelevances,
    every_cell,
    records,
    relevance_bundle,
    relevance_file,
    run,
)
from papers.phan.figures import accuracy_figure, noised_relevances, relevance_figure
from papers.phan.plans import EXPLAINING, LONGER, PLANS, PROGRAM, TRAINED, Plan, Setting
from papers.phan.tables import (
    accuracy_table,
    audits_table,
    epochs_table,
    explaining_table,
    gains_table,
    lemma_table,
    promises_table,
    relevances_table,
)
from papers.store import Store, settings
from papers.study import Report, Setup, Study, register

SETS = ("mnist", "cifar10")
_TRIALS = 500


class _Cells(Store[Cell, CellResult]):
    """Finished cells: each belongs to its own data set's setting, whichever others, and whichever curves, the plan has."""

    def __init__(self, setup: Setup[Plan]) -> None:
        super().__init__(setup.out / "cells", {"delta": setup.plan.delta, "points": setup.plan.points}, CellResult)
        self._setup = setup

    def belongs(self, cell: Cell) -> dict[str, Any]:
        setting = next(one for one in self._setup.plan.settings if one.data == cell.data)
        aside = ["curves", "maps"]
        if cell.curve not in LONGER:
            aside.append("longer")
        if cell.curve in TRAINED or cell.curve.endswith(PROGRAM):
            aside.append("over_epochs")
            if cell.epsilon is not None:
                aside.append("epsilons")
        return {**super().belongs(cell), **settings(setting, self._setup.seed, but=aside)}


@register
class Phan(Study[Plan, Cell, CellResult]):
    """What does noise at the inputs cost, does adapting it to relevance help, and what is left of the claim?"""

    name: ClassVar[str] = "phan"
    title: ClassVar[str] = "The adaptive Laplace mechanism"
    paper: ClassVar[str] = PAPER
    plans, kind = PLANS, CellResult
    partial: ClassVar[bool] = True

    def __init__(self, sets: Sequence[str] | None = None) -> None:
        """`sets` are the data sets to run, all of the plan's if None."""
        self._sets = sets

    def only(self, parts: Sequence[str]) -> Phan:
        """The study of these data sets."""
        names = [part.lower().replace("-", "") for part in parts]
        for name in names:
            if name not in SETS:
                raise SettingError(f"the paper has no data set {name!r}; it has {', '.join(SETS)}.")
        return Phan(names)

    def cells(self, plan: Plan) -> list[Cell]:
        """Every cell of the data sets that are there."""
        wanted = [setting for setting in plan.settings if self._sets is None or setting.data in self._sets]
        return every_cell(plan, [setting.data for setting in wanted if _there(setting)])

    def results(self, cells: Sequence[Cell], setup: Setup[Plan]) -> dict[Cell, CellResult]:
        """As for every study, with the networks trained first that give cells their relevances."""
        for setting in _settings(cells, setup.plan):
            if not (setup.resume and relevance_file(setup.out, setting).exists()):
                _train_network(setting, setup)
        return super().results(cells, setup)

    def store(self, setup: Setup[Plan]) -> Store[Cell, CellResult]:
        """Where the results are kept."""
        return _Cells(setup)

    def work(self, setup: Setup[Plan], cell: Cell) -> CellResult:
        """One cell."""
        return (setup.runner or run)(cell, setup.plan, setup.out, setup.seed)

    def report(self, results: Mapping[Cell, CellResult], setup: Setup[Plan]) -> Report:
        """Accuracies and relevances of each data set; promises, audits and lemma 7."""
        plan, out, seed = setup.plan, setup.out, setup.seed
        there = _settings(results, plan)
        points = [point for result in results.values() for point in result.points]
        tables, figures = [], []
        for setting in there:
            kept = MeanRelevances.read(relevance_file(out, setting))
            tables.append(accuracy_table(points, setting, plan, kept.accuracy))
            tables.append(gains_table(points, setting))
            if any(curve in EXPLAINING for curve in setting.curves):
                tables.append(explaining_table(points, setting))
            figures.append(accuracy_figure(points, setting, kept.accuracy, out))
            if setting.over_epochs:
                tables.append(epochs_table(points, setting))
            share = setting.shares[0] / sum(setting.shares)
            private = noised_relevances(setting, kept.tensor, share, tuple(sorted(setting.epsilons)[:4]), seed)
            tables.append(relevances_table(setting.data, kept.tensor, private))
            # A folder that others computed holds no network.
            if (bundle := relevance_bundle(out, setting)).exists():
                network = bundles.load(bundle)
                assert isinstance(network, ModelRelease)
                figures.append(relevance_figure(setting, network, kept.tensor, private, out))
        tables.append(promises_table(points, plan))
        if plan.audits:
            tables.append(audits_table(_audits(seed)))
        tables.append(lemma_table(lemma7.measure(records(there[0])[0], plan.lemma_records)))
        return tables, figures


def _there(setting: Setting) -> bool:
    return find(named_sets()[setting.data]) is not None


def _settings(cells: Collection[Cell], plan: Plan) -> list[Setting]:
    data = {cell.data for cell in cells}
    return [setting for setting in plan.settings if setting.data in data]


def _train_network(setting: Setting, setup: Setup[Plan]) -> None:
    """Train without noise, for relevances and as the baseline; kept as a bundle that the cells read."""
    train, test = records(setting)
    if setting.relevance_records is not None:
        train = train.take(torch.arange(setting.relevance_records))
    release = Baseline(epochs=setting.relevance_epochs, batch_size=128).fit(
        setting.recipe(train.public.shape, train.classes),
        train,
        Budget(1.0),
        rng=Reproducible(setup.seed),
        progress=setup.progress,
    )
    release.save(relevance_bundle(setup.out, setting))
    mean = average(release.module, train.features)
    MeanRelevances(accuracy(release, test), mean.tolist()).write(relevance_file(setup.out, setting))


def _audits(seed: int) -> dict[str, AuditResult]:
    methods = {
        "adlm, draw=batch": Adlm(draw="batch"),
        "ilm, draw=batch": Ilm(draw="batch"),
        "adlm, draw=record": Adlm(),
        "ilm, draw=record": Ilm(),
    }
    return {
        name: audit(method.game(Budget(1.0)), trials=_TRIALS, seed=seed, timeout=None)
        for name, method in methods.items()
    }

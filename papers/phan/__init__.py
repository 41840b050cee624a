"""Phan et al. (2017): noise at the inputs, adaptive by relevance, beside DP-SGD and beside a sibling with a proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from noiseproof.audits import AuditResult, audit
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.errors import SettingError
from noiseproof.methods.baseline import Baseline
from noiseproof.methods.inputs import Adlm, Ilm
from noiseproof.methods.inputs.adlm import PAPER
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases import bundles
from noiseproof.releases.release import ModelRelease, accuracy
from papers.phan import lemma7
from papers.phan.cells import Cell, CellResult, averaged, every_cell, records, relevance_bundle, run
from papers.phan.figures import accuracy_figure, measure_relevances, relevance_figure
from papers.phan.plans import PLANS, Plan, Setting
from papers.phan.tables import (
    accuracy_table,
    audits_table,
    epochs_table,
    gains_table,
    lemma_table,
    promises_table,
    relevances_table,
)
from papers.study import Report, Setup, Study, register

SETS = ("mnist", "cifar10")
_TRIALS = 500


@register
class Phan(Study[Plan, Cell, CellResult]):
    """What does noise at the inputs cost, does adapting it to relevance help, and what is left of the claim?"""

    name: ClassVar[str] = "phan"
    title: ClassVar[str] = "The adaptive Laplace mechanism"
    paper: ClassVar[str] = PAPER
    plans, kind, growing = PLANS, CellResult, True

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
            if not (setup.resume and relevance_bundle(setup.out, setting).exists()):
                _train_network(setting, setup)
        return super().results(cells, setup)

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
            network = bundles.load(relevance_bundle(out, setting))
            assert isinstance(network, ModelRelease)
            baseline = accuracy(network, records(setting)[1])
            tables.append(accuracy_table(points, setting, plan, baseline))
            tables.append(gains_table(points, setting))
            figures.append(accuracy_figure(points, setting, baseline, out))
            if setting.over_epochs:
                tables.append(epochs_table(points, setting))
            share = setting.shares[0] / sum(setting.shares)
            found = measure_relevances(setting, network, share, setting.epsilons[:4], seed)
            tables.append(relevances_table(setting.data, found.plain, found.private))
            figures.append(relevance_figure(found, out))
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
    train, _ = records(setting)
    release = Baseline(epochs=setting.relevance_epochs, batch_size=128).fit(
        setting.recipe(train.public.shape, train.classes),
        train,
        Budget(1.0),
        rng=Reproducible(setup.seed),
        progress=setup.progress,
    )
    bundle = relevance_bundle(setup.out, setting)
    release.save(bundle)
    averaged(bundle).unlink(missing_ok=True)


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

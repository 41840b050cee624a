"""The study of Phan et al. (2017): figures 1 and 3 to 5, what is claimed, proven and audited, and lemma 7."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from noiseproof import bundles
from noiseproof.audits import AuditResult, audit
from noiseproof.baseline import Baseline
from noiseproof.data.library import find, named_sets
from noiseproof.errors import DataError
from noiseproof.guarantees import Budget, Reproducible
from noiseproof.inputs import Adlm, Ilm
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import ModelRelease, accuracy
from noiseproof.studies.phan import lemma7, pictures, published
from noiseproof.studies.phan.cells import cells, records, relevance_bundle
from noiseproof.studies.phan.cells import run as _run
from noiseproof.studies.phan.experiment import Runner, run_all
from noiseproof.studies.phan.figures import accuracy_figure, relevance_figure
from noiseproof.studies.phan.plans import PLANS, Plan, Setting
from noiseproof.studies.phan.store import Store
from noiseproof.studies.phan.tables import accuracy_table, audits_table, epochs_table, lemma_table, promises_table
from noiseproof.studies.study import Scale, Study, StudyResult, prepare, register

_TRIALS = 500


@register
class Phan(Study):
    """What does noise at the inputs cost, does adapting it to relevance help, and what is left of the claim?"""

    name: ClassVar[str] = "phan"
    title: ClassVar[str] = "The adaptive Laplace mechanism"
    paper: ClassVar[str] = published.PAPER

    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        runner: Runner | None = None,
        workers: int | None = None,
        plan: Plan | None = None,
    ) -> StudyResult:
        """Run every cell of the data sets that are there, or with `resume` those that are missing in `out`.

        `runner` runs one cell (`cells.run` if None); `workers` are processes, one a core if None; `plan` stands in for the
        scale's.
        """
        plan = PLANS[scale] if plan is None else plan
        settings = [setting for setting in plan.settings if _there(setting)]
        if not settings:
            raise DataError(
                "none of the paper's data sets was found; `noiseproof data` says where to get them, and NOISEPROOF_DATA "
                "where they are looked for."
            )
        out = prepare(out)
        store = Store(out, plan, seed)
        if not resume:
            store.clear()
        networks = {setting.data: _network(setting, out, seed, progress, resume) for setting in settings}
        results = run_all(
            cells(plan, [setting.data for setting in settings]),
            plan,
            store,
            out,
            seed=seed,
            runner=runner or _run,
            progress=progress,
            workers=workers,
        )
        points = [point for result in results for point in result.points]
        tables, figures = [], []
        for setting in settings:
            network = networks[setting.data]
            baseline = accuracy(network, records(setting)[1])
            tables += [accuracy_table(points, setting, plan, baseline)]
            figures.append(accuracy_figure(points, setting, baseline, out))
            if setting.over_epochs:
                tables.append(epochs_table(points, setting))
            share = Adlm().parts(1.0)[0]
            found = pictures.measure(setting, network, share, setting.epsilons[:4], seed)
            figures.append(relevance_figure(found, out))
        tables += [promises_table(points, plan), audits_table(_audits(seed))]
        tables.append(lemma_table(lemma7.measure(records(settings[0])[0], plan.lemma_records)))
        for table in tables:
            table.write(out)
        return StudyResult(tuple(tables), tuple(figures), out)


def _there(setting: Setting) -> bool:
    found = find(named_sets()[setting.data])
    return found is not None


def _network(setting: Setting, out: Path, seed: int, progress: Progress, resume: bool) -> ModelRelease:
    """The network trained without noise, for relevances and as the baseline; kept as a bundle that the cells read."""
    path = relevance_bundle(out, setting)
    if resume and path.exists():
        kept = bundles.load(path)
        assert isinstance(kept, ModelRelease)
        return kept
    train, _ = records(setting)
    network = setting.recipe(train.public.shape, train.classes)
    release = Baseline(epochs=setting.relevance_epochs, batch=128).fit(
        network, train, Budget(1.0), rng=Reproducible(seed), progress=progress
    )
    release.save(path)
    return release


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

"""The study of Mao et al. (2020): figures 4 to 12, and what the claims are worth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from noiseproof.data.library import find, named_sets
from noiseproof.errors import DataError
from noiseproof.progress import SILENT, Progress
from noiseproof.studies.mao import leakage, published, quality
from noiseproof.studies.mao.figures import every_figure
from noiseproof.studies.mao.plans import PLANS, Plan
from noiseproof.studies.mao.store import Store
from noiseproof.studies.mao.tables import every_table
from noiseproof.studies.study import Scale, Study, StudyResult, prepare, register


@register
class Mao(Study):
    """How accurate is a network drawn from many, what does it leak, and what does its epsilon mean?"""

    name: ClassVar[str] = "mao"
    title: ClassVar[str] = "Publish a network drawn from many networks' parameters"
    paper: ClassVar[str] = published.PAPER

    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        plan: Plan | None = None,
        workers: int | None = None,
    ) -> StudyResult:
        """Run what `out` does not hold yet (with `resume`; else everything) of the data sets that are there.

        `plan` stands in for the scale's; `workers` are processes that train networks, one a core if None.
        """
        plan = PLANS[scale] if plan is None else plan
        workers = _cores() if workers is None else workers
        wanted = list(dict.fromkeys([*(part.data for part in plan.quality), plan.attack.data]))
        there = [data for data in wanted if find(named_sets()[data]) is not None]
        if not there:
            raise DataError(
                "none of the paper's data sets was found; `noiseproof data` says where to get them, and NOISEPROOF_DATA "
                "where they are looked for."
            )
        out = prepare(out)
        store = Store(out, plan, seed)
        if not resume:
            store.clear()
        parts = [part for part in plan.quality if part.data in there]
        found: list[quality.Quality] = []
        leaks: tuple[leakage.Leak, ...] = ()
        with progress.task("study mao", len(parts) + (plan.attack.data in there)) as task:
            for part in parts:
                points = store.quality(part)
                if points is None:
                    points = quality.measure(part, plan, store.collections, seed=seed, workers=workers)
                    store.save_quality(part, points)
                found.append(points)
                task.advance(data=part.data)
            if plan.attack.data in there:
                leaks = store.leakage(plan.attack) or leakage.measure(
                    plan.attack, plan, store.collections, seed=seed, workers=workers
                )
                store.save_leakage(plan.attack, leaks)
                task.advance(attack=plan.attack.data)
        tables = every_table(found, leaks, plan, [data for data in wanted if data not in there])
        for table in tables:
            table.write(out)
        return StudyResult(tables, every_figure(found, leaks, out), out)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

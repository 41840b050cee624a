"""The study of Mao et al. (2020): figures 4 to 12, and what the claims are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.parallel.tasks import cores
from papers.mao import leakage, published, quality
from papers.mao.figures import every_figure
from papers.mao.leakage import Leakage
from papers.mao.plans import PLANS, Part, Plan, QualityPlan
from papers.mao.quality import Quality
from papers.mao.store import Found, Store
from papers.mao.tables import every_table
from papers.study import Report, Setup, Study, register


@register
class Mao(Study[Plan, Part, Found]):
    """How accurate is a network drawn from many, what does it leak, and what does its epsilon mean?"""

    name: ClassVar[str] = "mao"
    title: ClassVar[str] = "Publish a network drawn from many networks' parameters"
    paper: ClassVar[str] = published.PAPER
    plans = PLANS

    def cells(self, plan: Plan) -> list[Part]:
        """The parts whose data sets are there."""
        return [part for part in plan.parts if find(named_sets()[part.data]) is not None]

    def store(self, setup: Setup[Plan]) -> Store:
        """Finished parts."""
        return Store(setup.out, setup.plan, setup.seed)

    def compute(self, cells: Sequence[Part], setup: Setup[Plan]) -> Iterator[tuple[Part, Found]]:
        """One part after the other; each trains its networks on all workers."""
        folder, workers = setup.out / "collections", setup.workers or cores()
        measure = setup.runner or _measure
        for part in cells:
            yield part, measure(part, setup.plan, folder, setup.seed, workers)

    def report(self, results: Mapping[Part, Found], setup: Setup[Plan]) -> Report:
        """What the claims are worth, and figures 4 to 12 as tables and pictures."""
        found = [one for one in results.values() if isinstance(one, Quality)]
        leaks = [leak for one in results.values() if isinstance(one, Leakage) for leak in one.leaks]
        there = {part.data for part in results}
        missing = [data for data in dict.fromkeys(part.data for part in setup.plan.parts) if data not in there]
        return every_table(found, leaks, setup.plan, missing), every_figure(found, leaks, setup.out)


def _measure(part: Part, plan: Plan, folder: Path, seed: int, workers: int) -> Found:
    if isinstance(part, QualityPlan):
        return quality.measure(part, plan, folder, seed=seed, workers=workers)
    return Leakage(leakage.measure(part, plan, folder, seed=seed, workers=workers))

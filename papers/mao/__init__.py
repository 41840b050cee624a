"""Mao et al. (2020): a network drawn from the densities of many networks' parameters, beside DP-SGD and none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.parallel.tasks import cores
from papers.mao import leakage, quality
from papers.mao.figures import every_figure
from papers.mao.leakage import Leakage
from papers.mao.plans import PAPER, PLANS, Part, Plan, QualityPlan
from papers.mao.quality import Quality
from papers.mao.tables import every_table
from papers.store import Store, settings
from papers.study import Report, Setup, Study, register

Found: TypeAlias = Quality | Leakage


class _Parts(Store[Part, Found]):
    """Finished parts: each belongs to its own plan, whatever the plan of the others."""

    def __init__(self, setup: Setup[Plan]) -> None:
        belongs = {"sigma": setup.plan.sigma, "delta": setup.plan.delta}
        super().__init__(setup.out / "runs", belongs, Found, setup.out / "collections")
        self._seed = setup.seed

    def belongs(self, cell: Part) -> dict[str, Any]:
        return {**super().belongs(cell), **settings(cell, self._seed)}


@register
class Mao(Study[Plan, Part, Found]):
    """How accurate is a network drawn from many, what does it leak, and what does its epsilon mean?"""

    name: ClassVar[str] = "mao"
    title: ClassVar[str] = "Publish a network drawn from many networks' parameters"
    paper: ClassVar[str] = PAPER
    plans = PLANS

    def cells(self, plan: Plan) -> list[Part]:
        """The parts whose data sets are there."""
        return [part for part in plan.parts if find(named_sets()[part.data]) is not None]

    def store(self, setup: Setup[Plan]) -> _Parts:
        """Finished parts, with collections of networks beside them."""
        return _Parts(setup)

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

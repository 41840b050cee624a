"""Mao et al. (2020): a network drawn from the densities of many networks' parameters, beside DP-SGD and none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.errors import SettingError
from noiseproof.parallel.tasks import cores
from papers.mao import averaging, leakage, quality
from papers.mao.averaging import Averaging
from papers.mao.figures import every_figure
from papers.mao.leakage import Leakage
from papers.mao.plans import PAPER, PLANS, AttackPlan, Part, Plan, QualityPlan
from papers.mao.quality import Quality
from papers.mao.tables import every_table
from papers.store import Store, settings
from papers.study import Report, Setup, Study, register

Found: TypeAlias = Quality | Leakage | Averaging

SETS = ("mnist", "cifar10")


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
    partial: ClassVar[bool] = True
    plans = PLANS

    def __init__(self, sets: Sequence[str] | None = None) -> None:
        """`sets` are the data sets to run, all of the plan's if None."""
        self._sets = sets

    def only(self, parts: Sequence[str]) -> Mao:
        """The study of these data sets."""
        names = [part.lower().replace("-", "") for part in parts]
        for name in names:
            if name not in SETS:
                raise SettingError(f"the paper has no data set {name!r}; it has {', '.join(SETS)}.")
        return Mao(names)

    def cells(self, plan: Plan) -> list[Part]:
        """The parts whose data sets are there."""
        wanted = [part for part in plan.parts if self._sets is None or part.data in self._sets]
        return [part for part in wanted if find(named_sets()[part.data]) is not None]

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
        averaged = [one for one in results.values() if isinstance(one, Averaging)]
        there = {part.data for part in results}
        wanted = dict.fromkeys(part.data for part in setup.plan.parts if self._sets is None or part.data in self._sets)
        missing = [data for data in wanted if data not in there]
        return every_table(found, leaks, averaged, setup.plan, missing), every_figure(found, leaks, setup.out)


def _measure(part: Part, plan: Plan, folder: Path, seed: int, workers: int) -> Found:
    if isinstance(part, QualityPlan):
        return quality.measure(part, plan, folder, seed=seed, workers=workers)
    if isinstance(part, AttackPlan):
        return Leakage(leakage.measure(part, plan, folder, seed=seed, workers=workers))
    return averaging.measure(part, folder, seed=seed)

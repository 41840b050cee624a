"""Lu et al. (2022): private predictions from a convexified network, beside DP-SGD and beside siblings with a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from noiseproof.errors import SettingError
from papers.lu import published, run
from papers.lu.figures import every_figure
from papers.lu.plans import CANDIDATES, PLANS, Plan, available
from papers.lu.run import Repeat, RunResult
from papers.lu.summary import summaries
from papers.lu.tables import every_table
from papers.store import Store, settings
from papers.study import Report, Setup, Study, register


class Kept(Store[Repeat, RunResult]):
    """Finished repeats: of use to every plan that asks for the same of the row, however many rows and repeats it has."""

    def __init__(self, out: Path, plan: Plan, seed: int) -> None:
        self._plan = plan
        most = ("notes", "repeats", "more_repeats", "shadows", "more_shadows")
        super().__init__(out / "runs", settings(plan, seed, but=most), RunResult)

    def belongs(self, cell: Repeat) -> Mapping[str, Any]:
        """The plan's settings, and the row's shadow models."""
        return {**self._belongs, "shadows": self._plan.shadow_count(cell.row)}


@register
class Lu(Study[Plan, Repeat, RunResult]):
    """What do noisy answers of a secret network cost in accuracy, what do they leak, and what would a proof cost?"""

    name: ClassVar[str] = "lu"
    title: ClassVar[str] = "Private predictions from a convexified network"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    plans = PLANS

    def __init__(self, rows: Sequence[str] = tuple(CANDIDATES)) -> None:
        """`rows` are names of the paper's tables to run (`Location`)."""
        for row in rows:
            if row not in CANDIDATES:
                raise SettingError(f"the paper has no data set {row!r}; it has {', '.join(CANDIDATES)}.")
        self._rows = tuple(rows)

    def only(self, parts: Sequence[str]) -> Lu:
        """The study of these rows of the paper's tables."""
        return Lu(parts)

    def cells(self, plan: Plan) -> list[Repeat]:
        """Every repeat of every data set that is there."""
        sets = [(row, data) for row in self._rows if (data := available(row)) is not None]
        return [Repeat(row, data, repeat) for row, data in sets for repeat in range(plan.repeats_of(row))]

    def store(self, setup: Setup[Plan]) -> Kept:
        """Finished repeats."""
        return Kept(setup.out, setup.plan, setup.seed)

    def work(self, setup: Setup[Plan], cell: Repeat) -> RunResult:
        """One repeat of one data set."""
        return (setup.runner or run.run)(*cell, setup.plan, setup.seed)

    def report(self, results: Mapping[Repeat, RunResult], setup: Setup[Plan]) -> Report:
        """Every table and figure over the repeats."""
        found = summaries(list(results.values()))
        there = {cell.row for cell in results}
        missing = [row for row in self._rows if row not in there]
        return every_table(found, setup.plan, missing), every_figure(found, setup.out)

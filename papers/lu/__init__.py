"""Lu et al. (2022): private predictions from a convexified network, beside DP-SGD and beside siblings with a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from noiseproof.errors import SettingError
from papers.lu import published, run
from papers.lu.figures import every_figure
from papers.lu.plans import CANDIDATES, PLANS, Plan, available
from papers.lu.run import Repeat, RunResult
from papers.lu.summary import summaries
from papers.lu.tables import every_table
from papers.study import Report, Setup, Study, register


@register
class Lu(Study[Plan, Repeat, RunResult]):
    """What do noisy answers of a secret network cost in accuracy, what do they leak, and what would a proof cost?"""

    name: ClassVar[str] = "lu"
    title: ClassVar[str] = "Private predictions from a convexified network"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    plans, kind, folder, growing = PLANS, RunResult, "runs", True

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
        return [Repeat(row, data, repeat) for row, data in sets for repeat in range(plan.repeats)]

    def work(self, setup: Setup[Plan], cell: Repeat) -> RunResult:
        """One repeat of one data set."""
        return (setup.runner or run.run)(*cell, setup.plan, setup.seed)

    def report(self, results: Mapping[Repeat, RunResult], setup: Setup[Plan]) -> Report:
        """Every table and figure over the repeats."""
        found = summaries(list(results.values()))
        there = {cell.row for cell in results}
        missing = [row for row in self._rows if row not in there]
        return every_table(found, setup.plan, missing), every_figure(found, setup.out)

"""The study of Lu et al. (2022): Tables 5 and 6, figures 2 to 13, and how many answers pay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from noiseproof.errors import SettingError
from papers.lu import published
from papers.lu.figures import every_figure
from papers.lu.plans import PLANS, Plan
from papers.lu.run import Repeat, RunResult, run
from papers.lu.sets import CANDIDATES, available
from papers.lu.summary import summaries
from papers.lu.tables import every_table
from papers.store import Store, settings
from papers.study import Report, Setup, Study, on_workers, register


@register
class Lu(Study[Plan, Repeat, RunResult]):
    """What do noisy answers of a secret network cost in accuracy, what do they leak, and what would a proof cost?"""

    name: ClassVar[str] = "lu"
    title: ClassVar[str] = "Private predictions from a convexified network"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True
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
        return [Repeat(row, data, repeat) for row, data in sets for repeat in range(plan.repeats)]

    def store(self, setup: Setup[Plan]) -> Store[Repeat, RunResult]:
        """Finished repeats, of use to a plan with more of them."""
        belongs = settings(setup.plan, setup.seed, but=("notes", "repeats"))
        return Store(setup.out / "runs", belongs, RunResult.from_json)

    def compute(self, cells: Sequence[Repeat], setup: Setup[Plan]) -> Iterator[tuple[Repeat, RunResult]]:
        """Every repeat on a worker."""
        return on_workers(_work, cells, setup)

    def report(self, results: Mapping[Repeat, RunResult], setup: Setup[Plan]) -> Report:
        """Every table and figure over the repeats."""
        found = summaries(list(results.values()))
        there = {cell.row for cell in results}
        missing = [row for row in self._rows if row not in there]
        return every_table(found, setup.plan, missing), every_figure(found, setup.out)


def _work(setup: Setup[Plan], cell: Repeat) -> RunResult:
    return (setup.runner or run)(*cell, setup.plan, setup.seed)

"""Lin et al. (2020): noise first, clip second; which factors matter? 96 cells, a sweep, a comparison, and their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from papers.lin import design, published
from papers.lin.design import PLANS, Cell, Plan
from papers.lin.figures import every_figure
from papers.lin.results import CellResult, Store
from papers.lin.tables import every_table
from papers.lin.training import train_cells
from papers.study import Report, Setup, Study, register


@register
class Lin(Study[Plan, Cell, CellResult]):
    """Does it matter whether noise comes before clipping or after it, and for what else does it?"""

    name: ClassVar[str] = "lin"
    title: ClassVar[str] = "Noise first, clip second: which factors matter?"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True
    plans = PLANS

    def cells(self, plan: Plan) -> tuple[Cell, ...]:
        """Every training; the plan says only how large they are."""
        return design.every_cell()

    def store(self, setup: Setup[Plan]) -> Store:
        """Finished trainings."""
        return Store(setup.out, setup.plan, setup.seed)

    def compute(self, cells: Sequence[Cell], setup: Setup[Plan]) -> Iterator[tuple[Cell, CellResult]]:
        """Every cell on a worker, those without noise first."""
        return train_cells(cells, setup)

    def report(self, results: Mapping[Cell, CellResult], setup: Setup[Plan]) -> Report:
        """Tables 3 to 12, what the paper got wrong, and its figures."""
        return every_table(results, setup.plan), every_figure(results, setup.out)

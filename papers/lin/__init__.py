"""Lin et al. (2020): noise first, clip second; which factors matter? 96 cells, a sweep, a comparison, and their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from noiseproof.errors import SettingError
from papers.lin import design, published
from papers.lin.design import PLANS, Cell, Plan
from papers.lin.figures import every_figure
from papers.lin.results import CellResult, Store
from papers.lin.statistics import FACTORS
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
    partial: ClassVar[bool] = True
    plans = PLANS

    def __init__(self, sets: Sequence[str] = FACTORS["data"]) -> None:
        """`sets` are the data sets to run."""
        for name in sets:
            if name not in FACTORS["data"]:
                raise SettingError(f"the paper has no data set {name!r}; it has {', '.join(FACTORS['data'])}.")
        self._sets = tuple(sets)

    def only(self, parts: Sequence[str]) -> Lin:
        """The study of these data sets."""
        return Lin([part.lower().replace("-", "") for part in parts])

    def cells(self, plan: Plan) -> tuple[Cell, ...]:
        """Every training of the data sets; the plan says how large they are, or that initial weights are compared."""
        cells = design.compared(plan.repeats) if plan.repeats else design.every_cell()
        return tuple(cell for cell in cells if cell.data in self._sets)

    def store(self, setup: Setup[Plan]) -> Store:
        """Finished trainings."""
        return Store(setup.out, setup.plan, setup.seed)

    def compute(self, cells: Sequence[Cell], setup: Setup[Plan]) -> Iterator[tuple[Cell, CellResult]]:
        """Every cell on a worker, those without noise first."""
        return train_cells(cells, setup)

    def report(self, results: Mapping[Cell, CellResult], setup: Setup[Plan]) -> Report:
        """Tables 3 to 12, what the paper got wrong, and its figures."""
        tables = every_table(results, setup.plan)
        drawn = design.own(results) if setup.plan.repeats else results
        whole = all(cell in drawn for cell in (*design.factorial(), *design.baselines()))
        return tables, every_figure(drawn, setup.out) if whole else ()

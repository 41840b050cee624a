"""The study of Ma et al. (2020): figure 3, Tables II to V, figures 4 to 10."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from noiseproof.errors import DataError
from noiseproof.methods.losses.quality import pmf
from papers.ma import published
from papers.ma.cells import Cell, CellResult, every_cell, run_cell
from papers.ma.figures import every_figure
from papers.ma.losses import largest_losses
from papers.ma.plans import DATA, PLANS, Plan
from papers.ma.privacy import levels
from papers.ma.sets import available, pair
from papers.ma.tables import every_table
from papers.store import Store, settings
from papers.study import WHERE, Report, Setup, Study, on_workers, register


@register
class Ma(Study[Plan, Cell, CellResult]):
    """Does noise on a discriminator's loss protect, what is it good for, and what would a proof cost?"""

    name: ClassVar[str] = "ma"
    title: ClassVar[str] = "Noise on the loss of a discriminator"
    paper: ClassVar[str] = published.PAPER
    plans = PLANS

    def cells(self, plan: Plan) -> tuple[Cell, ...]:
        """Every training; both data sets are needed."""
        absent = [name for name in DATA if not available(name)]
        if absent:
            raise DataError(f"the study needs {' and '.join(absent)}; {WHERE}")
        return every_cell(plan)

    def store(self, setup: Setup[Plan]) -> Store[Cell, CellResult]:
        """Finished cells, with the pictures that they made."""
        return Store(_runs(setup), settings(setup.plan, setup.seed), CellResult.from_json)

    def compute(self, cells: Sequence[Cell], setup: Setup[Plan]) -> Iterator[tuple[Cell, CellResult]]:
        """Every cell on a worker."""
        return on_workers(_work, cells, setup)

    def report(self, results: Mapping[Cell, CellResult], setup: Setup[Plan]) -> Report:
        """Tables II to V and figures 3 to 10."""
        plan, found = setup.plan, levels()
        tables = every_table(results, found, largest_losses(plan, setup.seed), plan)
        adult, _ = pair("adult", plan.records["adult"], plan.test, setup.seed)
        real = {name: part.numpy() for name, part in pmf(adult).items()}
        return tables, every_figure(results, found, real, _runs(setup), setup.out)


def _work(setup: Setup[Plan], cell: Cell) -> CellResult:
    return (setup.runner or run_cell)(cell, setup.plan, _runs(setup), setup.seed)


def _runs(setup: Setup[Plan]) -> Path:
    return setup.out / "runs"

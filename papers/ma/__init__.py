"""Ma et al. (2020): noise on a discriminator's loss; figure 3, Tables II to V, figures 4 to 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from noiseproof.errors import DataError
from noiseproof.methods.losses.quality import pmf
from papers.ma import effect, published
from papers.ma.cells import Cell, CellResult, every_cell, run_cell
from papers.ma.figures import every_figure
from papers.ma.plans import DATA, PLANS, Plan, available, pair
from papers.ma.privacy import largest_losses, levels
from papers.ma.tables import every_table
from papers.store import Store, settings
from papers.study import WHERE, Report, Setup, Study, register


@register
class Ma(Study[Plan, Cell, CellResult]):
    """Does noise on a discriminator's loss protect, what is it good for, and what would a proof cost?"""

    name: ClassVar[str] = "ma"
    title: ClassVar[str] = "Noise on the loss of a discriminator"
    paper: ClassVar[str] = published.PAPER
    plans, kind, folder = PLANS, CellResult, "runs"

    def cells(self, plan: Plan) -> tuple[Cell, ...]:
        """Every training; both data sets are needed."""
        absent = [name for name in DATA if not available(name)]
        if absent:
            raise DataError(f"the study needs {' and '.join(absent)}; {WHERE}")
        return every_cell(plan)

    def store(self, setup: Setup[Plan]) -> Store[Cell, CellResult]:
        """Where the results are kept, whichever other seeds and decay rates the plan has."""
        belongs = settings(setup.plan, setup.seed, but=("notes", "repeats", "decays"))
        return Store(setup.out / self.folder, belongs, CellResult)

    def work(self, setup: Setup[Plan], cell: Cell) -> CellResult:
        """One training; the pictures that it makes are kept beside its result."""
        return (setup.runner or run_cell)(cell, setup.plan, setup.out / self.folder, setup.seed)

    def report(self, results: Mapping[Cell, CellResult], setup: Setup[Plan]) -> Report:
        """Tables II to V and figures 3 to 10."""
        plan, found = setup.plan, levels()
        largest = largest_losses(plan, setup.seed)
        adult, _ = pair("adult", plan.records["adult"], plan.test, setup.seed)
        real = {name: part.numpy() for name, part in pmf(adult).items()}
        if plan.repeats:
            return effect.every_table(results, found, largest, real, plan), ()
        figures = every_figure(results, found, real, setup.out / self.folder, setup.out)
        return every_table(results, found, largest, plan), figures

"""Ma et al. (2020): noise on a discriminator's loss; figure 3, Tables II to V, figures 4 to 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias

from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses.quality import pmf
from papers.ma import effect, published
from papers.ma.cells import Cell, CellResult, every_cell, run_cell
from papers.ma.figures import every_figure
from papers.ma.plans import DATA, PLANS, Plan, available, pair
from papers.ma.privacy import LargestLoss, LossCell, largest_loss, levels, loss_cells
from papers.ma.tables import every_table
from papers.store import Store, settings
from papers.study import WHERE, Report, Setup, Study, register

AnyCell: TypeAlias = Cell | LossCell
Found: TypeAlias = CellResult | LargestLoss


@register
class Ma(Study[Plan, AnyCell, Found]):
    """Does noise on a discriminator's loss protect, what is it good for, and what would a proof cost?"""

    name: ClassVar[str] = "ma"
    title: ClassVar[str] = "Noise on the loss of a discriminator"
    paper: ClassVar[str] = published.PAPER
    plans, kind, folder, partial = PLANS, Found, "runs", True

    def cells(self, plan: Plan) -> tuple[AnyCell, ...]:
        """Every training; both data sets are needed."""
        absent = [name for name in DATA if not available(name)]
        if absent:
            raise DataError(f"the study needs {' and '.join(absent)}; {WHERE}")
        return (*every_cell(plan), *loss_cells(plan))

    def finished(self, cells: Sequence[AnyCell], setup: Setup[Plan]) -> Sequence[AnyCell]:
        """Those of the cells whose results are kept; only the tables of scale effect can be made of some."""
        there = super().finished(cells, setup)
        if len(there) < len(cells) and not setup.plan.repeats:
            raise SettingError(
                f"the tables of scale {setup.plan.scale} need all of its {len(cells)} cells; use --resume."
            )
        return there

    def store(self, setup: Setup[Plan]) -> Store[AnyCell, Found]:
        """Where the results are kept, whichever other seeds and decay rates the plan has."""
        belongs = settings(setup.plan, setup.seed, but=("notes", "repeats", "decays"))
        return Store(setup.out / self.folder, belongs, Found)

    def work(self, setup: Setup[Plan], cell: AnyCell) -> Found:
        """One training; the pictures that it makes are kept beside its result."""
        return (setup.runner or _run)(cell, setup.plan, setup.out / self.folder, setup.seed)

    def report(self, results: Mapping[AnyCell, Found], setup: Setup[Plan]) -> Report:
        """Tables II to V and figures 3 to 10."""
        plan, found = setup.plan, levels()
        largest: dict[LossCell, LargestLoss] = {}
        runs: dict[Cell, CellResult] = {}
        for cell, one in results.items():
            if isinstance(cell, LossCell) and isinstance(one, LargestLoss):
                largest[cell] = one
            elif isinstance(cell, Cell) and isinstance(one, CellResult):
                runs[cell] = one
        adult, _ = pair("adult", plan.records["adult"], plan.test, setup.seed)
        real = {name: part.numpy() for name, part in pmf(adult).items()}
        if plan.repeats:
            return effect.every_table(runs, found, largest, real, plan), ()
        figures = every_figure(runs, found, real, setup.out / self.folder, setup.out)
        return every_table(runs, found, largest, plan), figures


def _run(cell: AnyCell, plan: Plan, folder: Path, seed: int) -> Found:
    return largest_loss(cell, plan, seed) if isinstance(cell, LossCell) else run_cell(cell, plan, folder, seed)

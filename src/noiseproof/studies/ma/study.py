"""The study of Ma et al. (2020): figure 3, Tables II to V, figures 4 to 10."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from noiseproof.errors import DataError
from noiseproof.losses.quality import pmf
from noiseproof.progress import SILENT, Progress
from noiseproof.studies.ma import published
from noiseproof.studies.ma.cells import every_cell, run_cell
from noiseproof.studies.ma.experiment import Runner, Store, run_cells
from noiseproof.studies.ma.figures import every_figure
from noiseproof.studies.ma.losses import largest_losses
from noiseproof.studies.ma.plans import DATA, PLANS, Plan
from noiseproof.studies.ma.privacy import levels
from noiseproof.studies.ma.sets import available, pair
from noiseproof.studies.ma.tables import every_table
from noiseproof.studies.study import Scale, Study, StudyResult, prepare, register


@register
class Ma(Study):
    """Does noise on a discriminator's loss protect, what is it good for, and what would a proof cost?"""

    name: ClassVar[str] = "ma"
    title: ClassVar[str] = "Noise on the loss of a discriminator"
    paper: ClassVar[str] = published.PAPER

    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        runner: Runner | None = None,
        workers: int | None = None,
        plan: Plan | None = None,
    ) -> StudyResult:
        """Run every cell, or with `resume` those that are missing in `out`; write tables and figures there.

        `runner` runs one cell (`cells.run_cell` if None); `workers` are processes, one a core if None; `plan` stands in
        for the scale's.
        """
        plan = PLANS[scale] if plan is None else plan
        absent = [name for name in DATA if not available(name)]
        if absent:
            raise DataError(
                f"the study needs {' and '.join(absent)}; `noiseproof data` says where to get them, and NOISEPROOF_DATA "
                "where they are looked for."
            )
        out = prepare(out)
        store = Store(out, plan, seed)
        if not resume:
            store.clear()
        cells = every_cell(plan)
        results = run_cells(
            cells, plan, store, seed=seed, runner=runner or run_cell, progress=progress, workers=workers
        )
        found = levels()
        tables = every_table(results, found, largest_losses(plan, seed), plan)
        for table in tables:
            table.write(out)
        adult, _ = pair("adult", plan.records["adult"], plan.test, seed)
        real = {name: part.numpy() for name, part in pmf(adult).items()}
        return StudyResult(tables, every_figure(results, found, real, store.folder, out), out)

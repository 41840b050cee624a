"""The study of Lin et al. (2020): 96 cells, a sweep, a comparison, and the statistics of it all."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from noiseproof.progress import SILENT, Progress
from noiseproof.studies.lin import design, published
from noiseproof.studies.lin.experiment import Train, run_cells
from noiseproof.studies.lin.figures import every_figure
from noiseproof.studies.lin.plans import PLANS
from noiseproof.studies.lin.results import Store
from noiseproof.studies.lin.tables import every_table
from noiseproof.studies.study import Scale, Study, StudyResult, prepare, register


@register
class Lin(Study):
    """Does it matter whether noise comes before clipping or after it, and for what else does it?"""

    name: ClassVar[str] = "lin"
    title: ClassVar[str] = "Noise first, clip second: which factors matter?"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True

    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        train: Train | None = None,
        workers: int | None = None,
    ) -> StudyResult:
        """Train every cell, or with `resume` those that are missing in `out`; write tables and figures there.

        `train` trains one cell (`training.train_cell` if None); `workers` are processes, one a core if None.
        """
        if train is None:
            from noiseproof.studies.lin.training import train_cell

            train = train_cell
        plan, out = PLANS[scale], prepare(out)
        store = Store(out, plan, seed)
        if not resume:
            store.clear()
        results = run_cells(
            design.every_cell(), plan, store, seed=seed, train=train, progress=progress, workers=workers
        )
        tables = every_table(results, plan)
        for table in tables:
            table.write(out)
        return StudyResult(tables, every_figure(results, out), out)

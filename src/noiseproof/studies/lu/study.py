"""The study of Lu et al. (2022): Tables 5 and 6, figures 2 to 13, and how many answers pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from noiseproof.errors import DataError, SettingError
from noiseproof.progress import SILENT, Progress
from noiseproof.studies.lu import published
from noiseproof.studies.lu.experiment import Runner, run_all
from noiseproof.studies.lu.figures import every_figure
from noiseproof.studies.lu.plans import PLANS, Plan
from noiseproof.studies.lu.run import run as _run
from noiseproof.studies.lu.sets import CANDIDATES, available
from noiseproof.studies.lu.store import Store
from noiseproof.studies.lu.summary import summaries
from noiseproof.studies.lu.tables import every_table
from noiseproof.studies.study import Scale, Study, StudyResult, prepare, register


@register
class Lu(Study):
    """What do noisy answers of a secret network cost in accuracy, what do they leak, and what would a proof cost?"""

    name: ClassVar[str] = "lu"
    title: ClassVar[str] = "Private predictions from a convexified network"
    paper: ClassVar[str] = published.PAPER
    on_clusters: ClassVar[bool] = True

    def __init__(self, rows: Sequence[str] = tuple(CANDIDATES)) -> None:
        """`rows` are names of the paper's tables to run (`Location`)."""
        for row in rows:
            if row not in CANDIDATES:
                raise SettingError(f"the paper has no data set {row!r}; it has {', '.join(CANDIDATES)}.")
        self._rows = tuple(rows)

    def only(self, parts: Sequence[str]) -> Lu:
        """The study of these rows of the paper's tables."""
        return Lu(parts)

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
        """Run every repeat of every data set that is there, or with `resume` those that are missing in `out`.

        `runner` runs one repeat (`run.run` if None); `workers` are processes, one a core if None; `plan` stands in for
        the scale's.
        """
        plan = PLANS[scale] if plan is None else plan
        sets = [(row, data) for row in self._rows if (data := available(row)) is not None]
        if not sets:
            raise DataError(
                "none of the paper's data sets was found; `noiseproof data` says where to get them, and NOISEPROOF_DATA "
                "where they are looked for."
            )
        out = prepare(out)
        store = Store(out, plan, seed)
        if not resume:
            store.clear()
        results = run_all(sets, plan, store, seed=seed, runner=runner or _run, progress=progress, workers=workers)
        found = summaries(results)
        missing = [row for row in self._rows if row not in {row for row, _ in sets}]
        tables = every_table(found, plan, missing)
        for table in tables:
            table.write(out)
        return StudyResult(tables, every_figure(found, out), out)

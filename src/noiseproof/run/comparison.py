"""Run every method on the data at one budget or several, each row in a process apart."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from noiseproof.errors import MissingPartError, NoiseproofError, SettingError
from noiseproof.files import write_whole
from noiseproof.parallel import Lost, Placement, tasks
from noiseproof.privacy.budget import check_neighbours
from noiseproof.releases import bundles
from noiseproof.run import cautions
from noiseproof.run.plan import ERRORS, REPORT, Folder, Plan, RowKey
from noiseproof.run.results import RESULTS, Comparison, DataFacts
from noiseproof.run.row import Row

if TYPE_CHECKING:
    from noiseproof.data.splits import Split


class Watch:
    """Hears how a comparison goes; this one ignores it. The command line's shows bars.

    Examples:
        >>> class Printed(Watch):
        ...     def finished(self, key, row, kept):
        ...         print(f"{key.name}: {row.status} in {row.seconds:.0f} seconds")
        >>> row = Row(method="dp-sgd", epsilon=3.0, delta=1e-5, status="done", seconds=2.0)
        >>> Printed().finished(RowKey("dp-sgd", 3.0), row, kept=False)  # as `compare(plan, watch=Printed())` calls it
        dp-sgd-3: done in 2 seconds
    """

    def loaded(self, data: DataFacts, rows: tuple[RowKey, ...], remarks: tuple[str, ...]) -> None:
        """The data are loaded, and these rows are to come."""

    def at(self, key: RowKey, what: str, done: int, total: int) -> None:
        """A row has come so far in what it is doing."""

    def finished(self, key: RowKey, row: Row, kept: bool) -> None:
        """A row is finished, or was kept from an earlier run."""

    def trouble(self, sentence: str) -> None:
        """Something went wrong that does not stop the comparison."""


SILENT_WATCH = Watch()


def compare(
    plan: Plan,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    watch: Watch = SILENT_WATCH,
) -> Comparison:
    """Run the baseline and every method of the plan, and write rows, bundles, `results.json` and `report.html`.

    Each row is computed in a worker process: a method that raises, crashes or runs out of memory loses its own row,
    which says what happened. The rows depend on the plan alone, not on `jobs` or `ray` nor on which rows were kept; the
    seconds differ.

    Args:
        plan: What to compare.
        out: Folder for the results; by default `runs/compare-<data>`.
        jobs: Rows computed at a time; one for each core by default.
        ray: `auto` or the address of a Ray cluster, whose machines compute the rows instead.
        resume: Keep the finished rows of an interrupted run of the same plan on the same records.
        watch: Hears how it goes.

    Returns:
        The rows, what they recommend, and where the page is.

    Raises:
        SettingError: If the plan names what does not exist.
        DataError: If the records cannot be read.
        BundleError: If the folder holds something else.

    Examples:
        >>> comparison = compare(Plan(data="digits", methods=("none",), trials=100), "results", jobs=1)
        >>> [(row.method, row.status) for row in comparison.rows]
        [('none', 'done')]
        >>> comparison.sentence
        'At epsilon 3 on digits nothing that was run is proven.'

    Formal guarantee
    ----------------
    Each method spends the budget by itself, on the same records: release one of them. To release several, add up their
    budgets. A comparison is a rehearsal: the randomness is seeded, accuracies and attacks are measured on private records
    without noise, for their owner, and nothing of it should leave; train the chosen method anew, with secure randomness.
    Settings are chosen by public facts (`Method.for_records`), so that choosing among *methods* by these accuracies is
    the only look at the records that no guarantee accounts for.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.run import Plan
        >>> plan = Plan(data="breast-cancer", methods=("logits",), fits=1, trials=100)
        >>> # Not run here: its worker processes take tens of seconds.
        >>> found = npf.compare(plan, out="comparison")  # doctest: +SKIP
        >>> [row.method for row in found.rows]  # doctest: +SKIP
        ['none', 'logits']
        >>> found.report  # doctest: +SKIP
        'comparison/report.html'
    """
    Placement(jobs, ray)
    folder = Folder(out if out is not None else default_folder(plan.data), resume=resume)
    split, registered = tasks.perform(load_for, (), plan, threads=1)
    keys, facts, versions = plan.rows(registered), _facts(split), _versions()
    records = hashlib.sha256((split.train.fingerprint() + split.test.fingerprint()).encode()).hexdigest()
    folder.begin(plan, records, versions)
    doubts = dict.fromkeys(
        sentence
        for epsilon in plan.epsilons
        for sentence in cautions.about_budget(split.train.persons, plan.budget(epsilon))
    )
    watch.loaded(facts, keys, (*split.remarks, *doubts, *cautions.about_split(split)))
    rows = {key: row for key in keys if (row := folder.kept(key)) is not None}
    for key, row in rows.items():
        watch.finished(key, row, True)
    left = [key for key in keys if key not in rows]

    def lost(key: RowKey, loss: Lost) -> tuple[Row, bundles.Contents]:
        return _failed(key, plan, loss.why, 0.0), {}

    log = folder.path / ERRORS
    for index, (row, contents) in tasks.run(
        _compute,
        left,
        common=(plan, split, ray is None),
        jobs=jobs,
        ray=ray,
        attempts=1 if ray is None else 3,
        isolated=True,
        log=log,
        lost=lost,
        report=lambda index, *at: watch.at(left[index], *at),
    ):
        key = left[index]
        if contents:
            row = _save(row, contents, folder.bundles / key.name)
        try:
            folder.keep(key, row)
        except OSError as error:
            watch.trouble(f"the row of {key.name} could not be kept for --resume: {error.strerror}.")
        rows[key] = row
        watch.finished(key, row, False)
    if log.is_file() and not log.stat().st_size:
        log.unlink()
    return _publish(
        folder,
        Comparison(
            data=facts.name,
            baseline=rows[keys[0]].accuracy,
            epsilons=plan.epsilons,
            delta=plan.delta,
            neighbours=plan.budget(plan.epsilons[0]).neighbours,
            queries=plan.queries,
            rows=tuple(rows[key] for key in keys),
            about=facts,
            plan={**plan.to_json(), "data": Path(plan.data).name, "schema": plan.schema and Path(plan.schema).name},
            versions=versions,
            run=folder.run,
            report=str(folder.path / REPORT),
        ),
        watch,
    )


def default_folder(data: str) -> Path:
    """`runs/compare-<data>`."""
    return Path("runs") / f"compare-{Path(data).stem}"


def load_for(plan: Plan) -> tuple[Split, dict[str, bool]]:
    """The plan's records, and which methods have a proof; what the plan cannot run is refused before records are read."""
    from noiseproof import methods
    from noiseproof.attacks import attack_names
    from noiseproof.data import load
    from noiseproof.methods import recipes

    _import(plan)
    if plan.attack not in attack_names("answers"):
        known = ", ".join(attack_names("answers"))
        raise SettingError(f"--attack must be one of {known}, not {plan.attack!r}.")
    # What is as published may have a proof, but of a far larger epsilon than was asked for.
    registered: dict[str, bool] = {}
    for name, method in methods.registry().items():
        registered[name] = method.proves and method.paper is None
        registered |= {f"{name}:{reading}": False for reading in method.readings}
    plan.rows(registered)
    recipes.check(plan.recipe)
    near = check_neighbours(plan.neighbours)
    split = load(
        plan.data,
        target=plan.target,
        schema=plan.schema,
        seed=plan.seed,
        neighbours=near,
        task=plan.task,
        target_bounds=plan.target_bounds,
        person=plan.person,
        skip=plan.skip,
        encoding=plan.encoding,
    )
    return split, registered


def _import(plan: Plan) -> None:
    # What the user's module prints must not get into a command's output.
    with contextlib.redirect_stdout(sys.stderr):
        for module in plan.imports:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                raise SettingError(f"there is no module {module!r} to import methods from.") from None


def _facts(split: Split) -> DataFacts:
    public = split.train.public
    return DataFacts(
        name=split.train.name,
        records=len(split.train),
        test_records=len(split.test),
        shape=public.shape,
        classes=len(public.classes),
        task=public.task,
        kind=public.kind,
        bounds=public.bounds,
        notes=public.notes,
        unit=split.train.unit,
    )


def _versions() -> dict[str, str]:
    import numpy
    import torch

    import noiseproof

    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "noiseproof": noiseproof.__version__,
        "python": python,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def _compute(plan: Plan, split: Split, log: bool, key: RowKey) -> tuple[Row, bundles.Contents]:
    """A row and its bundle, in a worker; where the method failed, a row that says how."""
    from noiseproof.run.row import compute_row

    started = time.perf_counter()
    try:
        _import(plan)
        row, release = compute_row(plan, key, split, tasks.task_progress())
        return row, bundles.pack(release)
    except Exception as error:
        if log:
            traceback.print_exc()
        return _failed(key, plan, describe_error(error), time.perf_counter() - started), {}


def _failed(key: RowKey, plan: Plan, error: str, seconds: float) -> Row:
    return Row(
        method=key.method,
        epsilon=key.epsilon,
        delta=plan.delta,
        status="failed",
        error=error,
        seconds=round(seconds, 3),
    )


_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators, which raise plain RuntimeErrors, say it."""


def describe_error(error: BaseException) -> str:
    """What happened, as a sentence without private values: of foreign errors only the type is stated."""
    if isinstance(error, NoiseproofError):
        return str(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    ):
        return "ran out of memory; try fewer records, a smaller batch or a smaller network."
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "the disk is full." if full else f"the operating system says: {error.strerror or type(error).__name__}."
    return f"something unforeseen went wrong ({type(error).__name__}); errors.log says where."


def _save(row: Row, contents: bundles.Contents, path: Path) -> Row:
    """The row with where its bundle is, or with what kept it from being saved: the numbers stand without it."""
    try:
        bundles.write(path, contents)
    except OSError as error:
        problem = f"its bundle was not saved: {describe_error(error)}"
        return row.model_copy(update={"problem": " ".join(filter(None, (row.problem, problem)))})
    return row.model_copy(update={"bundle": str(Path(path.parent.name) / path.name)})


def _publish(folder: Folder, comparison: Comparison, watch: Watch) -> Comparison:
    """Write results, page and pictures; what cannot be written is reported, and the rest stands."""
    from noiseproof.report import render, save_pictures

    try:
        write_whole(folder.path / RESULTS, comparison.model_dump_json(indent=1))
        write_whole(folder.path / REPORT, render([comparison]))
        save_pictures(comparison, folder.path / "pictures")
    except MissingPartError as error:
        watch.trouble(str(error))
    except OSError as error:
        watch.trouble(f"results, page or pictures could not be written to {folder.path}: {error.strerror}.")
        if not (folder.path / REPORT).is_file():
            return comparison.model_copy(update={"report": None})
    return comparison

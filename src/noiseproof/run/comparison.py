"""The verb: run every method on the data at one budget or several, each row in a process apart."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from noiseproof.parallel import tasks as scale
from noiseproof.parallel.tasks import Placement
from noiseproof.progress import SILENT
from noiseproof.run.plan import ERRORS, REPORT, Folder, Plan, Task
from noiseproof.run.processes import Message, Worker, introduction, run_tasks
from noiseproof.run.results import BASELINE, RESULTS, Comparison
from noiseproof.run.worker import failed, introduce, load_for, words

if TYPE_CHECKING:
    from noiseproof.data.splits import Split


class Watch:
    """Hears how a comparison goes; this one ignores it. The command line's shows bars."""

    def loaded(self, data: Mapping[str, Any], tasks: tuple[Task, ...], remarks: tuple[str, ...]) -> None:
        """The data are loaded, and these rows are to come."""

    def at(self, task: Task, what: str, done: int, total: int) -> None:
        """A row has come so far in what it is doing."""

    def finished(self, task: Task, row: Mapping[str, Any], kept: bool) -> None:
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
    which says what happened. `resume` keeps the finished rows of an interrupted run of the same plan on the same
    records. With `ray`, `auto` or the address of a cluster, rows are computed on its machines instead. The rows depend on
    the plan alone, not on `jobs` or `ray` nor on which rows were kept; the seconds differ.

    Formal guarantee
    ----------------
    Each method spends the budget by itself, on the same records: release one of them. To release several, add up their
    budgets. The randomness is seeded, for comparing: nothing of it should leave; train the chosen method anew with
    `noiseproof train --secure`. Accuracies and attacks are measured on private records without noise, for their owner.
    Settings are chosen by public facts (`settings_for`), so that choosing among *methods* by these accuracies is the
    only look at the records that no guarantee accounts for.
    """
    where = Placement(jobs, ray)
    folder = Folder(out if out is not None else default_folder(plan.data), resume=resume)
    inbox: SimpleQueue[tuple[Worker, Message]] = SimpleQueue()
    with (folder.path / ERRORS).open("ab" if resume else "wb") as log:

        def start() -> Worker:
            return Worker(plan, folder.bundles.resolve(), log, inbox)

        first: Worker | None = None
        if ray is None:
            first = start()
            hello = introduction(first, inbox)
        else:
            # Read here and sent to the machines: they need not have the file.
            split, registered = load_for(plan)
            hello = introduce(split, registered)
        tasks = plan.tasks(tuple(hello["registered"]))
        run = folder.begin(plan, hello["fingerprint"], hello["versions"])
        watch.loaded(hello["data"], tasks, tuple(hello["remarks"]))
        rows: dict[Task, dict[str, Any]] = {}
        for task in tasks:
            kept = folder.kept(task)
            if kept is not None:
                rows[task] = kept
                watch.finished(task, kept, True)

        def told(task: Task, message: Message) -> None:
            watch.at(task, message["at"], message["done"], message["total"])

        left = [task for task in tasks if task not in rows]
        if first is not None:
            found = run_tasks(plan, left, first=first, start=start, inbox=inbox, jobs=where.processes, told=told)
        else:
            found = cluster_rows(plan, left, split, folder.bundles.resolve(), where.ray or "auto")
        for row in found:
            task = Task(row["method"], row["epsilon"])
            rows[task] = row
            try:
                folder.keep(task, row)
            except OSError as error:
                watch.trouble(f"{task.key}'s row could not be kept for --resume: {error.strerror}.")
            watch.finished(task, row, False)
    if not (folder.path / ERRORS).stat().st_size:
        (folder.path / ERRORS).unlink()
    found_rows = [rows[task] for task in tasks]
    comparison = Comparison.model_validate(
        {
            "data": hello["data"]["name"],
            "baseline": next(row["accuracy"] for row in found_rows if row["method"] == BASELINE),
            "epsilons": plan.epsilons,
            "delta": plan.delta,
            "neighbours": plan.neighbours,
            "queries": plan.queries,
            "rows": found_rows,
            "about": hello["data"],
            "plan": {**plan.to_json(), "data": hello["data"]["name"], "schema": plan.schema and Path(plan.schema).name},
            "versions": hello["versions"],
            "run": run,
            "report": str(folder.path / REPORT),
        }
    )
    return _publish(folder, comparison, watch)


def _publish(folder: Folder, comparison: Comparison, watch: Watch) -> Comparison:
    """Write results, page and pictures; what cannot be written is told, and the rest stands."""
    from noiseproof.files import write_whole
    from noiseproof.report import render, save_pictures

    try:
        write_whole(folder.path / RESULTS, comparison.model_dump_json(indent=1))
        write_whole(folder.path / REPORT, render([comparison]))
        save_pictures(comparison, folder.path / "pictures")
    except OSError as error:
        watch.trouble(f"results, page or pictures could not be written to {folder.path}: {error.strerror}.")
        if not (folder.path / REPORT).is_file():
            return comparison.model_copy(update={"report": None})
    return comparison


def default_folder(data: str) -> Path:
    """`runs/compare-<data>`."""
    return Path("runs") / f"compare-{Path(data).stem}"


# Rows on a Ray cluster: each is computed on some machine and sent back with its bundle.


Row = dict[str, Any]


def cluster_rows(plan: Plan, tasks: Sequence[Task], split: Split, bundles: Path, ray: str) -> Iterator[Row]:
    """Rows as they are finished on the cluster at `ray`; bundles are written to `bundles`, on this machine.

    The records are sent to each machine once. A row whose machine dies is computed again elsewhere, three times at most.
    """

    def lost(task: Task, why: str) -> tuple[Row, dict[str, bytes]]:
        return failed(task, plan, why, 0.0), {}

    for place, (row, files) in scale.run(_row, tasks, common=(plan, split), ray=ray, lost=lost):
        if files:
            folder = bundles / tasks[place].key
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            row["bundle"] = str(Path(bundles.name) / folder.name)
        yield row


def _row(plan: Plan, split: Split, task: Task) -> tuple[Row, dict[str, bytes]]:
    """A row, and the files of its bundle."""
    from noiseproof.run.row import compute_row

    for module in plan.imports:
        importlib.import_module(module)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = compute_row(plan, task, split, Path(folder), SILENT)
        except Exception as error:
            return failed(task, plan, words(error), time.perf_counter() - started), {}
        saved = Path(folder) / task.key
        return row, {path.name: path.read_bytes() for path in saved.iterdir()} if saved.is_dir() else {}

"""Rows on a Ray cluster: each is computed on some machine and sent back with its bundle."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.compare.plan import Plan, Task
from noiseproof.compare.worker import failed, words
from noiseproof.progress import SILENT
from noiseproof.scale import tasks as scale

if TYPE_CHECKING:
    from noiseproof.data.splits import Split

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
    from noiseproof.compare.row import compute_row

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

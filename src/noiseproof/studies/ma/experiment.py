"""The experiment: every cell on all cores, kept as it is finished."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeAlias

import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress
from noiseproof.studies.ma.cells import Cell, CellResult
from noiseproof.studies.ma.plans import Plan

Runner: TypeAlias = Callable[[Cell, Plan, Path, int], CellResult]


class Store:
    """A folder of finished cells, one JSON file each; those of another plan or seed are refused, not mixed in."""

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self.folder = folder / "runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {key: value for key, value in dataclasses.asdict(plan).items() if key != "notes"}
        self._belongs = json.loads(json.dumps({"seed": seed, **settings}))

    def save(self, result: CellResult) -> None:
        """Keep a finished cell, whole or not at all."""
        path = self.folder / f"{result.key}.json"
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(json.dumps({"belongs": self._belongs, "result": result.to_json()}))
        staging.replace(path)

    def load(self, cell: Cell) -> CellResult | None:
        """The cell's result, if it is finished."""
        path = self.folder / f"{cell.key}.json"
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            belongs, result = document["belongs"], CellResult.from_json(document["result"])
        except (ValueError, KeyError, TypeError):
            raise NoiseproofError(f"{path} is not a finished run; delete it and resume.") from None
        if belongs != self._belongs:
            raise SettingError(
                f"{self.folder.parent} holds runs of another scale or seed; choose another folder, or do not resume."
            )
        return result

    def clear(self) -> None:
        """Forget every finished cell."""
        for path in self.folder.iterdir():
            path.unlink()


def run_cells(
    cells: Sequence[Cell],
    plan: Plan,
    store: Store,
    *,
    seed: int,
    runner: Runner,
    progress: Progress = SILENT,
    workers: int | None = None,
) -> dict[Cell, CellResult]:
    """Every cell that `store` does not hold yet; all of them. Workers are processes with one thread each."""
    results = {cell: found for cell in cells if (found := store.load(cell)) is not None}
    missing = [cell for cell in cells if cell not in results]
    with progress.task("study ma", len(cells)) as task:
        task.advance(len(results))
        for cell, result in _run(missing, plan, store, seed, runner, workers or _cores()):
            results[cell] = result
            task.advance(run=cell.key)
    return {cell: results[cell] for cell in cells}


def _run(
    cells: Sequence[Cell], plan: Plan, store: Store, seed: int, runner: Runner, workers: int
) -> Iterator[tuple[Cell, CellResult]]:
    if workers == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, _work(cell, plan, store, seed, runner)
        return
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(cells)), mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(_work, cell, plan, store, seed, runner): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(cell: Cell, plan: Plan, store: Store, seed: int, runner: Runner) -> CellResult:
    result = runner(cell, plan, store.folder, seed)
    store.save(result)
    return result


def _one_thread() -> None:
    torch.set_num_threads(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

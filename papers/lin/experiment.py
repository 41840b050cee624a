"""The experiment: every cell trained once, on all cores, those first that others are measured from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from noiseproof.parallel import tasks
from papers.lin.design import Cell, Plan
from papers.lin.results import CellResult, References, Weights
from papers.lin.training import train_cell
from papers.study import Setup

Train: TypeAlias = Callable[[Cell, Plan, int, Weights | None], tuple[CellResult, Weights]]
"""Trains one cell with a seed; the last argument are the weights that its TPVD is measured from."""


def train_cells(cells: Sequence[Cell], setup: Setup[Plan]) -> Iterator[tuple[Cell, CellResult]]:
    """Train every cell; trainings without noise go first, and leave the weights that the others are measured from.

    Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
    cores.
    """
    references, train = References(setup.out), setup.runner or train_cell
    for wave in (
        [cell for cell in cells if cell.sequence == "none"],
        [cell for cell in cells if cell.sequence != "none"],
    ):
        todo, common = _Todo(wave, references), (setup.plan, setup.seed, train)
        for _, (result, weights) in tasks.run(_work, todo, common=common, jobs=setup.workers):
            if weights is not None:
                references.save(result.cell, weights)
            yield result.cell, result


class _Todo(Sequence[tuple[Cell, "Weights | None"]]):
    """Cells with the weights that each is measured from, which are read when a worker is about to get them."""

    def __init__(self, cells: Sequence[Cell], references: References) -> None:
        self._cells, self._references = cells, references

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, place: Any) -> Any:
        cell = self._cells[place]
        return cell, None if cell.sequence == "none" else self._references.load(cell)


def _work(plan: Plan, seed: int, train: Train, task: tuple[Cell, Weights | None]) -> tuple[CellResult, Weights | None]:
    cell, reference = task
    result, weights = train(cell, plan, seed, reference)
    return result, weights if cell.sequence == "none" else None

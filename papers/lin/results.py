"""Results of cells, and the folder that keeps them so that a run can be taken up again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from noiseproof.files import write_whole
from papers import store
from papers.lin.design import Cell, Plan


@dataclass(frozen=True)
class CellResult:
    """What one training came to. Lists are the curves: loss on training records, accuracy on test records."""

    cell: Cell
    accuracy: float
    convergence: float
    tpvd: float | None
    """None for the training without noise that TPVD is measured from."""
    epsilon: float | None
    """Proven for the steps that ran, at `delta`; None where nothing is proven, and then `why` says why."""
    delta: float
    why: str | None
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    ran: Mapping[str, Any]
    seconds: float
    tpvd_with_biases: float | None = None
    """The same over all parameters; cells that were kept before it was measured have none."""

    @property
    def proven(self) -> str | float:
        """The epsilon that is proven, or that none is."""
        if self.epsilon is not None:
            return self.epsilon
        return "no privacy" if self.cell.sequence == "none" else "nothing proven"


Weights = Mapping[str, torch.Tensor]


class References:
    """A folder of weights that TPVD is measured from, one file for each training without noise."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "references"

    def file(self, cell: Cell) -> Path:
        """Where a cell's weights are, if it is finished."""
        return self.folder / f"{cell.key}.safetensors"

    def save(self, cell: Cell, weights: Weights) -> None:
        """Keep a cell's weights."""
        from safetensors.torch import save

        write_whole(self.file(cell), save({name: value.contiguous() for name, value in weights.items()}))

    def load(self, cell: Cell) -> Weights:
        """The weights that this cell's TPVD is measured from."""
        from safetensors.torch import load

        return load(self.file(cell.reference).read_bytes())


class Store(store.Store[Cell, CellResult]):
    """Finished cells, and beside them the weights that TPVD is measured from."""

    def __init__(self, out: Path, plan: Plan, seed: int) -> None:
        self._plan, self._seed, self.references = plan, seed, References(out)
        super().__init__(out / "cells", {}, CellResult, self.references.folder)

    def belongs(self, cell: Cell) -> Mapping[str, Any]:
        """What decides this training alone, so that a plan can grow without losing those that are finished."""
        plan = self._plan
        return {
            "seed": self._seed,
            "records": plan.records,
            "test": plan.test_of(cell),
            "steps": plan.steps_of(cell),
            "looks": plan.looks,
            "network": plan.networks[cell.model],
            "lr": plan.lr(cell),
            "batch_size": plan.batch_size,
            "watched": plan.watched_of(cell),
            "delta": plan.delta,
        }


def frame(results: Mapping[Cell, CellResult]) -> pd.DataFrame:
    """Results as a table with the factors and measures as columns, as the statistics take them."""
    return pd.DataFrame(
        [
            {
                **dataclasses.asdict(cell),
                "accuracy": result.accuracy,
                "convergence": result.convergence,
                "tpvd": result.tpvd,
            }
            for cell, result in results.items()
        ]
    )

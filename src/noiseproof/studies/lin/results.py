"""Results of cells, and the folder that keeps them so that a run can be taken up again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.studies.lin.design import Cell, Plan


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


Weights = Mapping[str, torch.Tensor]


class Store:
    """A folder of finished cells, one JSON file each, and of the weights that TPVD is measured from.

    Files appear whole or not at all. Each says which plan and seed it belongs to: cells of another one are refused
    rather than mixed in.
    """

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self._cells, self._references = folder / "cells", folder / "references"
        for path in (self._cells, self._references):
            path.mkdir(parents=True, exist_ok=True)
        # The notes are words about the plan; changing them changes no training.
        settings = {key: value for key, value in dataclasses.asdict(plan).items() if key != "notes"}
        self._belongs = json.loads(json.dumps({"seed": seed, **settings, "learning_rates": _texts(plan)}))

    def save(self, result: CellResult, weights: Weights | None) -> None:
        """Keep a finished cell, and its weights if others are measured from them."""
        from safetensors.torch import save

        if weights is not None:
            _write(self._weights(result.cell), save({name: value.contiguous() for name, value in weights.items()}))
        document = {"belongs": self._belongs, "result": dataclasses.asdict(result)}
        _write(self._file(result.cell), json.dumps(document).encode())

    def load(self, cell: Cell) -> CellResult | None:
        """The cell's result, if it is finished."""
        path = self._file(cell)
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            fields = document["result"]
            curves = {name: tuple(fields[name]) for name in ("steps", "losses", "accuracies")}
            result = CellResult(**{**fields, **curves, "cell": Cell(**fields["cell"])})
        except (ValueError, KeyError, TypeError):
            raise NoiseproofError(f"{path} is not a finished cell; delete it and resume.") from None
        if document["belongs"] != self._belongs:
            raise SettingError(
                f"{path.parent.parent} holds cells of another scale or seed; choose another folder, or do not resume."
            )
        if result.tpvd is None and not self._weights(cell).exists():
            return None  # its weights are needed and lost: train it again
        return result

    def reference(self, cell: Cell) -> Weights:
        """The weights that this cell's TPVD is measured from."""
        from safetensors.torch import load

        return load(self._weights(cell.reference).read_bytes())

    def clear(self) -> None:
        """Forget every finished cell."""
        for folder in (self._cells, self._references):
            for path in folder.iterdir():
                path.unlink()

    def _file(self, cell: Cell) -> Path:
        return self._cells / f"{cell.key}.json"

    def _weights(self, cell: Cell) -> Path:
        return self._references / f"{cell.key}.safetensors"


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


def _texts(plan: Plan) -> dict[str, float]:
    return {" ".join(key): rate for key, rate in plan.learning_rates.items()}


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)

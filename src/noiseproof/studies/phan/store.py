"""The folder that keeps finished cells, so that a study can be taken up again."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.studies.phan.cells import Cell, CellResult, Point
from noiseproof.studies.phan.plans import Plan


class Store:
    """A folder of finished cells, one JSON file each, whole or not at all; those of another plan or seed are refused."""

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self._folder = folder / "cells"
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = {key: value for key, value in dataclasses.asdict(plan).items() if key not in ("notes", "repeats")}
        self._belongs = json.loads(json.dumps({"seed": seed, **settings}))

    def save(self, result: CellResult) -> None:
        """Keep a finished cell."""
        path = self._folder / f"{result.key}.json"
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(json.dumps({"belongs": self._belongs, "result": dataclasses.asdict(result)}))
        staging.replace(path)

    def load(self, cell: Cell) -> CellResult | None:
        """The cell's result, if it is finished."""
        path = self._folder / f"{cell.key}.json"
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            belongs, fields = document["belongs"], document["result"]
            result = CellResult(
                fields["key"], tuple(Point(**point) for point in fields["points"]), float(fields["seconds"])
            )
        except (ValueError, KeyError, TypeError):
            raise NoiseproofError(f"{path} is not a finished cell; delete it and resume.") from None
        if belongs != self._belongs:
            raise SettingError(
                f"{path.parent.parent} holds cells of another scale or seed; choose another folder, or do not resume."
            )
        return result

    def clear(self) -> None:
        """Forget every finished cell."""
        for path in self._folder.iterdir():
            path.unlink()

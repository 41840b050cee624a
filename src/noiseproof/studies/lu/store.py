"""The folder that keeps finished runs, so that a study can be taken up again."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.studies.lu.plans import Plan
from noiseproof.studies.lu.run import Point, RunResult


class Store:
    """A folder of finished runs, one JSON file each, whole or not at all.

    Each says which plan and seed it belongs to: runs of another one are refused rather than mixed in.
    """

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self._folder = folder / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = {key: value for key, value in dataclasses.asdict(plan).items() if key not in ("notes", "repeats")}
        self._belongs = json.loads(json.dumps({"seed": seed, **settings}))

    def save(self, result: RunResult) -> None:
        """Keep a finished run."""
        path = self._file(result.data, result.repeat)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(json.dumps({"belongs": self._belongs, "result": dataclasses.asdict(result)}))
        staging.replace(path)

    def load(self, data: str, repeat: int) -> RunResult | None:
        """The run's result, if it is finished."""
        path = self._file(data, repeat)
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            belongs, fields = document["belongs"], document["result"]
            accuracies = {name: (both[0], both[1]) for name, both in fields["accuracies"].items()}
            points = tuple(Point(**point) for point in fields["points"])
            result = RunResult(
                **{**fields, "accuracies": accuracies, "points": points, "notes": tuple(fields["notes"])}
            )
        except (ValueError, KeyError, TypeError, IndexError):
            raise NoiseproofError(f"{path} is not a finished run; delete it and resume.") from None
        if belongs != self._belongs:
            raise SettingError(
                f"{path.parent.parent} holds runs of another scale or seed; choose another folder, or do not resume."
            )
        return result

    def clear(self) -> None:
        """Forget every finished run."""
        for path in self._folder.iterdir():
            path.unlink()

    def _file(self, data: str, repeat: int) -> Path:
        return self._folder / f"{data}-{repeat}.json"

"""The folder of finished runs: what is in it is not run again, unless the recipe has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Store:
    """Finished runs and audits, a JSON file for each row that is always whole: several processes may share the rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> dict[str, Any] | None:
        """What is finished of a row."""
        path = self._file(key)
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
        return found

    def row(self, key: str, belongs: Mapping[str, Any]) -> dict[str, Any]:
        """The row's finished parts, empty if they were made by another recipe."""
        plain = json.loads(json.dumps(belongs))
        found = self.read(key)
        if found is None or found["belongs"] != plain:
            return {"belongs": plain, "runs": {}, "audit": None}
        return found

    def save(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep what is finished of a row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._file(key)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(json.dumps(row, indent=1) + "\n")
        staging.replace(path)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

"""The file of finished runs: what is in it is not run again, unless the recipe has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Store:
    """Finished runs and audits by row, as one JSON file that is always whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}

    def row(self, key: str, belongs: Mapping[str, Any]) -> dict[str, Any]:
        """The row's finished parts, empty if they were made by another recipe."""
        plain = json.loads(json.dumps(belongs))
        if self.rows.get(key, {}).get("belongs") != plain:
            self.rows[key] = {"belongs": plain, "runs": {}, "audit": None}
        return self.rows[key]

    def save(self) -> None:
        """Write everything."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staging = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        staging.write_text(json.dumps(self.rows, indent=1) + "\n")
        staging.replace(self.path)

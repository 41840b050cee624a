"""The folder of a comparison: rows as they are finished, and the key that tells whether they still hold."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noiseproof.compare.plan import Plan, Task
from noiseproof.errors import BundleError, DataError

RESULTS, REPORT, PRIVATE, ERRORS = "results.json", "report.html", "private.json", "errors.log"


class Folder:
    """`rows/`, `bundles/`, `results.json`, `report.html`, pictures, and `private.json`, which is its owner's alone.

    Rows and pages name the run by a fingerprint of the records, the plan and the versions, keyed with a random salt:
    without `private.json`, which holds the salt, it says nothing about the records.
    """

    def __init__(self, path: str | Path, *, resume: bool) -> None:
        self.path = Path(path)
        if self.path.is_file() or (
            self.path.is_dir() and any(self.path.iterdir()) and not (self.path / PRIVATE).is_file()
        ):
            raise BundleError(f"{self.path} exists and holds no comparison; choose another folder with --out.")
        self.rows, self.bundles = self.path / "rows", self.path / "bundles"
        self._resume = resume
        self.path.mkdir(parents=True, exist_ok=True)
        found = self._read_salt()
        self._salt = secrets.token_hex(16) if found is None else found
        if found is None:
            write(self.path / PRIVATE, json.dumps({"salt": self._salt}), mode=0o600)
        self.run = ""

    def _read_salt(self) -> str | None:
        try:
            return str(json.loads((self.path / PRIVATE).read_text())["salt"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, plan: Plan, fingerprint: str, versions: Mapping[str, str]) -> str:
        """The run's keyed fingerprint; without `resume` what an earlier run left is removed, now that records are loaded.

        Which methods and epsilons are asked for is no part of the fingerprint: rows stand alone.
        """
        if not self._resume:
            for old in (self.rows, self.bundles, self.path / "pictures"):
                shutil.rmtree(old, ignore_errors=True)
            for name in (RESULTS, REPORT):
                (self.path / name).unlink(missing_ok=True)
        self.rows.mkdir(exist_ok=True)
        self.bundles.mkdir(exist_ok=True)
        settled = plan.to_json()
        for free in ("methods", "epsilons", "imports"):
            settled.pop(free)
        text = json.dumps([self._salt, fingerprint, settled, dict(versions)], sort_keys=True)
        self.run = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.run

    def kept(self, task: Task) -> dict[str, Any] | None:
        """The finished row of an earlier, interrupted run of the same plan on the same records; failures run again."""
        try:
            held = json.loads((self.rows / f"{task.key}.json").read_text())
            row = dict(held["row"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        same = held.get("run") == self.run and (row["method"], row["epsilon"]) == (task.method, task.epsilon)
        return row if same and row["status"] == "done" else None

    def keep(self, task: Task, row: Mapping[str, Any]) -> None:
        """Write a finished row, whole or not at all."""
        write(self.rows / f"{task.key}.json", json.dumps({"run": self.run, "row": row}, indent=1))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file whole or not at all."""
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with staging.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staging.chmod(mode)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def read_results(folder: str | Path) -> dict[str, Any]:
    """The results of a finished comparison."""
    path = Path(folder) / RESULTS
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(f"{folder} holds no {RESULTS}; `noiseproof compare --out {folder}` makes one.") from None
    except ValueError:
        raise DataError(f"{path} cannot be read; run the comparison again with --resume.") from None
    if not isinstance(document, dict) or not {"data", "rows", "baseline", "run"} <= document.keys():
        raise DataError(f"{path} is not the result of a comparison.")
    return document

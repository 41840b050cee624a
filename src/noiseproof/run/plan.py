"""What a comparison is asked to do, and the folder that it works in."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from noiseproof.data.dataset import Task
from noiseproof.errors import BundleError, SettingError
from noiseproof.files import write_whole
from noiseproof.privacy.budget import Budget, check_neighbours
from noiseproof.run.results import RESULTS
from noiseproof.run.row import BASELINE, Row

PROVEN = "proven"
"""Instead of methods' names: all that have a proof."""

REPORT, PRIVATE, ERRORS = "report.html", "private.json", "errors.log"


@dataclass(frozen=True)
class RowKey:
    """Which row of a comparison: a method at an epsilon.

    Examples:
        >>> RowKey("dp-sgd", 3.0).name
        'dp-sgd-3'
    """

    method: str
    """The method's name."""
    epsilon: float
    """The epsilon that it runs at."""

    @property
    def name(self) -> str:
        """The name of the row's file and of its bundle."""
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.method)}-{self.epsilon:g}"


@dataclass(frozen=True)
class Plan:
    """Data, budgets, methods, attack and audit of a comparison. Its fields decide the result, up to the time it takes.

    Attributes:
        data: A named set or a file.
        target: The column to predict, for a table.
        schema: A file with the public bounds and categories of a table's columns.
        task: What the target is, where schema and data do not say it.
        target_bounds: The public bounds of a numeric target.
        person: The column that tells whose a row is.
        skip: Columns of a table to leave alone.
        encoding: How a text file is encoded.
        epsilons: The budgets, each of which every method runs at.
        delta: The delta of every budget.
        neighbours: When two data sets are neighbours: `add-or-remove` or `replace-one`.
        methods: Names of methods, or of other readings of their papers (`adlm:program`); empty means every registered
            one, and `proven` those with a proof.
        fits: How often each proven sibling is fitted, to show how much its noise moves the result; others once.
        queries: Answers that prediction methods must be able to give.
        attack: Which membership attack to run.
        trials: Trials of each method's audit, in each of its two worlds; 5 at least.
        seed: Of the split, the trainings, the attacks and the audits.
        recipe: The recipe for dp-sgd.
        imports: Modules of the user's own that register methods.

    Raises:
        SettingError: If a field is out of range, or an epsilon or a method is given twice.

    Examples:
        >>> plan = Plan(data="digits", epsilons=(1.0, 3.0), methods=("dp-sgd",))
        >>> [key.name for key in plan.rows({"none": False, "dp-sgd": True})]
        ['none-1', 'dp-sgd-1', 'dp-sgd-3']
    """

    data: str = "digits"
    target: str | None = None
    schema: str | None = None
    task: Task | None = None
    target_bounds: tuple[float, float] | None = None
    person: str | None = None
    skip: tuple[str, ...] = ()
    encoding: str | None = None
    epsilons: tuple[float, ...] = (3.0,)
    delta: float = 1e-5
    neighbours: str = "add-or-remove"
    methods: tuple[str, ...] = ()
    queries: int = 100
    attack: str = "loss"
    trials: int = 1000
    seed: int = 0
    fits: int = 3
    recipe: str = "auto"
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.epsilons:
            raise SettingError("give at least one epsilon.")
        if len(set(self.epsilons)) != len(self.epsilons) or len(set(self.methods)) != len(self.methods):
            raise SettingError("an epsilon or a method is given twice; give each once.")
        for epsilon in self.epsilons:
            self.budget(epsilon)
        if self.fits < 1:
            raise SettingError(f"a method is fitted at least once, not {self.fits} times.")
        if self.trials < 5:
            raise SettingError(f"an audit needs at least 5 trials in each world, not {self.trials}.")

    def budget(self, epsilon: float) -> Budget:
        """The budget at one of the epsilons."""
        return Budget(epsilon, self.delta, check_neighbours(self.neighbours), self.queries)

    def rows(self, registered: Mapping[str, bool]) -> tuple[RowKey, ...]:
        """The rows to compute, the baseline first; it has no budget, so that one row of it is enough.

        Args:
            registered: Every method's name, and whether it has a proof.
        """
        asked = [each for name in self.methods for each in (registered if name == PROVEN else [name])]
        asked = [name for name in asked if PROVEN not in self.methods or name in self.methods or registered[name]]
        for name in asked:
            if name not in registered:
                raise SettingError(f"there is no method {name!r}; there are {', '.join(registered)}.")
        chosen = [name for name in dict.fromkeys(asked or registered) if name != BASELINE]
        return (
            RowKey(BASELINE, self.epsilons[0]),
            *(RowKey(name, epsilon) for epsilon in self.epsilons for name in chosen),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)


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
        self.run = ""

    def begin(self, plan: Plan, fingerprint: str, versions: Mapping[str, str]) -> None:
        """Make the folder and set the run's keyed fingerprint; without `resume` remove what an earlier run left.

        Only now that records are loaded and the plan can run: what is refused before leaves everything as it was.

        Which methods and epsilons are asked for is no part of the fingerprint: rows stand alone.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            salt = str(json.loads((self.path / PRIVATE).read_text())["salt"])
        except (OSError, ValueError, KeyError, TypeError):
            salt = secrets.token_hex(16)
            write_whole(self.path / PRIVATE, json.dumps({"salt": salt}), mode=0o600)
        if not self._resume:
            for old in (self.rows, self.bundles, self.path / "pictures"):
                shutil.rmtree(old, ignore_errors=True)
            for name in (RESULTS, REPORT, ERRORS):
                (self.path / name).unlink(missing_ok=True)
        self.rows.mkdir(exist_ok=True)
        self.bundles.mkdir(exist_ok=True)
        fixed = {name: value for name, value in asdict(plan).items() if name not in ("methods", "epsilons", "imports")}
        text = json.dumps([salt, fingerprint, fixed, dict(versions)], sort_keys=True)
        self.run = hashlib.sha256(text.encode()).hexdigest()[:16]

    def kept(self, key: RowKey) -> Row | None:
        """The finished row of an earlier, interrupted run of the same plan on the same records; failures run again."""
        try:
            held = json.loads((self.rows / f"{key.name}.json").read_text())
            row = Row.model_validate(held["row"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        same = held.get("run") == self.run and (row.method, row.epsilon) == (key.method, key.epsilon)
        return row if same and row.done else None

    def keep(self, key: RowKey, row: Row) -> None:
        """Write a finished row, whole or not at all."""
        text = f'{{"run": "{self.run}", "row": {row.model_dump_json(indent=1)}}}'
        write_whole(self.rows / f"{key.name}.json", text)

"""Study: a paper's experiments run again, every table with ours beside theirs."""

from __future__ import annotations

import csv
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Scale = Literal["small", "paper"]
"""`small` runs in minutes on two cores, `paper` at the paper's own sizes."""

Value: TypeAlias = str | int | float | None

# A study's module is imported when it is asked for by name: they bring torch, scipy and matplotlib.
_MODULES = {
    "lin": "noiseproof.studies.lin",
    "lu": "noiseproof.studies.lu",
    "ma": "noiseproof.studies.ma",
    "mao": "noiseproof.studies.mao",
    "phan": "noiseproof.studies.phan",
}
_REGISTRY: dict[str, Study] = {}


@dataclass(frozen=True)
class Column:
    """A column's name and how many decimals its numbers show; `theirs` marks what comes from the paper."""

    name: str
    digits: int | None = 4
    """None shows a number as short as it is, for settings."""
    theirs: bool = False

    def text(self, value: Value) -> str:
        """A value as people read it; a dash where there is none."""
        if value is None:
            return "—"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:g}" if self.digits is None or not math.isfinite(value) else f"{value:.{self.digits}f}"
        return str(value)


@dataclass(frozen=True)
class Table:
    """One table of a study: columns of the paper stand beside ours, marked as theirs."""

    name: str
    """The file it is written to, without its ending."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    """What a reader must know to read the numbers right."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of table {self.name} does not have {len(self.columns)} values")

    def render(self) -> RichTable:
        """The table for people, theirs dimmed."""
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, caption="\n".join(self.notes) or None)
        table.title_justify = table.caption_justify = "left"
        for index, column in enumerate(self.columns):
            numeric = any(isinstance(row[index], int | float) for row in self.rows)
            table.add_column(
                column.name, justify="right" if numeric else "left", style="dim" if column.theirs else None
            )
        for row in self.rows:
            table.add_row(*(column.text(value) for column, value in zip(self.columns, row, strict=True)))
        return table

    def write(self, folder: Path) -> Path:
        """Write the table as CSV, with every digit."""
        path = folder / f"{self.name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(column.name for column in self.columns)
            writer.writerows(self.rows)
        return path

    def to_json(self) -> dict[str, Any]:
        """The table as plain values; what JSON has no number for becomes null."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": [column.name for column in self.columns],
            "rows": [[_plain(value) for value in row] for row in self.rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class StudyResult:
    """What a study found: its tables, the files of its figures, and the folder everything was written to."""

    tables: tuple[Table, ...]
    figures: tuple[Path, ...]
    out: Path

    def to_json(self) -> dict[str, Any]:
        """The command line's document."""
        return {
            "tables": [table.to_json() for table in self.tables],
            "figures": [str(path) for path in self.figures],
            "out": str(self.out),
        }


class Study(ABC):
    """A paper's experiments, runnable by name."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    on_clusters: ClassVar[bool] = False
    """Whether its cells can be computed on other machines, which need none of this one's files."""

    @abstractmethod
    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        workers: int | None = None,
    ) -> StudyResult:
        """Run every experiment, or with `resume` those that `out` does not hold yet; write tables and figures there.

        `workers` are processes, one a core if None.
        """

    def only(self, parts: Sequence[str]) -> Study:
        """The study of some of its data sets alone, by the paper's names."""
        raise SettingError(f"the study {self.name} is run whole; it has no parts to choose from.")


def register(study: type[Study]) -> type[Study]:
    """Class decorator: make a study available by its name."""
    _REGISTRY[study.name] = study()
    return study


def names() -> tuple[str, ...]:
    """Every study that can be run."""
    return tuple(_MODULES)


def get(name: str) -> Study:
    """The study of that name."""
    if name not in _MODULES:
        raise SettingError(f"there is no study {name!r}; there are {', '.join(_MODULES)}.")
    importlib.import_module(_MODULES[name])
    return _REGISTRY[name]


def prepare(out: Path) -> Path:
    """The folder for a study's results, made if it is not there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NoiseproofError(f"{out} cannot hold the results ({error.strerror}); choose another folder.") from None
    return out


def _plain(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value

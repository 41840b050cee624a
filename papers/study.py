"""Study: a paper's experiments run again, every table with ours beside theirs."""

from __future__ import annotations

import csv
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress
from papers.store import C, R, Store, settings

if TYPE_CHECKING:
    from rich.table import Table as RichTable


Scale = Literal["small", "effect", "paper"]
"""`small` runs in minutes on two cores, `effect` runs the cells that show a paper's effect with the paper's own networks in
an hour or two, `paper` everything at the paper's own sizes."""

Value: TypeAlias = str | int | float | None

P = TypeVar("P")
"""A study's plan."""
S = TypeVar("S", bound="AnyStudy")

WHERE = "`noiseproof data` says where to get them, and NOISEPROOF_DATA where they are looked for."

# A study's module is imported when it is asked for by name: they bring torch, scipy and matplotlib.
_NAMES = ("lin", "lu", "ma", "mao", "phan")
_REGISTRY: dict[str, AnyStudy] = {}


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


Report: TypeAlias = tuple[Sequence[Table], Sequence[Path]]
"""Tables, and the files of figures."""


@dataclass(frozen=True)
class Setup(Generic[P]):
    """How a study is run this time."""

    plan: P
    out: Path
    seed: int = 0
    progress: Progress = SILENT
    resume: bool = False
    workers: int | None = None
    """Processes, one a core if None."""
    runner: Callable[..., Any] | None = None
    """Stands in for what runs one cell."""


class Study(ABC, Generic[P, C, R]):
    """A paper's experiments, runnable by name: the cells of a plan, each with a result that is kept."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    on_clusters: ClassVar[bool] = False
    """Whether its cells can be computed on other machines, which need none of this one's files."""
    plans: Mapping[Scale, P]
    kind: Any
    """The dataclass of a cell's result."""
    folder: ClassVar[str] = "cells"
    growing: ClassVar[bool] = False
    """Whether finished cells are of use to a plan with more repeats."""
    partial: ClassVar[bool] = False
    """Whether its tables can be made of some of the plan's cells."""

    def run(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        progress: Progress = SILENT,
        resume: bool = False,
        workers: int | None = None,
        runner: Callable[..., Any] | None = None,
        plan: P | None = None,
        finished: bool = False,
    ) -> StudyResult:
        """Run every cell of the data that is there, or with `resume` those that `out` does not hold yet.

        With `finished` nothing is run, and the tables are of the cells that `out` holds. Tables and figures are written to
        `out`. `workers` are processes, one a core if None; `runner` stands in for what runs one cell, `plan` for the scale's.
        """
        if plan is None and scale not in self.plans:
            raise SettingError(f"the study {self.name} has no scale {scale}; it has {', '.join(self.plans)}.")
        plan = self.plans[scale] if plan is None else plan
        cells = self.cells(plan)
        if not cells:
            raise DataError(f"none of the paper's data sets was found; {WHERE}")
        setup = Setup(plan, prepare(out), seed, progress, resume or finished, workers, runner)
        if finished:
            cells = self.finished(cells, setup)
        tables, figures = self.report(self.results(cells, setup), setup)
        for table in tables:
            table.write(out)
        return StudyResult(tuple(tables), tuple(figures), out)

    def results(self, cells: Sequence[C], setup: Setup[P]) -> dict[C, R]:
        """The results of these cells in that order, those that are kept and what is computed of the others."""
        store = self.store(setup)
        if not setup.resume:
            store.clear()
        results = {cell: found for cell in cells if (found := store.load(cell)) is not None}
        missing = [cell for cell in cells if cell not in results]
        with setup.progress.task(f"study {self.name}", len(cells)) as task:
            task.advance(len(results))
            # Results are kept here, not where they were computed: that may be another machine.
            for cell, result in self.compute(missing, setup):
                store.save(cell, result)
                results[cell] = result
                task.advance(cell=cell.key)
        return {cell: results[cell] for cell in cells}

    def finished(self, cells: Sequence[C], setup: Setup[P]) -> Sequence[C]:
        """Those of the cells whose results are kept."""
        store = self.store(setup)
        there = [cell for cell in cells if store.load(cell) is not None]
        if len(there) < len(cells) and not self.partial:
            raise SettingError(f"the tables of the study {self.name} need all of its {len(cells)} cells; use --resume.")
        if not there:
            raise SettingError(f"{setup.out} holds no finished cells of this plan and seed.")
        return there

    @abstractmethod
    def cells(self, plan: P) -> Sequence[C]:
        """What the plan asks for of the data that is there."""

    def store(self, setup: Setup[P]) -> Store[C, R]:
        """Where the results are kept."""
        aside = ("notes", "repeats") if self.growing else ("notes",)
        return Store(setup.out / self.folder, settings(setup.plan, setup.seed, but=aside), self.kind)

    def compute(self, cells: Sequence[C], setup: Setup[P]) -> Iterator[tuple[C, R]]:
        """Each cell with its result, as they are finished.

        Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
        cores.
        """
        from noiseproof.parallel import tasks

        # A progress bar cannot be sent to a worker.
        common = (replace(setup, progress=SILENT),)
        for number, result in tasks.run(self.work, cells, common=common, jobs=setup.workers):
            yield cells[number], result

    def work(self, setup: Setup[P], cell: C) -> R:
        """The result of one cell, on a worker; `setup.runner` stands in for what computes it."""
        raise NotImplementedError

    @abstractmethod
    def report(self, results: Mapping[C, R], setup: Setup[P]) -> Report:
        """The tables, and the figures drawn into `setup.out`."""

    def only(self, parts: Sequence[str]) -> Study[P, C, R]:
        """The study of some of its data sets alone, by the paper's names."""
        raise SettingError(f"the study {self.name} is run whole; it has no parts to choose from.")


AnyStudy: TypeAlias = Study[Any, Any, Any]


def register(study: type[S]) -> type[S]:
    """Class decorator: make a study available by its name."""
    _REGISTRY[study.name] = study()
    return study


def names() -> tuple[str, ...]:
    """Every study that can be run."""
    return _NAMES


def get(name: str) -> AnyStudy:
    """The study of that name."""
    if name not in _NAMES:
        raise SettingError(f"there is no study {name!r}; there are {', '.join(_NAMES)}.")
    importlib.import_module(f"papers.{name}")
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

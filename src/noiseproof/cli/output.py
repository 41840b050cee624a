"""What commands print: people's tables or one JSON document on stdout; progress and errors on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from noiseproof.notebook import visible
from noiseproof.plugins import need
from noiseproof.progress import Progress, Task

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

stdout = Console()
stderr = Console(stderr=True)


def emit(document: Any) -> None:
    """Print the one JSON document."""
    sys.stdout.write(as_json(document))


def as_json(document: Any) -> str:
    """A document as JSON text; infinities become null, as JSON has none."""
    return json.dumps(_plain(document), indent=2, allow_nan=False) + "\n"


def answer(
    as_json: bool,
    document: Any,
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    caption: str | None = None,
    *,
    narrow: bool = False,
) -> None:
    """Print a command's result: the document with `--json`, else the table."""
    if as_json:
        emit(document)
    else:
        show(title, columns, rows, caption, narrow=narrow)


def tell(as_json: bool, document: Any, sentence: str) -> None:
    """Print a command's result: the document with `--json`, else the sentence."""
    if as_json:
        emit(document)
    else:
        say(sentence)


def show(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    caption: str | None = None,
    *,
    narrow: bool = False,
) -> None:
    """Print a table for people; where it is too wide its cells are folded, so that nothing is cut off.

    Args:
        title: Stands above it.
        columns: Their names; a bar behind a name keeps its cells in one line.
        rows: The cells.
        caption: Stands below it.
        narrow: Whether to do without lines between columns, for tables of many.
    """
    # Texts, not markup: names of columns, files and data sets may hold brackets.
    headers = [Column(Text(name.removesuffix("|")), overflow="fold", no_wrap=name.endswith("|")) for name in columns]
    justify: Any = {"title_justify": "left", "caption_justify": "left"}
    frame: Any = {"box": SIMPLE_HEAD, "collapse_padding": True} if narrow else {}
    above, below = (
        text and Text(visible(text), style=f"table.{part}") for text, part in ((title, "title"), (caption, "caption"))
    )
    table = Table(*headers, title=above, caption=below, **justify, **frame)
    for row in rows:
        table.add_row(*(Text(visible(_cell(value))) for value in row))
    stdout.print(table)


def note(*sentences: str) -> None:
    """Tell people something on stderr, also under `--json`."""
    for sentence in sentences:
        label("note:", "yellow", sentence)


def say(sentence: str) -> None:
    """Print a sentence for people on stdout, as it is."""
    stdout.print(visible(sentence), markup=False, highlight=False, soft_wrap=True)


def label(word: str, colour: str, sentence: str) -> None:
    """Print a coloured word and a sentence on stderr."""
    # Not as markup: paths and names may hold brackets.
    stderr.print(Text.assemble((word, colour), " ", visible(sentence)), soft_wrap=True)


def need_serve() -> None:
    """Say in words if what the service and its ledger are built on is not installed."""
    parts = ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "httpx")
    need("the service and its ledger need", "serve", *parts)


def guarantee(value: Any) -> str:
    """A claim, proof or audit in a cell: its epsilon, or a dash."""
    return "—" if value is None else f"{value.epsilon:.3g}"


def _cell(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def bars(*more: ProgressColumn) -> Bars:
    """Progress bars on stderr with time left; nothing where stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), *more),
        console=stderr,
        disable=not stderr.is_terminal,
    )


class RichProgress(Progress):
    """Progress bars on stderr, with time left and what the work reports; nothing where stderr is no terminal."""

    def task(self, description: str, total: int | None) -> Task:
        """Start a bar."""
        return _RichTask(description, total)


class _RichTask(Task):
    def __init__(self, description: str, total: int | None) -> None:
        from rich.progress import TextColumn

        self._bars = bars(TextColumn("{task.fields[status]}", markup=False))
        self._id = self._bars.add_task(description, total=total, status="")

    def advance(self, steps: int = 1, **status: float | str) -> None:
        text = " ".join(f"{key} {_cell(value)}" for key, value in status.items())
        self._bars.advance(self._id, steps)
        if text:
            self._bars.update(self._id, status=text)

    def __enter__(self) -> Task:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

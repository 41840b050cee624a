"""The results that are kept: cells load, tables follow from them, and pages show these tables."""

from __future__ import annotations

import csv
import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

import papers
from noiseproof.errors import DataError
from papers.study import Setup

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "papers" / "results"
FOLDERS = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())
FROM_CELLS = ("lin", "lu", "ma", "mao")
"""Studies whose tables need nothing but cells and the data; those of phan audit while they report."""
EARLIER = {f"mao-effect:{table}" for table in ("figure-3-mnist", "figure-4", "figure-6", "figures-8-to-10")}
"""Tables of pages that were made before results were kept."""

sys.path.insert(0, str(ROOT / "docs" / "tools"))
import figures  # noqa: E402


def shown(folder: str) -> dict[str, str]:
    """The tables that the pages show of a folder, by name."""
    pattern = re.compile(rf"<!-- figures: study:{folder}:(\S+) -->\n(.*?)<!-- end of figures -->", re.S)
    found = [match for page in figures.PAGES for match in pattern.findall(page.read_text(encoding="utf-8"))]
    return {name: text.strip("\n") for name, text in found}


def opened(folder: str, tmp_path: Path):
    """The study, its scale and plan, and a copy of its folder to work on."""
    name, _, scale = folder.partition("-")
    study = papers.get(name)
    if scale not in study.plans:
        pytest.skip(f"{folder} is not named after a scale, so that its plan is not known here")
    out = tmp_path / folder
    shutil.copytree(RESULTS / folder, out)
    return study, scale, study.plans[scale], out


def stored(study, plan, out: Path):
    """Every cell of the plan with its result, None for those that are not kept."""
    try:
        cells = study.cells(plan)
    except DataError as error:
        pytest.skip(str(error))
    store = study.store(Setup(plan, out, resume=True))
    return {cell: store.load(cell) for cell in cells}


def values(path: Path) -> list[list[str]]:
    """A table's cells, numbers to nine digits: another processor may round the last one of a mean differently."""
    with path.open(newline="", encoding="utf-8") as lines:
        return [[_nine_digits(cell) for cell in row] for row in csv.reader(lines)]


def _nine_digits(cell: str) -> str:
    try:
        return f"{float(cell):.9g}"
    except ValueError:
        return cell


@pytest.mark.parametrize("folder", FOLDERS)
def test_pages_show_the_tables_that_are_kept(folder):
    tables, pages = figures.written(RESULTS / folder), shown(folder)
    if not tables:
        pytest.skip(f"{folder} keeps no tables")
    wrong = [name for name, text in pages.items() if name in tables and text != tables[name]]
    assert not wrong, f"run docs/tools/figures.py study:{folder} papers/results/{folder}: {wrong} differ"
    unknown = [name for name in pages if name not in tables and f"{folder}:{name}" not in EARLIER]
    assert not unknown, f"nothing that is kept has the pages' tables {unknown} of {folder}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_cell_that_is_kept_is_one_of_the_plan_and_loads(folder, tmp_path):
    study, _, plan, out = opened(folder, tmp_path)
    found = stored(study, plan, out)
    if not found:
        pytest.skip("none of the data sets is there")
    known = {cell.key for cell, result in found.items() if result is not None}
    kept = {path.stem for path in (RESULTS / folder).glob("*/*.json")}
    assert kept <= known, f"no cell of the plan is {sorted(kept - known)}; cells of other plans belong elsewhere"


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.partition("-")[0] in FROM_CELLS])
def test_the_tables_follow_from_the_cells(folder, tmp_path, monkeypatch):
    study, scale, plan, out = opened(folder, tmp_path)
    found = stored(study, plan, out)
    lacking = sum(result is None for result in found.values())
    if lacking == len(found) or (lacking and not study.partial):
        pytest.skip(f"{lacking} of {len(found)} cells of {folder} are not kept")
    # Drawing is tested by itself, and slow.
    monkeypatch.setattr(importlib.import_module(f"papers.{study.name}"), "every_figure", lambda *_: ())
    tables = study.run(scale, out, finished=True).tables
    kept = sorted(path.name for path in (RESULTS / folder).glob("*.csv"))
    assert {f"{table.name}.csv" for table in tables} >= set(kept)
    for name in kept:
        assert values(out / name) == values(RESULTS / folder / name), name

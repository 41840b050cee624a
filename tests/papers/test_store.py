"""A store keeps what is finished, whole, and gives it to nobody with another plan or seed."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from noiseproof.errors import NoiseproofError, SettingError
from papers.store import Store, settings


@dataclass(frozen=True)
class Plan:
    sizes: tuple[int, ...] = (1, 2)
    repeats: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    value: float


@dataclass(frozen=True)
class Cell:
    key: str


CELL = Cell("a")


def opened(out, plan=None, seed=0) -> Store[Cell, Result]:
    belongs = settings(plan or Plan(), seed, but=("notes", "repeats"))
    return Store(out / "cells", belongs, Result, out / "weights")


def test_a_finished_cell_is_one_whole_file_that_says_what_it_belongs_to(tmp_path):
    opened(tmp_path).save(CELL, Result(0.5))
    assert opened(tmp_path).load(CELL) == Result(0.5)
    assert opened(tmp_path).load(Cell("b")) is None
    (file,) = (tmp_path / "cells").iterdir()
    assert file.name == "a.json"
    assert json.loads(file.read_text()) == {"belongs": {"seed": 0, "sizes": [1, 2]}, "result": {"value": 0.5}}


def test_what_counts_of_a_plan_must_be_the_same(tmp_path):
    opened(tmp_path).save(CELL, Result(0.5))
    assert opened(tmp_path, Plan(repeats=3, notes=("other words",))).load(CELL) == Result(0.5)
    for plan, seed in ((Plan(sizes=(1,)), 0), (Plan(), 1)):
        with pytest.raises(SettingError, match="holds cells of another scale or seed"):
            opened(tmp_path, plan, seed).load(CELL)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"belongs": {}, "result": {"other": 1}}'])
def test_what_is_not_a_result_is_named(tmp_path, content):
    store = opened(tmp_path)
    (tmp_path / "cells" / "a.json").write_text(content)
    with pytest.raises(NoiseproofError, match=r"a\.json is not a finished cell; delete it and resume"):
        store.load(CELL)


def test_clearing_forgets_the_cells_and_what_lies_beside_them(tmp_path):
    store = opened(tmp_path)
    store.save(CELL, Result(0.5))
    (tmp_path / "weights" / "a.bin").write_bytes(b"")
    store.clear()
    assert store.load(CELL) is None
    assert list((tmp_path / "weights").iterdir()) == []

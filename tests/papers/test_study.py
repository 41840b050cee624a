"""A study's tables show, write and serialise the same numbers; studies are found by name."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from rich.console import Console

import papers
from noiseproof.errors import NoiseproofError, SettingError
from papers.study import Column, StudyResult, Table, prepare


@pytest.fixture
def table() -> Table:
    return Table(
        "table-1",
        "Accuracy",
        (Column("C", None), Column("accuracy"), Column("accuracy, theirs", 2, theirs=True), Column("proven epsilon")),
        ((0.001, 0.98765, 0.9, "nothing proven"), (100.0, math.inf, None, 1.5)),
        ("a note",),
    )


def test_people_see_rounded_numbers_and_a_dash_for_none(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table.render())
    text = console.file.getvalue()
    for piece in ("Accuracy", "0.001", "0.9877", "0.90", "nothing proven", "100", "inf", "—", "1.5000", "a note"):
        assert piece in text


def test_the_file_has_every_digit(table, tmp_path):
    path = table.write(tmp_path)
    assert path == tmp_path / "table-1.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0] == ["C", "accuracy", "accuracy, theirs", "proven epsilon"]
    assert rows[1] == ["0.001", "0.98765", "0.9", "nothing proven"]
    assert rows[2] == ["100.0", "inf", "", "1.5"]


def test_the_document_is_strict_json(table, tmp_path):
    document = StudyResult((table,), (tmp_path / "a.png",), tmp_path).to_json()
    assert set(document) == {"tables", "figures", "out"}
    assert document["figures"] == [str(tmp_path / "a.png")]
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["tables"][0]["rows"][1] == [100.0, None, None, 1.5]


def test_a_row_that_does_not_fit_its_columns_is_refused():
    with pytest.raises(ValueError, match="does not have 1 values"):
        Table("t", "t", (Column("a"),), ((1, 2),))


def test_a_study_is_found_by_name():
    assert "lin" in papers.names()
    study = papers.get("lin")
    assert study.name == "lin"
    assert "2020" in study.paper


def test_a_study_that_is_not_there_is_a_wrong_setting():
    with pytest.raises(SettingError, match="there is no study 'nobody'; there are lin"):
        papers.get("nobody")


def test_a_file_in_the_place_of_the_folder_is_told_in_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(NoiseproofError, match="choose another folder"):
        prepare(tmp_path / "taken")

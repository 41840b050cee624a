"""The hospital's day, from a messy table to answers: every step of the example, over three seeds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospital_day.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("hospital_day", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_as_messy_as_it_says(example, tmp_path):
    example.write_visits(tmp_path / "visits.csv", 20_000)
    text = (tmp_path / "visits.csv").read_text().splitlines()
    assert text[0].split(";")[4] == "dose [mg]"
    frame = pd.read_csv(tmp_path / "visits.csv", sep=";", decimal=",")
    assert len(frame) == 20_000
    assert (frame["readmitted"] == "yes").mean() == pytest.approx(0.031)
    assert frame["patient"].duplicated().any()
    assert frame["visit"].is_unique
    assert frame[["age", "dose [mg]", "ward"]].isna().any().all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_whole_day(example, tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    found = example.main(seed=seed)
    proven = {
        row["method"]: row["measures"]["roc_auc"] for row in found["compared"]["rows"] if row["verdict"] == "proven"
    }
    assert len(proven) > 8
    assert proven[found["chosen"]["method"]] == max(proven.values())
    # What is released is one more draw: 60 fits of functional had a standard deviation of 0.004, dp-sgd less.
    assert found["trained"]["measures"]["roc_auc"] > 0.9
    card = found["trained"]["card"]
    assert (card["verdict"], card["unit"]) == ("proven", "person")
    labels = found["scored"]["prediction"].tolist()
    assert set(labels) <= {"no", "yes"}
    assert found["over_http"]["labels"] == labels
    assert list(found["in_python"]["prediction"]) == labels
    assert found["stay"]["card"]["verdict"] == "proven"
    assert found["synthetic"]["card"]["verdict"] == "proven"
    assert (tmp_path / "quality.html").is_file()
    assert len(found["commands"]) == 8

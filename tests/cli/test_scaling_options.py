"""`--checkpoint`, `--resume`, `--store`, `--jobs` and `--ray` on the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

TRAIN = (
    "train",
    "dp-sgd",
    "--recipe",
    "none",
    "--no-baseline",
    "--json",
    "--network",
    "linear",
    "--set",
    "epochs=1",
    "--seed",
    "0",
)


def test_a_finished_training_is_resumed_to_the_same_release(noiseproof, tmp_path):
    first = noiseproof(*TRAIN, "--checkpoint", tmp_path / "c", "--every", 1)
    assert first.code == 0, first.err
    refused = noiseproof(*TRAIN, "--checkpoint", tmp_path / "c")
    assert refused.code == 2
    assert "is not empty" in refused.err
    newest = max((tmp_path / "c").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-9])
    again = noiseproof(*TRAIN, "--checkpoint", tmp_path / "c", "--resume")
    assert again.code == 0, again.err
    assert "The one before it was used" in " ".join(again.err.split())
    assert again.document["card"] == first.document["card"]
    assert again.document["accuracy"] == first.document["accuracy"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((*TRAIN, "--resume"), 2, "--resume needs --checkpoint"),
        ((*TRAIN, "--jobs", 2, "--ray", "auto"), 2, "not both"),
        ((*TRAIN, "--store", "x"), 2, "only a table with a schema can be stored"),
        (("study", "phan", "--ray", "auto"), 1, "use --jobs instead"),
        (("compare", "--jobs", 0), 2, "at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(noiseproof, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": [1, 2], "y": ["u", "v"]}).to_csv(tmp_path / "t.csv", index=False)
    more = ("--data", tmp_path / "t.csv", "--target", "y") if "--store" in arguments else ()
    outcome = noiseproof(*arguments, *more)
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert outcome.out == ""


def test_a_stored_table_is_trained_on_from_its_folder(noiseproof, tmp_path):
    generator = np.random.default_rng(0)
    age = generator.integers(0, 100, 400)
    pd.DataFrame({"age": age, "old": np.where(age > 50, "yes", "no")}).to_parquet(
        tmp_path / "people.parquet", row_group_size=50
    )
    schema = {"columns": {"age": {"low": 0, "high": 100}}, "target": {"name": "old", "classes": ["no", "yes"]}}
    (tmp_path / "people.json").write_text(json.dumps(schema))
    data = ("--data", tmp_path / "people.parquet", "--schema", tmp_path / "people.json", "--store", tmp_path / "stored")
    outcome = noiseproof(*TRAIN, *data)
    assert outcome.code == 0, outcome.err
    assert outcome.document["card"]["ran"]["records"] == pytest.approx(
        300, abs=44
    )  # 400 coins of 3/4, five standard deviations
    again = noiseproof(*TRAIN, "--data", tmp_path / "stored")
    assert again.document["accuracy"] == outcome.document["accuracy"]

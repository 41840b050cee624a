"""`canaries insert` and `canaries audit`: one training is audited by rows that were put in on purpose."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

SCHEMA = {
    "columns": {"age": {"low": 0, "high": 100}, "dose": {"low": 0, "high": 1}},
    "target": {"name": "ill", "classes": ["no", "yes"]},
}


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(0, 100, 400), "dose": rng.random(400).round(3), "ill": "no"})
    frame.loc[frame.age > 50, "ill"] = "yes"
    frame.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "people.csv", tmp_path / "people.json"


@pytest.fixture
def inserted(noiseproof, table, tmp_path):
    outcome = noiseproof(
        "canaries", "insert", table[0], "--schema", table[1], "--count", "200", "--out", tmp_path / "c", "--json"
    )
    assert outcome.code == 0
    return tmp_path / "c"


def test_canaries_are_rows_with_a_wrong_class_and_those_that_are_in_are_in_the_data(inserted, table):
    people, data, canaries = (
        pd.read_csv(path) for path in (table[0], inserted / "data.csv", inserted / "canaries.csv")
    )
    included = json.loads((inserted / "coins.json").read_text())["included"]
    assert len(canaries) == len(included) == 200
    assert len(data) == 400 + sum(included)
    true = np.where(canaries.age > 50, "yes", "no")
    assert (canaries.ill != true).all()
    # Only canaries have a wrong class.
    assert (np.where(data.age > 50, "yes", "no") != data.ill).sum() == sum(included)
    assert not data.iloc[:400].equals(people)
    for name in ("data.csv", "canaries.csv", "coins.json"):
        assert (inserted / name).stat().st_mode & 0o777 == 0o600


def test_scores_that_tell_all_refute_a_claim_and_scores_that_tell_nothing_do_not(noiseproof, inserted, tmp_path):
    included = json.loads((inserted / "coins.json").read_text())["included"]
    scores = tmp_path / "scores.txt"
    scores.write_text("\n".join(str(float(one)) for one in included))
    command = ("canaries", "audit", inserted, "--scores", scores, "--epsilon", "2", "--json")
    found = noiseproof(*command, "--out", tmp_path / "audit.json").document
    assert found["verdict"] == "refuted"
    assert found["audited"]["epsilon"] > 2
    assert json.loads((tmp_path / "audit.json").read_text()) == found
    # Half are guessed in and half out; the coins need not have fallen so.
    wrong = found["guessed"] - found["correct"]
    assert found["canaries"] == 200
    assert 0 <= wrong <= 2 * abs(sum(included) - 100)
    assert noiseproof(*command, "--gaussian").document["audited"]["epsilon"] > found["audited"]["epsilon"]
    scores.write_text("\n".join(str(place) for place in range(200)))
    assert noiseproof(*command).document["verdict"] == "nothing proven"
    scores.write_text("1 2 3")
    assert "3 scores and 200 canaries" in noiseproof(*command).err
    scores.write_text("nan " * 200)
    assert "NaN" in noiseproof(*command).err
    scores.write_text("SECRET")
    assert "SECRET" not in noiseproof(*command).err


def test_a_model_that_learned_nothing_is_not_refuted_from_its_weights(noiseproof, inserted, table, tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"1.weight": torch.zeros(2, 2), "1.bias": torch.zeros(2)}, tmp_path / "m.safetensors")
    command = ("canaries", "audit", inserted, tmp_path / "m.safetensors", "--network", "linear", "--epsilon", "1")
    found = noiseproof(*command, "--schema", table[1], "--json").document
    assert found["verdict"] == "nothing proven"
    assert found["power"]["largest"] > 1
    assert "--schema" in noiseproof(*command).err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--count", "401"), "401 canaries cannot be taken from 400"),
        (("--count", "0"), "0 canaries"),
    ],
)
def test_canaries_that_cannot_be_made_are_one_sentence(noiseproof, table, tmp_path, more, words):
    outcome = noiseproof("canaries", "insert", table[0], "--schema", table[1], "--out", tmp_path / "c", *more)
    assert outcome.code == 2
    assert words in outcome.err
    assert not (tmp_path / "c").exists()


def test_a_folder_without_coins_is_one_sentence(noiseproof, tmp_path):
    (tmp_path / "scores.txt").write_text("1")
    outcome = noiseproof("canaries", "audit", tmp_path, "--scores", tmp_path / "scores.txt", "--epsilon", "1")
    assert (outcome.code, "there is no" in outcome.err) == (1, True)


def test_where_rows_are_persons_each_canary_is_one_and_no_id_tells_it(noiseproof, table, tmp_path):
    people = pd.read_csv(table[0]).assign(patient=[f"secret {place % 80}" for place in range(400)])
    people.to_csv(table[0], index=False)
    command = ("canaries", "insert", table[0], "--schema", table[1], "--person", "patient", "--count", "50")
    assert noiseproof(*command, "--out", tmp_path / "c").code == 0
    data, canaries = (pd.read_csv(tmp_path / "c" / name) for name in ("data.csv", "canaries.csv"))
    included = json.loads((tmp_path / "c" / "coins.json").read_text())["included"]
    assert canaries.patient.is_unique
    theirs = data[data.patient.isin(canaries.patient)]
    assert sorted(theirs.patient) == sorted(canaries.patient[included])
    others = data[~data.patient.isin(canaries.patient)]
    assert (others.groupby("patient").size() == 5).all()
    assert others.patient.nunique() == 80
    assert data.patient.max() < 130
    assert "secret" not in (tmp_path / "c" / "data.csv").read_text()
    scores = tmp_path / "scores.txt"
    scores.write_text("\n".join(str(float(one)) for one in included))
    audit = ("canaries", "audit", tmp_path / "c", "--scores", scores, "--schema", table[1], "--person", "patient")
    found = noiseproof(*audit, "--epsilon", "1", "--json").document
    assert (found["unit"], found["claimed"]["unit"], found["verdict"]) == ("person", "person", "refuted")

"""`noiseproof predict`: raw rows in, the same rows with predictions out, in the table's own words."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import noiseproof as npf
from noiseproof.data import Schema

SCHEMA = {
    "columns": {
        "age": {"low": 18, "high": 90, "integer": True, "missing": True},
        "dose [mg]": {"low": 0, "high": 10},
        "ward": {"categories": ["a", "b"], "missing": True},
        "visit": {"low": "2020-01-01", "high": "2021-12-31", "date": "%d.%m.%Y"},
    },
    "target": {"name": "ill", "classes": ["no", "yes"]},
    "missing_values": ["?"],
    "skip": ["patient"],
}


def _patients(rows, seed=0):
    generator = np.random.default_rng(seed)
    dose = generator.random(rows).round(3) * 10
    return pd.DataFrame(
        {
            "patient": [f"p{row}" for row in range(rows)],
            "age": generator.integers(18, 90, rows),
            "dose [mg]": dose,
            "ward": generator.choice(["a", "b"], rows),
            "visit": "05.03.2021",
            "ill": np.where(dose + generator.normal(size=rows) > 5, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    _patients(1500).to_csv(folder / "train.csv", index=False)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    data = npf.load(folder / "train.csv", schema=folder / "schema.json")
    npf.train("dp-sgd", data.train, epsilon=8, seed=0).save(folder / "model")
    npf.train("logits", data.train, epsilon=8, queries=50).save(folder / "answers")
    return folder


def _new(folder, name="new.csv"):
    rows = _patients(40, seed=1).drop(columns="ill").astype({"age": object})
    rows.loc[3, "age"] = "?"
    rows.loc[4, "ward"] = ""
    rows.loc[5, "ward"] = "a ward that nobody knew"
    rows.loc[6, "dose [mg]"] = 1e30
    rows.to_csv(folder / name, index=False)
    return rows


def test_rows_come_back_with_labels_of_the_table_and_probabilities(noiseproof, folder, tmp_path):
    rows = _new(tmp_path)
    outcome = noiseproof("predict", folder / "model", tmp_path / "new.csv", "--out", tmp_path / "scored.csv", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document == {"rows": 40, "out": str(tmp_path / "scored.csv"), "signature": "not signed"}
    assert "'ward'" in outcome.err
    assert "nobody knew" not in outcome.err
    scored = pd.read_csv(tmp_path / "scored.csv")
    assert list(scored.columns) == [*rows.columns, "prediction", "p(no)", "p(yes)"]
    assert set(scored["prediction"]) == {"no", "yes"}
    np.testing.assert_allclose(scored["p(no)"] + scored["p(yes)"], 1, atol=1e-5)
    truth = _patients(40, seed=1)["ill"]
    assert (scored["prediction"] == truth).mean() > 0.7
    again = npf.releases.load_bundle(folder / "model").predict(pd.read_csv(tmp_path / "new.csv", dtype={"age": str}))
    assert (again["prediction"] == scored["prediction"]).all()
    assert again.attrs["remarks"]


def test_without_a_file_the_rows_are_printed(noiseproof, folder, tmp_path):
    _new(tmp_path)
    assert len(noiseproof("predict", folder / "model", tmp_path / "new.csv", "--json").document["predictions"]) == 40
    shown = noiseproof("predict", folder / "model", tmp_path / "new.csv")
    assert "The first 20 of 40 rows" in shown.out


def test_another_tables_columns_are_refused_with_their_names(noiseproof, folder, tmp_path):
    rows = _new(tmp_path).rename(columns={"age": "Age", "ward": "unit"})
    rows.to_csv(tmp_path / "other.csv", index=False)
    outcome = noiseproof("predict", folder / "model", tmp_path / "other.csv", "--out", tmp_path / "scored.csv")
    assert outcome.code == 1
    for words in ("'age', 'ward'", "'Age', 'unit'"):
        assert words in outcome.err
    assert not (tmp_path / "scored.csv").exists()


@pytest.mark.parametrize("out", ["new.csv", "link.csv"])
def test_rows_are_not_written_over(noiseproof, folder, tmp_path, out):
    _new(tmp_path)
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    before = (tmp_path / "new.csv").read_bytes()
    outcome = noiseproof("predict", folder / "model", tmp_path / "new.csv", "--out", tmp_path / out, "--force")
    assert outcome.code == 2
    assert (tmp_path / "new.csv").read_bytes() == before


def test_answers_that_cost_are_paid_from_the_ledger_all_or_none_and_only_for_rows_that_can_be_used(
    noiseproof, folder, tmp_path
):
    _new(tmp_path)
    ledger = tmp_path / "ledger.db"
    ask = ("predict", folder / "answers", tmp_path / "new.csv", "--ledger", ledger, "--json")
    assert noiseproof(*ask).code == 1, "there is no ledger yet"
    noiseproof("ledger", "init", "--ledger", ledger)
    _new(tmp_path, "bad.csv").drop(columns="age").to_csv(tmp_path / "bad.csv", index=False)
    refused = noiseproof("predict", folder / "answers", tmp_path / "bad.csv", "--ledger", ledger)
    assert "no column 'age'" in refused.err
    outcome = noiseproof(*ask)
    assert outcome.code == 0, outcome.err
    assert "10 are left" in outcome.err
    assert len(outcome.document["predictions"]) == 40
    assert noiseproof(*ask).code == 1, "40 more do not fit"
    shown = noiseproof("ledger", "show", "--ledger", ledger).out
    assert "predict" in shown
    noiseproof("ledger", "init", "--ledger", tmp_path / "other.db")
    other = noiseproof(*ask[:-2], tmp_path / "other.db")
    assert "paid for by another ledger" in other.err


def test_a_schema_comes_back_from_what_is_public():
    schema = Schema.model_validate(SCHEMA)
    from noiseproof.data.tables import code

    public = code(_patients(20), schema, name="x")[0].public
    again = Schema.of(public)
    assert again.columns == schema.columns
    assert again.target == schema.target
    assert code(_patients(20).drop(columns="patient"), again, name="x")[0].public == public


def test_a_bundle_that_the_given_key_did_not_sign_answers_nothing(noiseproof, folder, tmp_path):
    _new(folder)
    assert noiseproof("keys", "signing", tmp_path / "vendor.pem").code == 0
    asked = ("predict", folder / "model", folder / "new.csv", "--json")
    assert noiseproof(*asked).document["signature"] == "not signed"
    outcome = noiseproof(*asked, "--key", tmp_path / "vendor.pem.pub")
    assert outcome.code == 1
    assert "not signed" in outcome.err

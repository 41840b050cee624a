"""`synth` writes records like the private ones with their card; what cannot be is one sentence before any spend."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from noiseproof.privacy import Card

QUICK = ("--set", "steps=2", "--set", "generator-steps=10", "--set", "generated=50")
SCHEMA = {
    "columns": {
        "age": {"low": 17, "high": 90, "integer": True},
        "city": {"categories": ["a", "b", "never"]},
        "same": {"categories": ["always"]},
    },
    "target": {"name": "income", "classes": ["low", "high"]},
}


def _people(folder, rows=200, **columns):
    frame = pd.DataFrame(
        {
            "age": [20 + place % 50 for place in range(rows)],
            "city": ["ab"[place % 2] for place in range(rows)],
            "same": "always",
            "income": [("low", "high")[place % 3 == 0] for place in range(rows)],
            **columns,
        }
    )
    path = folder / "people.csv"
    frame.to_csv(path, index=False)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    return path


def test_a_table_keeps_columns_types_categories_and_bounds(noiseproof, tmp_path):
    path, out = _people(tmp_path), tmp_path / "synthetic.csv"
    outcome = noiseproof(
        "synth", "dp-gan", "--data", path, "--target", "income", "--schema", tmp_path / "schema.json",
        "--epsilon", 3, "--rows", 70, "--out", out, "--json", *QUICK,
    )  # fmt: skip
    document = outcome.document
    assert {"rows", "card", "out"} <= document.keys()
    assert document["rows"] == 70
    frame, real = pd.read_csv(out), pd.read_csv(path)
    assert list(frame.columns) == list(real.columns)
    assert list(frame.dtypes) == list(real.dtypes)
    assert frame["age"].between(17, 90).all()
    assert set(frame["city"]) <= {"a", "b", "never"}
    assert set(frame["same"]) == {"always"}
    card = Card.from_json((tmp_path / "synthetic.csv.card.json").read_text())
    assert card.verdict == "proven"
    assert card.proven.epsilon <= 3
    assert document["quality"]["pmf_errors"].keys() == set(real.columns)


def test_pictures_go_to_npz_with_a_contact_sheet(noiseproof, tmp_path):
    out = tmp_path / "digits.npz"
    outcome = noiseproof("synth", "dp-gan", "--rows", 40, "--out", out, "--no-quality", *QUICK)
    assert outcome.code == 0
    with np.load(out) as arrays:
        assert arrays["x"].shape == (40, 1, 8, 8)
    assert (tmp_path / "digits.npz.png").is_file()
    assert "digits.npz.card.json" in outcome.out


def test_without_a_methods_name_the_usual_one_for_such_records_is_taken(noiseproof, tmp_path):
    path = _people(tmp_path)
    about = ("--data", path, "--schema", tmp_path / "schema.json", "--no-quality", "--json")
    table = noiseproof("synth", *about, "--rows", 20, "--set", "steps=2", "--store", tmp_path / "stored")
    assert table.document["method"] == table.document["card"]["method"] == "marginals"
    assert (tmp_path / "stored").is_dir()
    pictures = noiseproof("synth", "--rows", 20, "--no-quality", "--json")
    assert pictures.document["method"] == "moments"
    wrong = noiseproof("synth", *about, "--set", "frequencies=3")
    assert wrong.code == 2
    assert "frequencies" in wrong.err


def test_a_long_table_is_written_part_by_part_with_one_heading(noiseproof, tmp_path, monkeypatch):
    from noiseproof.methods.losses import coding

    monkeypatch.setattr(coding, "_ROWS", 7)
    path, out = _people(tmp_path), tmp_path / "synthetic.csv"
    about = ("--data", path, "--schema", tmp_path / "schema.json", "--no-quality", "--set", "steps=2")
    assert noiseproof("synth", "marginals", *about, "--rows", 20, "--out", out).code == 0
    frame = pd.read_csv(out)
    assert len(frame) == 20
    assert frame["age"].dtype == "int64"


def test_who_asks_for_no_quality_has_all_records_learned_from(noiseproof, tmp_path):
    about = ("--data", _people(tmp_path), "--schema", tmp_path / "schema.json", "--set", "steps=2", "--json")
    assert noiseproof("synth", "marginals", *about).document["rows"] < 200
    for more in ((), ("--neighbours", "replace-one"), ("--store", tmp_path / "stored")):
        assert noiseproof("synth", "marginals", *about, "--no-quality", *more).document["rows"] == 200


def test_people_see_accuracies_and_the_errors_of_shares(noiseproof, tmp_path):
    path = _people(tmp_path)
    outcome = noiseproof("synth", "dp-gan", "--data", path, "--schema", tmp_path / "schema.json", *QUICK)
    assert outcome.code == 0
    for words in ("synthetic records", "commonest class", "eq. 22", "proven"):
        assert words in outcome.out


def _texts(folder):
    return _people(folder, said=[f"free text number {place}" for place in range(200)])


def _few(folder):
    return _people(folder, rows=40)


@pytest.mark.parametrize(("make", "words"), [(_texts, "different texts"), (_few, "50 or more")])
def test_what_no_generator_can_learn_is_refused_before_any_budget_is_spent(noiseproof, tmp_path, make, words):
    out = tmp_path / "synthetic.csv"
    outcome = noiseproof("synth", "dp-gan", "--data", make(tmp_path), "--target", "income", "--out", out)
    assert (outcome.code, outcome.out) == (1, "")
    assert words in outcome.err
    assert outcome.err.count("error:") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dp-sgd",), "dp-gan"),
        (("dp-gan", "--rows", "0"), "rows must be greater than 0"),
        (("dp-gan", "--epsilon", "0"), "epsilon"),
        (("dp-gan", "--out", "made.csv"), ".npz"),
        (("rdp-gan", "--set", "noise-on=nowhere"), "noise_on"),
    ],
)
def test_bad_usage_is_one_sentence(noiseproof, arguments, words):
    outcome = noiseproof("synth", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err


def test_train_points_to_synth_before_any_budget_is_spent(noiseproof):
    outcome = noiseproof("train", "dp-gan")
    assert (outcome.code, outcome.out) == (2, "")
    assert "noiseproof synth dp-gan" in outcome.err


def test_the_quality_goes_to_a_page_that_fetches_nothing(noiseproof, tmp_path):
    page = tmp_path / "quality.html"
    quick = ("--set", "steps=1", "--set", "generator_steps=2", "--set", "width=20")
    made = noiseproof("synth", "dp-gan", "--data", "breast-cancer", "--rows", "60", *quick, "--page", page, "--json")
    assert made.document["page"] == str(page)
    assert page.stat().st_mode & 0o777 == 0o600  # measured on private records: its owner's alone
    text = page.read_text()
    assert "60 synthetic records of dp-gan" in text
    for words in ("Where they are poor", "What not to use them for", "<caption>mean radius</caption>", "<meter"):
        assert words in text
    assert f"{made.document['quality']['synthetic_to_real']:.3f}" in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert noiseproof("synth", "dp-gan", "--data", "breast-cancer", "--page", page).code != 0
    assert noiseproof("synth", "dp-gan", "--data", "breast-cancer", "--no-quality", "--page", tmp_path / "q").code == 2

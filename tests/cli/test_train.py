"""`train` fits, saves and reports; bad input is one sentence and leaves nothing behind."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
import torch

from noiseproof import accuracy, load, load_bundle
from noiseproof.errors import NoiseproofError
from noiseproof.methods.baseline import Baseline
from noiseproof.privacy import accountants
from noiseproof.privacy.events import sampled_gaussian

QUICK = ("--set", "epochs=2", "--no-baseline")


@pytest.fixture
def table(tmp_path):
    rows = ["age,city,label"] + [f"{20 + i % 50},{'ab'[i % 2]},{['no', 'yes'][i % 3 == 0]}" for i in range(120)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_document_has_the_contracts_keys_and_the_bundle_answers_the_same(noiseproof, tmp_path):
    out = tmp_path / "bundle"
    outcome = noiseproof("train", "dp-sgd", "--data", "digits", "--set", "epochs=3", "--out", out, "--json")
    document = outcome.document
    assert {"method", "accuracy", "baseline_accuracy", "card", "seconds", "out"} <= document.keys()
    assert document["out"] == str(out)
    release = load_bundle(out)
    assert accuracy(release, load("digits").test) == document["accuracy"]
    assert document["card"]["verdict"] == "proven" == release.card.verdict
    assert document["baseline_accuracy"] > 0.9


def test_the_cards_epsilon_is_the_accountants_for_the_steps_really_taken(noiseproof):
    card = noiseproof("train", "dp-sgd", *QUICK, "--epsilon", "2", "--json").document["card"]
    ran = card["ran"]
    event = sampled_gaussian(ran["sample_rate"], ran["noise_multiplier"], ran["steps"])
    assert card["proven"]["epsilon"] == pytest.approx(accountants.epsilon(event, 1e-5).epsilon, rel=1e-9)
    assert card["proven"]["epsilon"] <= 2 + 1e-9
    assert ran["sampler"] == "poisson"


def test_adult_by_name_with_its_target(noiseproof, real_data, monkeypatch, tmp_path):
    monkeypatch.setenv("NOISEPROOF_DATA", str(real_data("adult-train.csv").parent))
    out = tmp_path / "B"
    outcome = noiseproof(
        "train", "dp-sgd", "--data", "adult", "--target", "income", "--epsilon", "1", "--out", out, "--json",
        "--set", "epochs=2", "--set", "batch_size=2048", "--no-baseline",
    )  # fmt: skip
    document = outcome.document
    assert document["accuracy"] > 0.78
    assert document["card"]["verdict"] == "proven"
    assert document["card"]["proven"]["epsilon"] <= 1
    assert load_bundle(out).card.method == "dp-sgd"


def test_bounds_read_off_the_data_are_said_aloud_and_nothing_is_proven(noiseproof, table):
    outcome = noiseproof("train", "dp-sgd", "--data", table, "--target", "label", *QUICK, "--json")
    card = outcome.document["card"]
    assert card["proven"] is None
    assert "read off" in card["why"]
    assert "note:" in outcome.err


@pytest.mark.parametrize(
    "command",
    [("train", "dp-sgd", *QUICK), ("synth", "zero-gan", "--no-quality", "--rows", "5")],
)
def test_randomness_is_secure_unless_a_seed_makes_it_a_rehearsal(noiseproof, command):
    secure = noiseproof(*command, "--json")
    assert secure.document["card"]["randomness"] == "secure"
    assert secure.document["card"]["verdict"] == "proven"
    assert "rehearsal" not in secure.err
    seeded = noiseproof(*command, "--seed", "0", "--json")
    assert seeded.document["card"]["verdict"] == "rehearsal"
    assert any("do not release" in note for note in seeded.document["card"]["notes"])
    assert "this is a rehearsal" in seeded.err


def test_two_runs_without_a_seed_are_not_the_same(noiseproof, tmp_path):
    for name in ("a", "b"):
        noiseproof("train", "dp-sgd", *QUICK, "--out", tmp_path / name)
    a, b = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("a", "b"))
    assert a != b


def test_a_bundle_that_stays_inside_says_so(noiseproof, tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.releases.release.ModelRelease.stays_inside", True)
    outcome = noiseproof("train", "dp-sgd", *QUICK, "--out", tmp_path / "bundle", "--json")
    assert "stays inside" in outcome.err
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o700


def test_the_card_notes_that_the_method_was_chosen_by_a_comparison(noiseproof, tmp_path):
    from noiseproof.run import Plan, compare

    found = compare(Plan("breast-cancer", methods=("functional",), trials=5), tmp_path / "runs", jobs=1)
    assert found.recommendations[0].command.startswith("noiseproof train functional --data breast-cancer --epsilon 3")
    card = noiseproof("train", "dp-sgd", *QUICK, "--chosen-by", tmp_path / "runs", "--json").document["card"]
    assert any("chosen by the exact accuracies of 1 methods" in note for note in card["notes"])
    outcome = noiseproof("train", "dp-sgd", *QUICK, "--chosen-by", tmp_path)
    assert outcome.code == 1
    assert "holds no results.json" in outcome.err


@pytest.mark.parametrize("method", ["functional", "votes", "logits"])
def test_a_network_for_a_method_that_trains_none_is_refused(noiseproof, method):
    outcome = noiseproof("train", method, "--network", "mlp")
    assert outcome.code == 2
    assert "leave the network out" in outcome.err


def test_the_same_seed_gives_the_same_network(noiseproof, tmp_path):
    for name in ("a", "b"):
        noiseproof("train", "dp-sgd", *QUICK, "--seed", "5", "--out", tmp_path / name)
    a, b = (load_bundle(tmp_path / name).tensors() for name in ("a", "b"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def _write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--epsilon", "0"), 2, "epsilon"),
        (("--epsilon", "-3"), 2, "epsilon"),
        (("--delta", "1"), 2, "delta"),
        (("--set", "batch_size=0"), 2, "batch_size"),
        (("--set", "batch_size=many"), 2, "batch_size"),
        (("--set", "colour=blue"), 2, "colour"),
        (("--set", "epochs"), 2, "NAME=VALUE"),
        (("--network", "transformer-xxl"), 2, "transformer-xxl"),
        (("--data", "no-such-set"), 2, "no-such-set"),
        (("--data", "missing.csv", "--target", "label"), 1, "missing.csv"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(noiseproof, tmp_path, arguments, code, words):
    outcome = noiseproof("train", "dp-sgd", *arguments, "--out", tmp_path / "bundle", "--json")
    assert (outcome.code, outcome.out) == (code, "")
    assert words in outcome.err
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("age,label\n", "no records"),
        ("age,label\n1,a\n2,a\n3,a\n", "class"),
        ("age,weight\n1,a\n2,b\n", "label"),
    ],
)
def test_a_bad_table_is_one_sentence_and_leaves_nothing_behind(noiseproof, tmp_path, text, words):
    path = _write(tmp_path / "table.csv", text)
    outcome = noiseproof("train", "dp-sgd", "--data", path, "--target", "label", "--out", tmp_path / "bundle")
    assert outcome.code in (1, 2)
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]


def test_nan_and_text_among_numbers_are_refused_without_naming_a_value(noiseproof, tmp_path):
    features = np.random.default_rng(0).random((20, 3))
    features[4, 1] = np.nan
    np.savez(tmp_path / "nan.npz", x=features, y=np.arange(20) % 2)
    outcome = noiseproof("train", "dp-sgd", "--data", tmp_path / "nan.npz")
    assert outcome.code == 1
    assert "NaN" in outcome.err
    schema = {
        "columns": {"age": {"low": 0, "high": 99}},
        "target": {"name": "label", "classes": ["a", "b"]},
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    path = _write(tmp_path / "text.csv", "age,label\n1,a\nJaneDoe,b\n3,a\n4,b\n")
    outcome = noiseproof("train", "dp-sgd", "--data", path, "--target", "label", "--schema", tmp_path / "schema.json")
    assert outcome.code == 1
    assert "age" in outcome.err
    assert "JaneDoe" not in outcome.err


def test_what_was_paid_for_is_kept_if_the_baseline_fails(noiseproof, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise NoiseproofError("the baseline fails.")

    monkeypatch.setattr(Baseline, "fit", fail)
    outcome = noiseproof("train", "dp-sgd", "--data", "digits", "--set", "epochs=1", "--out", tmp_path / "bundle")
    assert outcome.code != 0
    assert load_bundle(tmp_path / "bundle").card.verdict == "proven"


def test_a_baseline_passes_over_many_records_less_often():
    public = load("digits").train.public
    assert Baseline().for_records(1000, public) == Baseline()
    assert Baseline().for_records(60_000, public).epochs * 60_000 == 5000 * Baseline.batch_size

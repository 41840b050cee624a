"""`--recipe` of `train` and `compare`: auto picks by the data, none and a name overrule it, what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from noiseproof import load_bundle


@pytest.fixture
def bits(tmp_path, monkeypatch):
    """A file of wide binary records, for which auto picks the recipe `unit`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 2
    records = (generator.random((400, 130)) < 0.2 + 0.2 * labels[:, None]).astype(np.uint8)
    path = tmp_path / "bits.npz"
    np.savez(path, x=records, y=labels, low=0, high=1, class_names=["a", "b"])
    return path


def test_train_uses_the_recipe_that_suits_the_data_unless_told_otherwise(noiseproof, bits, tmp_path):
    quick = ("train", "dp-sgd", "--data", bits, "--epsilon", "8", "--seed", "0", "--no-baseline", "--json")
    cooked = noiseproof(*quick, "--out", tmp_path / "bundle").document
    assert cooked["card"]["ran"]["recipe"] == "unit"
    assert cooked["accuracy"] > 0.7  # of 99 test records; guessing has a half
    assert load_bundle(tmp_path / "bundle").network.name == "mapped"
    plain = noiseproof(*quick, "--recipe", "none", "--set", "epochs=2").document
    assert "recipe" not in plain["card"]["ran"]
    own = noiseproof(*quick, "--set", "epochs=3", "--set", "averaging=0").document
    assert (own["card"]["ran"]["recipe"], own["card"]["ran"]["steps"]) == ("unit", 3)


def test_compare_uses_it_for_dp_sgd_alone(noiseproof, bits, tmp_path):
    quick = (
        "compare",
        "--data",
        bits,
        "--methods",
        "dp-sgd,dp-sgd-bounded",
        "--epsilon",
        "8",
        "--trials",
        "20",
        "--json",
    )
    rows = noiseproof(*quick, "--out", tmp_path / "a").document["rows"]
    recipes = {row["method"]: row["card"]["ran"].get("recipe") for row in rows}
    assert recipes == {"none": None, "dp-sgd": "unit", "dp-sgd-bounded": None}
    (bundle,) = [row["bundle"] for row in rows if row["method"] == "dp-sgd"]
    assert load_bundle(tmp_path / "a" / bundle).card.ran["recipe"] == "unit"


@pytest.mark.parametrize("command", [("train", "dp-sgd"), ("compare",)])
def test_a_recipe_that_there_is_not_is_bad_usage(noiseproof, command):
    outcome = noiseproof(*command, "--recipe", "soup")
    assert outcome.code == 2
    assert "there is no recipe 'soup'" in " ".join(outcome.err.split())

"""`attack` measures membership inference against a bundle."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    import noiseproof as npf

    out = tmp_path_factory.mktemp("attack") / "bundle"
    return npf.train("none", "digits", seed=0, epochs=3.0).save(out)


@pytest.mark.parametrize("attack", ["loss", "shadow", "lira"])
def test_the_document_has_the_contracts_keys(noiseproof, bundle, attack, tmp_path):
    roc = tmp_path / "roc.png"
    outcome = noiseproof("attack", bundle, "--attack", attack, "--shadows", "4", "--roc", roc, "--json")
    document = outcome.document
    assert {"advantage", "auc", "tpr_at_fpr", "per_class"} <= document.keys()
    assert len(document["per_class"]) == 10
    assert roc.stat().st_size > 1000


def test_other_records_than_the_bundles_are_refused(noiseproof, bundle):
    outcome = noiseproof("attack", bundle, "--data", "breast-cancer")
    assert outcome.code == 1
    assert "other records" in outcome.err


def test_an_unknown_attack_is_bad_usage(noiseproof, bundle):
    assert noiseproof("attack", bundle, "--attack", "telepathy").code == 2


def test_an_attack_with_another_split_than_the_trainings_is_noticed(noiseproof, tmp_path):
    given = ("--data", "breast-cancer")
    noiseproof("train", "none", *given, "--seed", "3", "--set", "epochs=2", "--out", tmp_path / "m", "--no-baseline")
    same = noiseproof("attack", tmp_path / "m", *given, "--seed", "3", "--attack", "loss", "--json")
    assert same.document["trained_on"] is True
    other = noiseproof("attack", tmp_path / "m", *given, "--seed", "0", "--attack", "loss", "--json")
    assert other.document["trained_on"] is False
    assert "members cannot be told from others" in other.err

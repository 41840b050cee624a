"""`audit` plays a method's game and writes what it finds into the card."""

from __future__ import annotations

import pytest

from noiseproof.releases import bundles


def test_the_document_has_the_contracts_keys(noiseproof):
    document = noiseproof("audit", "dp-sgd", "--trials", "60", "--json").document
    assert {"claimed", "proven", "audited", "verdict"} <= document.keys()
    assert document["audited"]["epsilon"] <= document["proven"]["epsilon"]


def test_noisy_gradient_shows_far_more_than_dp_sgd_proves_at_its_noise(noiseproof):
    document = noiseproof("audit", "noisy-gradient", "--trials", "400", "--json").document
    assert document["claimed"] is None
    assert document["proven"] is None
    assert document["audited"]["epsilon"] > 3


def test_a_bundles_card_gets_the_audits_result(noiseproof, tmp_path):
    out = tmp_path / "bundle"
    noiseproof("train", "dp-sgd", "--set", "epochs=1", "--no-baseline", "--out", out)
    outcome = noiseproof("audit", out, "--trials", "60", "--json")
    assert outcome.code == 0
    assert bundles.read_card(out).audited.epsilon == outcome.document["audited"]["epsilon"]


def test_a_bundle_cannot_be_audited_with_other_settings(noiseproof, tmp_path):
    out = tmp_path / "bundle"
    noiseproof("train", "none", "--set", "epochs=1", "--out", out)
    assert noiseproof("audit", out, "--set", "epochs=9").code == 2


def test_a_training_with_little_noise_at_a_low_rate_is_not_refuted_by_a_game_at_a_high_one(noiseproof, tmp_path):
    out = tmp_path / "bundle"
    noiseproof(
        "train", "dp-sgd", "--set", "noise_multiplier=0.7", "--set", "batch_size=20", "--set", "epochs=1", "--out", out
    )
    noiseproof("audit", out, "--trials", "300")
    assert bundles.read_card(out).verdict == "proven"


def test_a_prediction_bundle_is_audited_with_the_noise_of_all_its_answers(noiseproof, tmp_path):
    """With the budget of one answer nothing would be composed, and the game be played with a tenth of the noise."""
    out = tmp_path / "bundle"
    made = noiseproof("train", "logits", "--data", "breast-cancer", "--queries", "100", "--no-baseline", "--out", out)
    assert "stays inside" in made.err
    outcome = noiseproof("audit", out, "--trials", "60", "--json")
    assert "stays inside" in outcome.err
    alone = noiseproof("audit", "logits", "--epsilon", "3", "--trials", "60", "--json").document
    assert (outcome.document["proven"]["accountant"], alone["proven"]["accountant"]) == ("rdp", "sum")


def test_an_end_to_end_audit_trains_anew_and_takes_a_row_as_the_canary(noiseproof, tmp_path):
    out = tmp_path / "bundle"
    noiseproof("train", "none", "--set", "epochs=1", "--out", out)
    assert "trains anew" in noiseproof("audit", out, "--end-to-end").err
    for canary in ("1797", "-1", "3:eleven", "three"):
        assert "--canary takes a row" in noiseproof("audit", "none", "--end-to-end", "--canary", canary).err


@pytest.mark.slow
def test_an_end_to_end_audit_trains_on_a_file_and_keeps_its_runs(noiseproof, tmp_path):
    rows = "".join(f"{i % 70},{i % 9},{'ab'[i % 2]}\n" for i in range(100))
    (tmp_path / "people.csv").write_text("age,rooms,label\n" + rows)
    command = [
        "audit",
        "none",
        "--data",
        tmp_path / "people.csv",
        "--target",
        "label",
        "--end-to-end",
        "--trials",
        "20",
    ]
    outcome = noiseproof(*command, "--canary", "3:a", "--set", "epochs=200", "--resume", tmp_path / "kept", "--json")
    assert outcome.document["claimed"] is None
    assert outcome.document["audited"]["confidence"] == 0.95
    assert outcome.document["counted"] == 12
    assert len(list((tmp_path / "kept").glob("trial-*.npz"))) == 40

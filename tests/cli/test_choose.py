"""`choose` goes from the command line to a bundle whose card includes the choice."""

from __future__ import annotations

from noiseproof.releases import load_bundle


def test_the_chosen_release_is_saved_with_the_price_of_the_choice(noiseproof, tmp_path):
    given = ("--data", "breast-cancer", "--epsilon", "2", "--runs", "3", "--out", tmp_path / "best")
    outcome = noiseproof("choose", "functional", "dp-sgd:epochs=1:lr=2", *given, "--json")
    document = outcome.document
    assert document["chosen"] in ("functional", "dp-sgd:epochs=1:lr=2")
    assert "seconds" not in document
    card = load_bundle(tmp_path / "best").card
    assert card.verdict == document["card"]["verdict"] == "proven"
    assert card.proven.epsilon <= 2
    assert card.ran["candidates"] == ["functional", "dp-sgd epochs=1 lr=2"]


def test_one_candidate_and_unknown_ones_are_bad_usage(noiseproof):
    assert noiseproof("choose", "functional").code == 2
    assert noiseproof("choose", "functional", "no-such").code == 2
    assert noiseproof("choose", "functional", "dp-sgd:lr").code == 2
    refused = noiseproof("choose", "functional", "logits", "--data", "breast-cancer")
    assert refused.code == 1
    assert "cannot take part in a paid choice" in refused.err

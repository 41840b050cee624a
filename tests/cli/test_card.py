"""`card` shows a bundle's card and exports it."""

from __future__ import annotations

import noiseproof as npf


def test_a_bundles_card_is_shown_and_exported(noiseproof, tmp_path):
    npf.train("functional", "breast-cancer", epsilon=1).save(tmp_path / "m")
    outcome = noiseproof("card", tmp_path / "m", "--hugging-face", tmp_path / "README.md")
    assert outcome.code == 0
    assert "Proven: epsilon" in outcome.out
    assert "assumed:" in outcome.out
    assert "not signed: anybody may have written" in outcome.out
    assert "library_name: noiseproof" in (tmp_path / "README.md").read_text()
    assert noiseproof("card", tmp_path / "m", "--json").document["verdict"] == "proven"
    assert noiseproof("card", tmp_path / "m", "--hugging-face", tmp_path / "README.md").code != 0

"""A model card for the Hugging Face hub says what our card says."""

from __future__ import annotations

import pytest

import noiseproof as npf
from noiseproof.errors import UnsupportedError
from noiseproof.report import model_card


def test_the_hub_reads_its_header_and_people_the_guarantee():
    hub = pytest.importorskip("huggingface_hub")
    release = npf.train("functional", "breast-cancer", epsilon=1)
    card = hub.ModelCard(model_card(release))
    assert card.data.library_name == "noiseproof"
    assert "differential-privacy" in card.data.tags
    assert release.card.text in card.text
    assert all(one in card.text for one in release.card.proven.assumptions)


def test_what_must_stay_inside_gets_none():
    with pytest.raises(UnsupportedError, match="rehearsal"):
        model_card(npf.train("functional", "breast-cancer", seed=0))
    with pytest.raises(UnsupportedError, match="must stay inside"):
        model_card(npf.train("logits", "breast-cancer"))

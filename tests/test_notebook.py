"""What a notebook shows of releases, cards and comparisons: what it is, escaped."""

from __future__ import annotations

import pytest

import noiseproof as npf
from noiseproof.notebook import html_table
from noiseproof.releases import bundles, signing, signing_keys


@pytest.fixture(scope="module")
def release():
    return npf.train("functional", "breast-cancer", epsilon=1)


def test_print_says_what_a_release_and_a_card_are(release):
    assert str(release).startswith(
        "model release of functional, 2 classes from records of shape (30,): Proven: epsilon"
    )
    assert repr(release) == f"<{release}>"
    assert str(release.card).startswith("functional: Proven: epsilon")


def test_a_notebook_shows_the_card_as_a_table(release):
    for shown in (release._repr_html_(), release.card._repr_html_()):
        assert "<table>" in shown
        assert "proven" in shown
        assert f"{release.card.proven.epsilon:.4g}" in shown


def test_html_is_escaped():
    shown = html_table("<b>", ("<i>",), [("<script>",)])
    assert "<script>" not in shown
    assert "&lt;b&gt;" in shown


def test_a_notebook_says_whether_anybody_signed(release, tmp_path):
    assert "not signed" in release._repr_html_()
    loaded = bundles.load(release.save(tmp_path / "model"))
    assert "not signed" in loaded._repr_html_()
    private, _ = signing_keys.make_keys(tmp_path / "key.pem")
    signing.sign_bundle(tmp_path / "model", signing_keys.read_private_key(private))
    assert "without the signer&#x27;s public key it shows nothing" in loaded._repr_html_()

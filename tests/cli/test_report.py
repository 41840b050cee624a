"""`noiseproof report` writes a page of whatever it is given, or one sentence."""

from __future__ import annotations

import shutil

import pytest
import torch

import noiseproof as npf
from noiseproof.report import pdf


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    data = npf.load("digits")
    made = npf.train("dp-sgd", data.train.take(torch.arange(100)), epsilon=3, epochs=1, network="linear")
    return made.save(tmp_path_factory.mktemp("bundle") / "model")


def test_a_bundle_and_its_card_become_a_page(noiseproof, bundle, tmp_path):
    for subject in (bundle, bundle / "card.json"):
        out = tmp_path / f"{subject.stem}.html"
        document = noiseproof("report", subject, "--out", out, "--json").document
        assert document["out"] == str(out)
        assert document["signature"] == "not signed"
        assert "Is it safe to publish?" in out.read_text()
    assert noiseproof("report", bundle, "--out", out).code == 2  # nothing is written over


def test_an_audits_json_becomes_a_page(noiseproof, tmp_path):
    file = tmp_path / "audit.json"
    file.write_text(noiseproof("audit", "dp-sgd", "--trials", 50, "--json").out)
    outcome = noiseproof("report", file, "--out", tmp_path / "audit.html")
    assert outcome.code == 0, outcome.err
    assert "Does the promise hold?" in (tmp_path / "audit.html").read_text()


def test_a_ledgers_account_is_on_the_page(noiseproof, bundle, tmp_path):
    ledger = tmp_path / "ledger.db"
    assert noiseproof("ledger", "init", "--ledger", ledger).code == 0
    out = tmp_path / "page.html"
    assert noiseproof("report", bundle, "--ledger", ledger, "--out", out).code == 0
    assert "knows no release yet" in out.read_text()


@pytest.mark.skipif(not any(map(shutil.which, pdf.BROWSERS)), reason="no Chromium is installed")
def test_a_pdf_is_printed(noiseproof, bundle, tmp_path):
    outcome = noiseproof("report", bundle, "--out", tmp_path / "page.pdf")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_without_a_browser_a_pdf_is_refused_in_a_sentence(noiseproof, bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(pdf, "BROWSERS", ("no-such-browser",))
    outcome = noiseproof("report", bundle, "--out", tmp_path / "page.pdf")
    assert outcome.code == 1
    assert "none is installed" in outcome.err
    assert not (tmp_path / "page.pdf").exists()


def test_what_cannot_be_shown_is_one_sentence(noiseproof, bundle, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.json").write_text("{}")
    for subjects, words in (
        ((tmp_path / "none",), "there is no"),
        ((tmp_path / "empty",), "holds no results.json"),
        ((tmp_path / "x.json",), "not the JSON of an audit"),
        ((bundle, bundle), "about one bundle"),
    ):
        outcome = noiseproof("report", *subjects, "--out", tmp_path / "page.html")
        assert outcome.code in (1, 2)
        assert words in outcome.err
    assert noiseproof("report", bundle, "--out", tmp_path / "page.txt").code == 2

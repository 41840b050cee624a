"""`noiseproof sign` and `verify` tell an officer who vouches for a bundle, and what is wrong with it."""

from __future__ import annotations

import json
import shutil

import pytest

from noiseproof.releases import bundles


@pytest.fixture
def signed(noiseproof, tmp_path):
    bundle, key = tmp_path / "model", tmp_path / "vendor.pem"
    options = ("--epsilon", 3, "--set", "epochs=2", "--network", "linear", "--no-baseline", "--out", bundle)
    assert noiseproof("train", "dp-sgd", "--data", "digits", *options).code == 0
    assert noiseproof("keys", "signing", key).code == 0
    assert noiseproof("sign", bundle, "--key", key).code == 0
    return bundle, f"{key}.pub"


def test_a_signed_bundle_verifies_and_its_epsilon_is_recomputed(noiseproof, signed):
    bundle, key = signed
    outcome = noiseproof("verify", bundle, "--key", key, "--recompute", "--json")
    assert outcome.code == 0, outcome.err
    document = outcome.document
    assert document["signed"] is document["valid"] is document["recomputed"]["holds"] is True
    assert document["recomputed"]["epsilon"] == pytest.approx(document["recomputed"]["stated"], rel=1e-3)
    told = noiseproof("verify", bundle, "--key", key).out
    assert f"{bundle}: valid. Nobody has changed it" in told.replace("\n", " ")
    assert f"{document['digests'][bundles.WEIGHTS]}  {bundles.WEIGHTS}" in told
    assert "does not show that the training ran" in told


def test_a_changed_card_fails_with_the_files_name(noiseproof, signed):
    bundle, key = signed
    card = json.loads((bundle / bundles.CARD).read_text())
    card["proven"]["epsilon"] = 0.1
    (bundle / bundles.CARD).write_text(json.dumps(card))
    outcome = noiseproof("verify", bundle, "--key", key, "--json")
    assert outcome.code == 1
    assert outcome.document["valid"] is False
    assert any("card.json is not what was signed" in finding for finding in outcome.document["findings"])


def test_without_a_key_nothing_is_called_valid(noiseproof, signed):
    outcome = noiseproof("verify", signed[0], "--json")
    assert outcome.code == 1
    assert outcome.document["signed"] is True
    assert outcome.document["valid"] is False


def test_a_key_that_is_not_there_is_one_sentence(noiseproof, signed, tmp_path):
    outcome = noiseproof("verify", signed[0], "--key", tmp_path / "none.pub")
    assert outcome.code == 2
    assert "cannot be read" in outcome.err


def test_an_audit_is_signed_and_verified_as_a_file(noiseproof, tmp_path):
    file, key = tmp_path / "audit.json", tmp_path / "vendor.pem"
    file.write_text("{}")
    assert noiseproof("keys", "signing", key).code == 0
    assert noiseproof("sign", file, "--key", key, "--json").document["signature"] == f"{file}.signature.json"
    assert noiseproof("verify", file, "--key", f"{key}.pub", "--json").document["status"] == "signed"
    file.write_text('{"verdict": "proven"}')
    outcome = noiseproof("verify", file, "--key", f"{key}.pub")
    assert outcome.code == 1
    assert "audit.json is not what was signed" in outcome.out
    assert noiseproof("verify", file, "--recompute").code == 2


def test_a_signer_behind_a_command_and_its_public_key_belong_together(noiseproof, tmp_path):
    file, key = tmp_path / "audit.json", tmp_path / "vendor.pem"
    file.write_text("{}")
    assert noiseproof("keys", "signing", key).code == 0
    signer = f"openssl pkeyutl -sign -rawin -inkey {key} -in {{payload}}"
    for wrong in ((), ("--signer", signer), ("--public", f"{key}.pub"), ("--key", key, "--signer", signer)):
        outcome = noiseproof("sign", file, *wrong)
        assert (outcome.code, "--signer together with --public" in outcome.err) == (2, True)
    if shutil.which("openssl"):
        assert noiseproof("sign", file, "--signer", signer, "--public", f"{key}.pub").code == 0
        assert noiseproof("verify", file, "--key", f"{key}.pub").code == 0


@pytest.mark.parametrize("name", ["\x1b[1A\x1b[2Kvalid", "\u202eexe", "\udcff"])
def test_the_name_of_a_file_cannot_paint_over_the_verdict(noiseproof, signed, name):
    (signed[0] / name).write_text("x")
    outcome = noiseproof("verify", signed[0], "--key", signed[1])
    assert outcome.code == 1
    assert outcome.out.count("NOT valid") == 1
    assert not set("\x1b\u202e\udcff") & set(outcome.out)
    assert name.encode("unicode_escape").decode()[:4] in outcome.out
    page = signed[0].parent / "page.html"
    assert noiseproof("report", signed[0], "--key", signed[1], "--out", page).code == 0
    assert not set("\x1b\u202e") & set(page.read_text())

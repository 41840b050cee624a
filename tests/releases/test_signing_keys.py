"""A key may lie in a file or behind a command; what a command prints is checked before it is believed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from noiseproof.errors import SettingError
from noiseproof.releases import signing, signing_keys

OPENSSL = shutil.which("openssl")
MODULE = "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"

ed25519 = "openssl pkeyutl -sign -rawin -inkey {key} -in {{payload}}"
p256 = "openssl dgst -sha256 -sign {key} {{payload}}"


def public_pem(key, path):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_bytes(serialization.Encoding.PEM, form))
    return path


@pytest.fixture
def keys(tmp_path):
    """Private and public PEM files of an Ed25519 key and of a P-256 one."""
    elliptic = ec.generate_private_key(ec.SECP256R1())
    private = tmp_path / "p256.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(elliptic.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return {
        "ed25519": signing_keys.make_keys(tmp_path / "ed25519.pem"),
        "p256": (private, public_pem(elliptic.public_key(), tmp_path / "p256.pub")),
    }


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text("{}")
    return path


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
@pytest.mark.parametrize(("kind", "command"), [("ed25519", ed25519), ("p256", p256)])
def test_a_command_signs_with_a_key_that_this_package_never_reads(keys, file, kind, command):
    private, public = keys[kind]
    signer = signing_keys.CommandSigner(command.format(key=private), signing_keys.read_public_key(public))
    signing.sign_file(file, signer)
    assert signing.verify_file(file, signing_keys.read_public_key(public)).status == "signed"
    other = signing_keys.read_public_key(keys["p256" if kind == "ed25519" else "ed25519"][1])
    assert signing.verify_file(file, other).status == "changed"


def test_a_key_service_may_print_base64(keys, tmp_path):
    private, public = keys["ed25519"]
    printed = tmp_path / "printed"
    signer = signing_keys.CommandSigner(f"sh -c 'cat {printed}' {{payload}}", signing_keys.read_public_key(public))
    printed.write_bytes(b64encode(signing_keys.read_private_key(private).sign(b"x")) + b"\n")
    assert len(signer.sign(b"x")) == 64
    with pytest.raises(SettingError, match="no signature with the given public key"):
        signer.sign(b"y")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "reads the file"),
        ("openssl", "reads the file"),
        ("'unclosed {payload}", "reads the file"),
        ("no-such-program {payload}", "cannot be run"),
        ("false {payload}", "failed"),
        ("echo {payload}", "no signature"),
    ],
)
def test_a_command_that_signs_nothing_leaves_nothing_behind(keys, file, command, words):
    public = signing_keys.read_public_key(keys["ed25519"][1])
    with pytest.raises(SettingError, match=words):
        signing.sign_file(file, signing_keys.CommandSigner(command, public))
    assert not signing.signature_path(file).exists()


def test_other_curves_are_refused(tmp_path):
    path = public_pem(ec.generate_private_key(ec.SECP384R1()).public_key(), tmp_path / "p384.pub")
    with pytest.raises(SettingError, match="Ed25519 or P-256"):
        signing_keys.read_public_key(path)


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_sigstores_own_code_verifies_an_envelope_that_a_p256_key_signed(keys, file):
    dsse = pytest.importorskip("sigstore.dsse", reason="sigstore is not installed")
    errors = pytest.importorskip("sigstore.errors")
    private, public = keys["p256"]
    key = signing_keys.read_public_key(public)
    signing.sign_file(file, signing_keys.CommandSigner(p256.format(key=private), key))
    text = signing.signature_path(file).read_text()
    payload = dsse._verify(key, dsse.Envelope._from_json(text))
    assert dsse.Statement(payload)._inner.predicate_type == signing.FILE_PREDICATE
    envelope = json.loads(text)
    envelope["payload"] = b64encode(payload.replace(b"audit.json", b"other.json")).decode()
    with pytest.raises(errors.VerificationError):
        dsse._verify(key, dsse.Envelope._from_json(json.dumps(envelope)))


@pytest.mark.skipif(
    not (os.path.exists(MODULE) and shutil.which("pkcs11-tool") and shutil.which("softhsm2-util")),
    reason="softhsm2 and opensc are not installed",
)
def test_a_key_in_a_pkcs11_token_signs_and_stays_there(file, tmp_path, monkeypatch):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path / 'tokens'}\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    monkeypatch.setenv("PIN", "5678")
    tool = ["pkcs11-tool", "--module", MODULE, "--login", "--pin", "env:PIN"]
    for words in (
        ["softhsm2-util", "--init-token", "--free", "--label", "vendor", "--so-pin", "1234", "--pin", "5678"],
        [*tool, "--keypairgen", "--key-type", "EC:edwards25519", "--id", "01"],
    ):
        subprocess.run(words, check=True, capture_output=True)
    listed = subprocess.run([*tool, "--list-objects", "--type", "pubkey"], check=True, capture_output=True, text=True)
    point = bytes.fromhex(re.search("EC_POINT: +0420([0-9a-f]{64})", listed.stdout)[1])
    public = Ed25519PublicKey.from_public_bytes(point)
    command = f"{' '.join(tool)} --sign --mechanism EDDSA --id 01 --input-file {{payload}}"
    signing.sign_file(file, signing_keys.CommandSigner(command, public))
    assert signing.verify_file(file, public).status == "signed"

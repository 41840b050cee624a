"""Keys that sign: in a file of their holder's, or behind a command that talks to a hardware module or a key service."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from noiseproof.errors import SettingError
from noiseproof.files import check_out, write_whole

PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey
"""Ed25519, or ECDSA on P-256 with SHA-256: all that many hardware modules and key services have, and what sigstore uses."""


class Signer(Protocol):
    """Whoever can sign bytes: an `Ed25519PrivateKey`, or a `CommandSigner`."""

    def sign(self, data: bytes, /) -> bytes:
        """A signature over `data`."""

    def public_key(self) -> PublicKey:
        """The key that it is checked with."""


class CommandSigner:
    """A key that never leaves its hardware module or key service: a command prints each signature.

    Args:
        command: A program and its arguments, run without a shell; `{payload}` stands for a file with the bytes to sign. It
            prints the signature, as bytes or in base64; it may ask for a PIN at the terminal.
        public: The key that belongs to it.

    Raises:
        SettingError: If the command names no `{payload}`.
    """

    def __init__(self, command: str, public: PublicKey) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError:
            self._words = []
        if not any("{payload}" in word for word in self._words[1:]):
            raise SettingError("a signer is a command that reads the file {payload} and prints a signature of it.")
        self._public = public

    def public_key(self) -> PublicKey:
        """The key that signatures are checked with."""
        return self._public

    def sign(self, data: bytes, /) -> bytes:
        """What the command prints, if it is a signature over `data` with the public key.

        Raises:
            SettingError: If the command fails, or prints anything else.
        """
        program = self._words[0]
        with tempfile.NamedTemporaryFile(prefix="noiseproof-") as payload:
            payload.write(data)
            payload.flush()
            words = [word.replace("{payload}", payload.name) for word in self._words]
            try:
                said = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
            except OSError as error:
                raise SettingError(f"the signer {program} cannot be run ({error.strerror}).") from None
            except subprocess.CalledProcessError as error:
                raise SettingError(f"the signer {program} failed (exit code {error.returncode}).") from None
        forms = [said]
        with contextlib.suppress(binascii.Error, ValueError):
            forms.append(base64.b64decode(b"".join(said.split()), validate=True))
        for form in forms:
            if holds(self._public, data, form):
                return form
        raise SettingError(f"what {program} printed is no signature with the given public key; nothing was written.")


def make_keys(path: str | Path) -> tuple[Path, Path]:
    """Make a signing key: `path` for its holder alone (mode 0600), and `path`.pub for everybody.

    Args:
        path: Where the private key is to be; nothing is overwritten.

    Returns:
        The paths of the private and the public key, both PEM.

    Raises:
        SettingError: If one of the two exists.
    """
    private, public = Path(path), Path(f"{path}.pub")
    for target in (private, public):
        check_out(target)
    key = Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_whole(private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), mode=0o600)
    write_whole(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """The signing key in a PEM file that nobody but its owner can read."""
    with contextlib.suppress(OSError):
        if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
            raise SettingError(
                f"others can read the private key {path}; take their rights away with `chmod 600 {path}`."
            )
    key = _read_key(path, lambda content: serialization.load_pem_private_key(content, None), "private")
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingError(f"{path} holds no Ed25519 private key; `noiseproof keys signing FILE` makes one.")
    return key


def read_public_key(path: str | Path) -> PublicKey:
    """The key in a PEM file that signatures are checked with."""
    key = _read_key(path, serialization.load_pem_public_key, "public")
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise SettingError(f"{path} holds no public key of Ed25519 or P-256; ask the signer for it.")


def key_id(key: PublicKey) -> str:
    """The name that a key is known by: the SHA-256 of its DER form."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def holds(key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is one over `data` by the holder of `key`."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, data)
        else:
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _read_key(path: str | Path, read: Callable[[bytes], Any], kind: str) -> Any:
    try:
        return read(Path(path).read_bytes())
    except OSError as error:
        raise SettingError(f"the {kind} key {path} cannot be read ({error.strerror}).") from error
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SettingError(f"{path} holds no {kind} key in PEM form without a password.") from None

"""Signed bundles and files: who vouches for which bytes, as an in-toto statement in a DSSE envelope.

A bundle's own digests guard against accidents; anybody can compute them anew. A signature can only be made with the key.
It says that the holder of the key vouched for exactly these files. It does not say that the training ran as the card
tells: whoever signs may have been mistaken or lied, which is what audits and `recompute` are for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from noiseproof.errors import BundleError, NoiseproofError
from noiseproof.files import strict_json, write_whole
from noiseproof.privacy import Card, accountants
from noiseproof.privacy.events import DpEvent, EventLog, PoissonSampledDpEvent, SelfComposedDpEvent
from noiseproof.releases import bundles
from noiseproof.releases.signing_keys import PublicKey, Signer, holds, key_id

if TYPE_CHECKING:
    from noiseproof.releases.release import Release

SIGNATURE = "signature.json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:noiseproof:release:v1"
FILE_PREDICATE = "urn:noiseproof:file:v1"
"""What is said of a single file: a card, an audit's document, the export of a ledger."""

SHOWS_NOT = (
    "A signature shows who vouches for these bytes. It does not show that the training ran as the card says, "
    "nor that the signer can be trusted."
)

UNSIGNED = "it is not signed: anybody can have written it."
UNCHECKED = "without the signer's public key a signature shows nothing; give --key."

LOCAL = {bundles.BINDING: "which ledger pays for its answers, noted by whoever serves it"}
"""Files that a bundle gets after it was signed, and what they hold; no signature covers them."""

_MOST_FILES = 32
"""Files that may lie in a bundle, for notes beside its own: each of them is read."""

Status = Literal["signed", "not checked", "not signed", "changed"]

_SLACK = 1e-3
"""Accountants of another version may differ by so much of an epsilon."""


def sign(files: Mapping[str, bytes], predicate_type: str, predicate: Mapping[str, Any], key: Signer) -> str:
    """An envelope over files: an in-toto statement of their digests and of `predicate`, signed.

    Args:
        files: What is signed, by name.
        predicate_type: What the predicate is.
        predicate: What is said of the files.
        key: Who signs.

    Returns:
        The DSSE envelope, as JSON.
    """
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": _sha256(files[name])}} for name in sorted(files)],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    payload = json.dumps(statement, sort_keys=True).encode()
    signature = key.sign(encoded(PAYLOAD, payload))
    envelope = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope, indent=2)


def encoded(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed, so that neither type nor length can be exchanged."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


@dataclass(frozen=True)
class Verdict:
    """What is signed, by whom, over which bytes, and what is wrong with it."""

    signed: bool
    by: str | None = None
    """The id of the key that the envelope names."""
    files: tuple[str, ...] = ()
    """The files that the signature covers and that are as they were signed."""
    findings: tuple[str, ...] = ()
    """What is wrong, a sentence each."""
    predicate: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file that was looked at, as it is now."""
    remarks: tuple[str, ...] = ()
    """What a reader should know and is nothing wrong, a sentence each."""
    checked: bool = True
    """Whether there was a public key to check the signature with."""

    @property
    def status(self) -> Status:
        """The verdict in one or two words, as every page and command shows it."""
        if self.valid:
            return "signed"
        if not self.signed:
            return "not signed"
        return "changed" if self.checked else "not checked"

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, for people who did not ask how signatures work."""
        return {
            "signed": f"Nobody has changed it since the holder of key {(self.by or '')[:16]} signed it.",
            "not checked": "There is a signature, but without the signer's public key it shows nothing.",
            "not signed": "It is not signed: anybody may have written or changed it.",
            "changed": "Do not rely on it: it is not what the holder of the given key signed.",
        }[self.status]

    @property
    def valid(self) -> bool:
        """Whether the signature is there, is the given key's, and covers all files as they are."""
        return self.signed and not self.findings


def verify(envelope: str | bytes, files: Mapping[str, bytes], predicate_type: str, key: PublicKey) -> Verdict:
    """Check an envelope against a key and against the files that it is said to be for.

    Args:
        envelope: What `sign` gave.
        files: All files that must be covered, by name.
        predicate_type: What the signature must be about.
        key: Whose signature it must be.

    Returns:
        What was found; nothing in the envelope is believed unless the signature is the key's.
    """
    try:
        document = strict_json(envelope)
        kind, payload = str(document["payloadType"]), base64.b64decode(document["payload"], validate=True)
        signed = encoded(kind, payload)
        signatures = [
            (str(one.get("keyid", "")), base64.b64decode(one["sig"], validate=True)) for one in document["signatures"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return Verdict(True, findings=("the signature is no DSSE envelope that can be read.",))
    if not any(holds(key, signed, signature) for _, signature in signatures):
        named = signatures[0][0] if signatures else None
        return Verdict(bool(signatures), named, findings=(_wrong_key(named, key),))
    by = key_id(key)  # the envelope's own word for it is not signed
    try:
        statement = strict_json(payload)
        subjects = {str(one["name"]): str(one["digest"]["sha256"]) for one in statement["subject"]}
        types, predicate = (statement["_type"], statement["predicateType"]), dict(statement["predicate"])
    except (ValueError, KeyError, TypeError):
        return Verdict(True, by, findings=("what was signed is no in-toto statement.",))
    findings = []
    if kind != PAYLOAD or types != (STATEMENT, predicate_type):
        findings.append("the signature is about something else than a release of this format; it may be an older one.")
    same = tuple(name for name in sorted(subjects) if name in files and _sha256(files[name]) == subjects[name])
    findings += [
        f"{name} is not what was signed." for name in sorted(subjects.keys() & files.keys()) if name not in same
    ]
    findings += [f"{name} was signed and is missing." for name in sorted(subjects.keys() - files.keys())]
    findings += [f"{name} is not covered by the signature." for name in sorted(files.keys() - subjects.keys())]
    return Verdict(True, by, same, tuple(findings), predicate)


def sign_bundle(path: str | Path, key: Signer) -> Path:
    """Sign a bundle as it is: its weights, card and settings, the event log among them.

    Args:
        path: The bundle's folder, which gets a file `signature.json`.
        key: Who vouches for it.

    Returns:
        The signature's path.

    Raises:
        BundleError: If the bundle is not whole, or a rehearsal: nothing of that may leave.
    """
    path = Path(path)
    card = bundles.read_card(path)
    if card.verdict == "rehearsal":
        raise BundleError(f"{path} is a rehearsal: nothing of it may leave, so there is nothing to vouch for.")
    write_whole(path / SIGNATURE, sign(_files(path), PREDICATE, _summary(card), key))
    return path / SIGNATURE


def _summary(card: Card) -> dict[str, Any]:
    """What a signature says of a bundle, for tools that read nothing else: a card in short."""
    summary: dict[str, Any] = {
        "method": card.method,
        "verdict": card.verdict,
        "unit": card.unit,
        "neighbours": card.neighbours,
    }
    for name in ("claimed", "proven", "audited"):
        promise = getattr(card, name)
        finite = promise is not None and math.isfinite(promise.epsilon)  # JSON has no infinity
        summary[name] = {"epsilon": promise.epsilon, "delta": promise.delta} if finite else None
    return summary


def verify_bundle(path: str | Path, key: PublicKey | None, loaded: Release | None = None) -> Verdict:
    """Who vouches for a bundle, and what is wrong with it.

    Args:
        path: The bundle's folder.
        key: The signer's public key, from a source that is trusted; None only tells whether there is a signature.
        loaded: What was loaded from the folder before: it must be what is in the folder now.

    Returns:
        The verdict, whose findings name every file that is not as it was signed.
    """
    path = Path(path)
    findings, card = _strange(path), None
    try:
        card = bundles.read_card(path)
    except BundleError as error:
        findings.append(str(error).replace(str(path), path.resolve().name))
    remarks = tuple(
        f"{name} is not signed: it tells {what}." for name, what in LOCAL.items() if (path / name).is_file()
    )
    files = _files(path)
    if loaded is not None:
        now = {name: _sha256(content) for name, content in files.items()}
        changed = (name for name, digest in loaded.bundle_digests.items() if now.get(name) != digest)
        findings += [f"{name} was changed after it was loaded." for name in changed]
    found = _verdict(path / SIGNATURE, files, PREDICATE, key, findings)
    if card is not None and found.predicate and found.predicate != _summary(card):
        found = replace(found, findings=(*found.findings, "what the signature says of the card is not what it says."))
    return replace(found, remarks=remarks)


def signature_path(file: str | Path) -> Path:
    """Where the signature of a single file is: beside it, as `NAME.signature.json`."""
    return Path(f"{file}.{SIGNATURE}")


def sign_file(path: str | Path, key: Signer, about: Mapping[str, Any] | None = None) -> Path:
    """Sign one file as it is: a card, an audit's document, the export of a ledger.

    Args:
        path: The file, which gets a signature beside it.
        key: Who vouches for it.
        about: What the signature says of the file beside its digest.

    Returns:
        The signature's path (see `signature_path`).

    Raises:
        BundleError: If there is no such file.
    """
    path = Path(path)
    write_whole(signature_path(path), sign(_file(path), FILE_PREDICATE, about or {}, key))
    return signature_path(path)


def verify_file(path: str | Path, key: PublicKey | None) -> Verdict:
    """Who vouches for a file that was signed with `sign_file`, and what is wrong with it.

    Args:
        path: The file; its signature lies beside it.
        key: The signer's public key, from a source that is trusted; None only tells whether there is a signature.

    Returns:
        The verdict.
    """
    path = Path(path)
    links = [f"{path.name} is a link to somewhere else."] if path.is_symlink() else []
    return _verdict(signature_path(path), _file(path), FILE_PREDICATE, key, links)


def _verdict(
    signature: Path, files: Mapping[str, bytes], predicate_type: str, key: PublicKey | None, findings: list[str]
) -> Verdict:
    """What a signature's file says of files, with what was found wrong already."""
    digests = {name: _sha256(content) for name, content in files.items()}
    if not signature.is_file():
        return Verdict(False, findings=(UNSIGNED, *findings), digests=digests, checked=key is not None)
    if key is None:
        return Verdict(True, findings=(*findings, UNCHECKED), digests=digests, checked=False)
    try:
        envelope = bundles.read_file(signature.parent, signature.name)
    except BundleError as error:
        return Verdict(False, findings=(str(error), *findings), digests=digests)
    found = verify(envelope, files, predicate_type, key)
    return replace(found, findings=(*found.findings, *findings), digests=digests)


@dataclass(frozen=True)
class Recomputed:
    """The proven epsilon by the event log alone, beside the card's."""

    epsilon: float | None
    stated: float | None
    holds: bool
    why: str


def recompute(path: str | Path) -> Recomputed:
    """Account for a bundle's event log again, trusting nothing else of the bundle but the relation and delta of its card.

    Args:
        path: The bundle's folder.

    Returns:
        What the events cost, and whether the card promises no less.
    """
    card, log = bundles.read_events(path)
    if card.proven is None:
        return Recomputed(None, None, True, "the card says that nothing is proven, so there is nothing to account for.")
    stated = card.proven.epsilon
    if not log:
        return Recomputed(
            None, stated, False, "the bundle holds no event log, so its epsilon rests on the signer's word."
        )
    if odd := _disagreement(card, log):
        return Recomputed(None, stated, False, odd)
    try:
        found = accountants.epsilon(EventLog(log).event, card.proven.delta, neighbours=card.neighbours).epsilon
    except (NoiseproofError, TypeError, ValueError, ArithmeticError):
        return Recomputed(None, stated, False, "the event log tells of something that cannot have happened.")
    told = f"by the event log alone epsilon is {found:.4g}, where the card states {stated:.4g}"
    if found <= stated * (1 + _SLACK) + 1e-9:
        return Recomputed(found, stated, True, f"{told}: the card promises no more than its log gives.")
    return Recomputed(found, stated, False, f"{told}: the card promises more than its log gives.")


def _disagreement(card: Card, log: Iterable[tuple[DpEvent, int]]) -> str | None:
    """How an event log contradicts what the card says ran; None if it does not.

    A log that was cut, or whose samples were made smaller, gives too small an epsilon, and the card would seem to hold.
    """
    looks, rates = 0, [1.0]
    for event, count in log:
        while isinstance(event, SelfComposedDpEvent):
            count *= event.count
            event = event.event
        looks += count
        if isinstance(event, PoissonSampledDpEvent):
            rates.append(event.sampling_probability)
    steps, rate = card.ran.get("steps", 0), card.ran.get("sample_rate", 0.0)
    try:
        if looks < steps:
            return f"the event log tells of {looks} looks at the records, where the card says that {steps} steps ran."
        if min(rates) < rate * (1 - _SLACK):
            return f"the event log samples records at a rate of {min(rates):.4g}, where the card says {rate:.4g}."
    except (TypeError, ValueError):
        return "what the card says of its steps and its sampling rate are no numbers."
    return None


def _files(path: Path) -> dict[str, bytes]:
    """All of a bundle's files but the signature and what is added after it; links are not followed.

    Raises:
        BundleError: If there are more than can be meant: all of them are read.
    """
    entries = [entry for entry in sorted(path.iterdir()) if entry.name != SIGNATURE and entry.name not in LOCAL]
    found = [entry.name for entry in entries if entry.is_file() and not entry.is_symlink()]
    if len(found) > _MOST_FILES:
        raise BundleError(
            f"the bundle {path} has {len(found)} files, of {_MOST_FILES} that may be; take the others out."
        )
    return {name: bundles.read_file(path, name) for name in found}


def _file(path: Path) -> dict[str, bytes]:
    if not path.is_file():
        raise BundleError(f"there is no file {path}.")
    try:
        return {path.name: path.read_bytes()}
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}).") from error


def _strange(path: Path) -> list[str]:
    if not path.is_dir():
        raise BundleError(f"there is no bundle at {path}.")
    entries: Iterable[Path] = sorted(path.iterdir())
    links = [f"{entry.name} is a link to somewhere else." for entry in entries if entry.is_symlink()]
    return links + [f"{entry.name} is no file." for entry in entries if not entry.is_symlink() and not entry.is_file()]


def _wrong_key(named: str | None, key: PublicKey) -> str:
    if named is None:
        return "the envelope holds no signature."
    if named == key_id(key):
        return "the signature does not hold: what was signed, or the signature, was changed."
    return "it is signed with another key than the given one."


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

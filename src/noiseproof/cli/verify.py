"""`noiseproof sign` and `noiseproof verify`: who vouches for a bundle or a file, and whether it is as it was signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Json, SigningCommand, SigningKey, SigningPublic, signed_by
from noiseproof.cli.registry import command


@command(
    "sign",
    "Example: noiseproof sign digits-model --key vendor.pem\n\n"
    "Example: noiseproof sign audit.json --signer 'openssl pkeyutl -sign -rawin -inkey vendor.pem -in {payload}' "
    "--public vendor.pem.pub",
)
def sign(
    subject: Annotated[
        Path,
        typer.Argument(metavar="BUNDLE|FILE", help="A bundle, or a file: a card, an audit's JSON, a ledger's export."),
    ],
    key: SigningKey = None,
    signer: SigningCommand = None,
    public: SigningPublic = None,
    json: Json = False,
) -> None:
    """Sign a bundle (its weights, card and settings with the event log) or a file. An audit changes the card: sign again."""
    from noiseproof.releases.signing import sign_bundle, sign_file
    from noiseproof.releases.signing_keys import key_id

    who = signed_by(key, signer, public)
    written = sign_bundle(subject, who) if subject.is_dir() else sign_file(subject, who)
    by = key_id(who.public_key())
    output.tell(json, {"signature": str(written), "by": by}, f"{written}: signed by key {by[:16]}.")


@command(
    "verify",
    "Example: noiseproof verify digits-model --key vendor.pem.pub\n\n"
    "Example: noiseproof verify digits-model --key vendor.pem.pub --recompute --json",
)
def verify(
    subject: Annotated[Path, typer.Argument(metavar="BUNDLE|FILE", help="A bundle, or a file that was signed.")],
    key: Annotated[Path | None, typer.Option(help="The signer's public key, from a source that you trust.")] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also account for the event log again, and compare with the card.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what is signed, by whom, over which bytes, and what a signature does not show; exit 1 if it is not valid."""
    from noiseproof.errors import SettingError
    from noiseproof.releases import signing
    from noiseproof.releases.signing_keys import read_public_key

    signer = None if key is None else read_public_key(key)
    if recompute and not subject.is_dir():
        raise SettingError("only a bundle has an event log to recompute; leave --recompute away.")
    found = signing.verify_bundle(subject, signer) if subject.is_dir() else signing.verify_file(subject, signer)
    document: dict[str, Any] = {
        "status": found.status,
        "signed": found.signed,
        "by": found.by,
        "valid": found.valid,
        "files": list(found.files),
        "digests": dict(found.digests),
        "says": dict(found.predicate),
        "findings": list(found.findings),
        "remarks": list(found.remarks),
        "shows_not": signing.SHOWS_NOT,
    }
    again = None
    if recompute:
        again = signing.recompute(subject)
        document["recomputed"] = {
            "epsilon": again.epsilon,
            "stated": again.stated,
            "holds": again.holds,
            "why": again.why,
        }
    if json:
        output.emit(document)
    else:
        output.say(f"{subject}: {'valid' if found.valid else 'NOT valid'}. {found.sentence}")
        if found.valid:
            output.say(f"Signed by key {found.by}, over these bytes (SHA-256):")
            for name in found.files:
                output.say(f"  {found.digests[name]}  {name}")
        for sentence in (*found.findings, *found.remarks):
            output.say(f"- {sentence}")
        if again is not None:
            output.say(f"Event log: {again.why}")
        output.say(signing.SHOWS_NOT)
    if not found.valid or (again is not None and not again.holds):
        raise typer.Exit(1)

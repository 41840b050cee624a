"""`noiseproof sign` and `noiseproof verify`: who vouches for a bundle, and whether it is as it was signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Json
from noiseproof.cli.registry import command

_SHOWS_NOT = (
    "A signature shows who vouches for these bytes. It does not show that the training ran as the card tells, "
    "nor that the signer is to be believed."
)


@command("sign", "Example: noiseproof sign digits-model --key vendor.pem")
def sign(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a release.")],
    key: Annotated[Path, typer.Option(help="The private key, as `noiseproof keys signing` makes it.")],
    json: Json = False,
) -> None:
    """Sign a bundle: its weights, its card and its settings with the event log. An audit changes the card: sign again."""
    from noiseproof.releases.signing import key_id, read_private_key, sign_bundle

    signer = read_private_key(key)
    written = sign_bundle(bundle, signer)
    by = key_id(signer.public_key())
    output.tell(json, {"signature": str(written), "by": by}, f"{written}: signed by key {by[:16]}.")


@command(
    "verify",
    "Example: noiseproof verify digits-model --key vendor.pem.pub\n\n"
    "Example: noiseproof verify digits-model --key vendor.pem.pub --recompute --json",
)
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a release.")],
    key: Annotated[Path | None, typer.Option(help="The signer's public key, from a source that you trust.")] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also account for the event log again, and compare with the card.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what of a bundle is signed, by whom, over which bytes; exit 1 if it is not valid."""
    from noiseproof.releases import signing

    found = signing.verify_bundle(bundle, None if key is None else signing.read_public_key(key))
    document: dict[str, Any] = {
        "signed": found.signed,
        "by": found.by,
        "valid": found.valid,
        "files": list(found.files),
        "findings": list(found.findings),
        "shows_not": _SHOWS_NOT,
    }
    again = None
    if recompute:
        again = signing.recompute(bundle)
        document["recomputed"] = {
            "epsilon": again.epsilon,
            "stated": again.stated,
            "holds": again.holds,
            "why": again.why,
        }
    if json:
        output.emit(document)
    else:
        verdict = "valid" if found.valid else "NOT valid" if found.signed else "NOT signed"
        output.say(f"{bundle}: {verdict}" + (f", signed by key {found.by[:16]}" if found.valid and found.by else ""))
        if found.valid:
            output.say(f"Covers {', '.join(found.files)}.")
        for finding in found.findings:
            output.say(f"- {finding}")
        if again is not None:
            output.say(f"Event log: {again.why}")
        output.say(_SHOWS_NOT)
    if not found.valid or (again is not None and not again.holds):
        raise typer.Exit(1)

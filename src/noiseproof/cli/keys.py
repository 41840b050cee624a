"""`noiseproof keys`: who may ask a service, and who vouches for a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.ledger import open_ledger
from noiseproof.cli.options import Json, LedgerOption
from noiseproof.cli.registry import group

app = group(
    "keys",
    "API keys of a service (create, revoke, list) and keys that bundles are signed with (signing).",
    "Example: noiseproof keys create hospital-a --answers 1000",
)


@app.command(epilog="Example: noiseproof keys create hospital-a --answers 1000")
def create(
    client: Annotated[str, typer.Argument(help="Whose key: a name of your choice for the client.")],
    answers: Annotated[int | None, typer.Option(help="Answers that the client may have of each model in all.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="May see all clients' budgets.")] = False,
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Make a key for a client, and print it: it is shown this once, as only a hash of it is kept.

    A client that is there already gets one key more, and these rights for all of its keys.
    """
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger.keys import Keys, split

        key = Keys(database).create(client, operator=operator, answers=answers)
    output.tell(
        json, {"client": client, "id": split(key)[0], "key": key, "operator": operator, "answers": answers}, key
    )
    output.note("keep the key now: it is not shown again.")


@app.command(epilog="Example: noiseproof keys revoke 0123456789abcdef")
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id: its middle part, or what `keys list` shows.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Revoke a key: nothing is spent with it from now on."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import Keys

        Keys(database).revoke(id)
    output.tell(json, {"id": id, "revoked": True}, f"{id} is revoked.")


@app.command("list", epilog="Example: noiseproof keys list --json")
def list_keys(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """List all keys by id, without their secrets."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import Keys

        found = [key.to_json() for key in Keys(database).list()]
    shown = [[value if i < 4 or value is None else value[:10] for i, value in enumerate(key.values())] for key in found]
    output.answer(json, found, None, ("id", "client", "operator", "answers", "made", "revoked"), shown)


@app.command(epilog="Example: noiseproof keys signing vendor.pem")
def signing(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write; FILE.pub is the public one.")],
    json: Json = False,
) -> None:
    """Make a key to sign bundles with: FILE stays with you (mode 0600), FILE.pub goes to those who verify."""
    from noiseproof.releases.signing import key_id, make_keys, read_public_key

    private, public = make_keys(path)
    found = key_id(read_public_key(public))
    told = f"{private} signs; keep it to yourself. {public} verifies; its id is {found}."
    output.tell(json, {"private": str(private), "public": str(public), "id": found}, told)

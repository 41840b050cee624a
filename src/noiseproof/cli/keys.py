"""`noiseproof keys`: who may ask a service, and who vouches for a bundle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from noiseproof.cli import output
from noiseproof.cli.ledger import open_ledger
from noiseproof.cli.options import Json, LedgerOption
from noiseproof.cli.registry import group
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.serve.ledger import Keys

app = group(
    "keys",
    "API keys of a service (create, rotate, revoke, list) and keys that bundles are signed with (signing).",
    "Example: noiseproof keys create hospital-a --answers 1000",
)


_Expires = Annotated[
    float | None,
    typer.Option("--expires", metavar="DAYS", help="Days after which the key stops working; never if not given."),
]


@app.command(
    epilog="Example: noiseproof keys create hospital-a --answers 1000\n\n"
    "Example: noiseproof keys create hospital-a --answers 100 --per month --model triage --change-rights"
)
def create(
    client: Annotated[str, typer.Argument(help="Whose key: a name of your choice for the client.")],
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER or all", help="Answers that the client may have of each model: in all, or see --per."
        ),
    ] = None,
    per: Annotated[
        Literal["day", "week", "month"] | None,
        typer.Option(help="Answers are for each day, week or month (UTC); the model's budget pays for all of them."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The one model that --answers is for.")] = None,
    operator: Annotated[
        bool | None, typer.Option("--operator/--no-operator", help="May see all clients' budgets.")
    ] = None,
    expires: _Expires = None,
    change_rights: Annotated[
        bool, typer.Option("--change-rights", help="Give a client that is there these rights, for all of its keys.")
    ] = False,
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Make a key for a client, and print it: it is shown this once, as only a hash of it is kept.

    A client that is there already gets one key more, with the rights that it has; --change-rights changes them.
    """
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger.keys import KEEP, Keys

        key = Keys(database).create(
            client,
            operator=KEEP if operator is None else operator,
            answers=KEEP if answers is None else _number(answers),
            period=per,
            model=model,
            expires_at=_moment(expires),
            change_rights=change_rights,
        )
        _tell_key(json, Keys(database), key)


@app.command(epilog="Example: noiseproof keys rotate 0123456789abcdef --grace 24")
def rotate(
    id: Annotated[str, typer.Argument(help="The old key's id: its middle part, or what `keys list` shows.")],
    grace: Annotated[
        float, typer.Option(help="Hours for which the old key still works; 0 revokes it now.", min=0)
    ] = 0.0,
    expires: _Expires = None,
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Make a new key for the client of a key, with the same rights, and end the old one."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import Keys

        key = Keys(database).rotate(id, grace=3600 * grace, expires_at=_moment(expires))
        _tell_key(json, Keys(database), key)


def _tell_key(json: bool, keys: Keys, key: str) -> None:
    made = keys.check(key)
    assert made is not None
    document = made.to_json()
    del document["made_at"], document["revoked_at"]
    output.tell(json, {**document, "key": key}, key)
    output.note("keep the key now: it is not shown again.")


def _number(answers: str) -> int | None:
    if answers == "all":
        return None
    if not answers.isdecimal():
        raise SettingError("--answers takes a number, 0 or more, or `all`.")
    return int(answers)


def _moment(days: float | None) -> float | None:
    return None if days is None else time.time() + 86400 * days


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
    shown = [(key["id"], key["client"], _rights(key), key["made_at"][:10], _end(key)) for key in found]
    output.answer(json, found, None, ("id|", "client", "answers", "made|", "ends"), shown, narrow=True)


def _rights(key: dict[str, Any]) -> str:
    """What a key may have, in a few words."""
    answers = "all" if key["answers"] is None else str(key["answers"])
    period = "" if key["period"] is None else f" a {key['period']}"
    return f"{answers}{period}{' (operator)' if key['operator'] else ''}"


def _end(key: dict[str, Any]) -> str | None:
    """When a key was revoked, or expires."""
    if key["revoked_at"]:
        return f"revoked {key['revoked_at'][:10]}"
    return key["expires_at"] and f"expires {key['expires_at'][:10]}"


@app.command(epilog="Example: noiseproof keys signing vendor.pem")
def signing(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write; FILE.pub is the public one.")],
    json: Json = False,
) -> None:
    """Make a key to sign bundles with: FILE stays with you (mode 0600), FILE.pub goes to those who verify."""
    from noiseproof.releases.signing_keys import key_id, make_keys, read_public_key

    private, public = make_keys(path)
    found = key_id(read_public_key(public))
    told = f"{private} signs; keep it to yourself. {public} verifies; its id is {found}."
    output.tell(json, {"private": str(private), "public": str(public), "id": found}, told)

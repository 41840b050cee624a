"""`noiseproof keys`: who may ask a service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from noiseproof.cli.options import Json, LedgerOption
from noiseproof.cli.registry import group

app = group(
    "keys", "API keys of a service: create, revoke, list.", "Example: noiseproof keys create hospital-a --answers 1000"
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
    from noiseproof.cli import output

    output.need_serve()
    from noiseproof.serve.ledger import Database, Keys
    from noiseproof.serve.ledger.keys import split

    with Database(ledger) as database:
        key = Keys(database).create(client, operator=operator, answers=answers)
    if json:
        output.emit({"client": client, "id": split(key)[0], "key": key, "operator": operator, "answers": answers})
        return
    output.stdout.print(key, highlight=False, soft_wrap=True)
    output.note("keep it now: it is not shown again.")


@app.command(epilog="Example: noiseproof keys revoke 0123456789abcdef")
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id: its middle part, or what `keys list` shows.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Revoke a key: nothing is spent with it from now on."""
    from noiseproof.cli import output

    output.need_serve()
    from noiseproof.serve.ledger import Database, Keys

    with Database(ledger, create=False) as database:
        Keys(database).revoke(id)
    if json:
        output.emit({"id": id, "revoked": True})
    else:
        output.stdout.print(f"{id} is revoked.", highlight=False)


@app.command("list", epilog="Example: noiseproof keys list --json")
def list_keys(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """List all keys by id, without their secrets."""
    from noiseproof.cli import output

    output.need_serve()
    from noiseproof.serve.ledger import Database, Keys
    from noiseproof.serve.ledger.records import timestamp

    with Database(ledger, create=False) as database:
        found = Keys(database).list()
    rows: list[dict[str, Any]] = [
        {
            "id": key.id,
            "client": key.client,
            "operator": key.operator,
            "answers": key.answers,
            "made_at": timestamp(key.made_at),
            "revoked_at": None if key.revoked_at is None else timestamp(key.revoked_at),
        }
        for key in found
    ]
    if json:
        output.emit(rows)
    else:
        output.show(
            None,
            ("id", "client", "operator", "answers", "made", "revoked"),
            [(*list(row.values())[:4], _day(row["made_at"]), _day(row["revoked_at"])) for row in rows],
        )


def _day(moment: str | None) -> str | None:
    return None if moment is None else moment.partition("T")[0]

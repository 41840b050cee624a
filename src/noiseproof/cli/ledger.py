"""`noiseproof ledger`: look at a ledger, check it, take its history elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli.options import Json, LedgerOption
from noiseproof.cli.registry import group

app = group(
    "ledger",
    "Who spent what of which model's privacy budget: show it, verify its history, export it.",
    "Example: noiseproof ledger verify --ledger noiseproof-ledger.db",
)


@app.command(epilog="Example: noiseproof ledger show --json")
def show(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """Show every model's budget and what each client spent of it."""
    from noiseproof.cli import output

    output.need_serve()
    from noiseproof.serve.ledger import Database, History

    with Database(ledger, create=False) as database:
        accounts = History(database).accounts()
    if json:
        output.emit(
            [
                {
                    "model": account.model,
                    "release": account.release,
                    "limit": account.everyone.capacity.to_json(),
                    "spent": account.everyone.spent.to_json(),
                    "clients": {client: balance.spent.to_json() for client, balance in account.clients.items()},
                    "entries": account.entries,
                    "head": account.head,
                }
                for account in accounts
            ]
        )
        return
    rows = []
    for account in accounts:
        for client, balance in (("everyone", account.everyone), *account.clients.items()):
            used = max(s / c if c else 1.0 for s, c in zip(balance.spent.units, balance.capacity.units, strict=True))
            spent, limit = (amount.to_json()["amounts"][0] for amount in (balance.spent, balance.capacity))
            rows.append((account.model, client, balance.spent.measure, spent, limit, f"{used:.1%}"))
    output.show(None, ("model", "client", "measure", "spent", "limit", "used"), rows)
    for account in accounts:
        last = f"{account.model}: {account.entries} entries; last hash, to be noted elsewhere: {account.head}"
        output.stdout.print(last, highlight=False, soft_wrap=True)


@app.command(epilog="Example: noiseproof ledger verify --noted 3f5a...")
def verify(
    ledger: LedgerOption = "noiseproof-ledger.db",
    noted: Annotated[
        str | None,
        typer.Option(help="A hash noted earlier (of a receipt, or of `ledger show`) that must still be there."),
    ] = None,
    json: Json = False,
) -> None:
    """Replay every history: its chain of hashes, its limits at every moment, and the balances it leads to.

    Exits 1 if anything was changed, cut out or overdrawn.
    """
    from noiseproof.cli import output

    output.need_serve()
    from noiseproof.serve.ledger import Database, History

    with Database(ledger, create=False) as database:
        results = History(database).verify(noted)
    holds = all(result.holds for result in results)
    if json:
        models = [
            {
                "model": result.model,
                "entries": result.entries,
                "answers": result.answers,
                "head": result.head,
                "problems": result.problems,
            }
            for result in results
        ]
        output.emit({"holds": holds, "models": models})
    else:
        output.show(
            None,
            ("model", "entries", "answers", "holds", "problems"),
            [(r.model, r.entries, r.answers, r.holds, "\n".join(r.problems[:5])) for r in results],
        )
    if not holds:
        raise typer.Exit(1)


@app.command(epilog="Example: noiseproof ledger export --out history.jsonl")
def export(
    ledger: LedgerOption = "noiseproof-ledger.db",
    out: Annotated[Path | None, typer.Option(help="File for the lines; without it they go to stdout.")] = None,
    json: Json = False,
) -> None:
    """Write every entry of every history, in order, as a line of JSON (with --json: all as one document)."""
    from noiseproof.cli import output

    output.need_serve()
    import json as codec
    import sys

    from noiseproof.serve.ledger import Database, History

    with Database(ledger, create=False) as database:
        entries = History(database).export()
        if out is None and json:
            output.emit(list(entries))
        elif out is None:
            for entry in entries:
                sys.stdout.write(codec.dumps(entry) + "\n")
        else:
            staging = out.with_name(f".{out.name}.part")
            try:
                with staging.open("w") as file:
                    count = sum(bool(file.write(codec.dumps(entry) + "\n")) for entry in entries)
                staging.replace(out)
            finally:
                staging.unlink(missing_ok=True)
            if json:
                output.emit({"entries": count, "out": str(out)})
            else:
                output.stdout.print(f"{count} entries are in {out}.", highlight=False)

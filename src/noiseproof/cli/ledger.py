"""`noiseproof ledger`: look at a ledger, check it, take its history elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Delta, Epsilon, Force, Json, LedgerOption
from noiseproof.cli.registry import group

if TYPE_CHECKING:
    from noiseproof.serve.ledger import Database

app = group(
    "ledger",
    "Who spent what of which model's privacy budget: make a ledger, show it, verify its history, export it.",
    "Example: noiseproof ledger verify --ledger noiseproof-ledger.db",
)


@contextmanager
def open_ledger(url: str, *, create: bool = False) -> Iterator[Database]:
    """A ledger's database, for one command."""
    output.need_serve()
    from noiseproof.serve.ledger import Database

    with Database(url, create=create) as database:
        yield database


@app.command(epilog="Example: noiseproof ledger init --ledger postgresql://user@host/budgets")
def init(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """Make a ledger; one that is there stays as it is, and is brought to this version."""
    with open_ledger(ledger, create=True) as database:
        from noiseproof.serve.ledger import Ledger

        id = Ledger(database).id
    output.tell(json, {"id": id, "ledger": ledger}, f"The ledger {ledger} has the id {id}.")


@app.command(epilog="Example: noiseproof ledger limit hospital --epsilon 5 --delta 1e-5")
def limit(
    data_set: Annotated[
        str, typer.Argument(help="A data set's name, as `ledger show` and `serve --data-set` have it.")
    ],
    epsilon: Epsilon,
    delta: Delta = 0.0,
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Set what all releases of a data set may promise together; what would go beyond it is not served."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import Ledger

        balance = Ledger(database).limit_data_set(data_set, epsilon, delta)
    output.tell(json, balance.to_json(), balance.sentence())


@app.command(epilog="Example: noiseproof ledger show --json")
def show(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """Show every model's budget and what each client spent of it."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History, Ledger

        accounts, data_sets = History(database).accounts(), Ledger(database).data_sets()
    rows = []
    for account in accounts:
        for client, balance in (("everyone", account.everyone), *account.clients.items()):
            used = max(s / c if c else 1.0 for s, c in zip(balance.spent.units, balance.capacity.units, strict=True))
            spent, limit = (amount.to_json()["amounts"][0] for amount in (balance.spent, balance.capacity))
            rows.append((account.model, client, balance.spent.measure, spent, limit, f"{used:.1%}"))
    document = {
        "accounts": [account.to_json() for account in accounts],
        "data_sets": [one.to_json() for one in data_sets],
    }
    output.answer(json, document, None, ("model", "client", "measure", "spent", "limit", "used"), rows)
    if json:
        return
    for one in data_sets:
        output.say(one.sentence())
    for account in accounts:
        output.say(f"{account.model}: {account.entries} entries; last hash, to be noted elsewhere: {account.head}")


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
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History

        results = History(database).verify(noted)
    holds = all(result.holds for result in results)
    document = {"holds": holds, "models": [vars(result) for result in results]}
    rows = [(r.model, r.entries, r.answers, r.holds, "\n".join(r.problems[:5])) for r in results]
    output.answer(json, document, None, ("model", "entries", "answers", "holds", "problems"), rows)
    if not holds:
        raise typer.Exit(1)


@app.command(epilog="Example: noiseproof ledger export --out history.jsonl")
def export(
    ledger: LedgerOption = "noiseproof-ledger.db",
    out: Annotated[Path | None, typer.Option(help="File for the lines; without it they go to stdout.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write every entry of every history, in order, as a line of JSON (with --json: all as one document)."""
    import json as codec

    with open_ledger(ledger) as database:
        from noiseproof.files import check_out, whole_file
        from noiseproof.serve.ledger import History

        entries = History(database).export()
        if out is not None:
            check_out(out, force=force, inputs=(ledger,))
            with whole_file(out) as file:
                count = sum(bool(file.write(codec.dumps(entry).encode() + b"\n")) for entry in entries)
            output.tell(json, {"entries": count, "out": str(out)}, f"{count} entries are in {out}.")
        elif json:
            output.emit(list(entries))
        else:
            for entry in entries:
                typer.echo(codec.dumps(entry))

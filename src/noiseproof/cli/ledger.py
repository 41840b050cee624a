"""`noiseproof ledger`: look at a ledger, check it, take its history elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import (
    Delta,
    Epsilon,
    Force,
    Json,
    LedgerOption,
    SigningCommand,
    SigningKey,
    SigningPublic,
    signed_by,
)
from noiseproof.cli.registry import group
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.serve.ledger import Checkpoint, Database

app = group(
    "ledger",
    "Who spent what of which model's privacy budget: make a ledger, show it, verify, sign and export its history, back "
    "it up and bring it back.",
    "Example: noiseproof ledger verify --ledger noiseproof-ledger.db",
)


@contextmanager
def open_ledger(url: str, *, create: bool = False) -> Iterator[Database]:
    """A ledger's database, for one command."""
    output.need_serve()
    from noiseproof.serve.ledger import Database

    check_no_password(url)

    with Database(url, create=create) as database:
        yield database


_SECRET = {"password", "sslpassword"}
"""What libpq takes from behind the question mark and nobody should see."""


def shown_address(url: str) -> str:
    """A ledger's address for people and logs: as it was given, but for passwords."""
    from noiseproof.serve.ledger.database import parse_url

    if not _holds_a_secret(url):
        return url
    return (
        parse_url(url)
        .difference_update_query(_SECRET)
        .set(drivername="postgresql")
        .render_as_string(hide_password=True)
    )


def _holds_a_secret(url: str) -> bool:
    from urllib.parse import urlsplit

    from noiseproof.serve.ledger.database import parse_url

    if url.startswith(("http://", "https://")):
        return bool(urlsplit(url).password)
    address = parse_url(url)
    return bool(address.password) or not _SECRET.isdisjoint(address.query)


def check_no_password(url: str) -> None:
    """Refuse a password that was given on the command line, where everybody on the machine sees it."""
    import sys

    if any(url in argument for argument in sys.argv[1:]) and _holds_a_secret(url):
        raise SettingError(
            "a password on the command line is shown by `ps` to everybody; put the address into NOISEPROOF_LEDGER, or the "
            "password into ~/.pgpass (or ?passfile=FILE in the address)."
        )


@app.command(epilog="Example: noiseproof ledger init --ledger postgresql://user@host/budgets")
def init(ledger: LedgerOption = "noiseproof-ledger.db", json: Json = False) -> None:
    """Make a ledger; one that is there stays as it is, and is brought to this version."""
    with open_ledger(ledger, create=True) as database:
        from noiseproof.serve.ledger import Ledger

        id = Ledger(database).id
    shown = shown_address(ledger)
    output.tell(json, {"id": id, "ledger": shown}, f"The ledger {shown} has the id {id}.")


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
def show(
    ledger: LedgerOption = "noiseproof-ledger.db",
    clients: Annotated[int, typer.Option(help="How many clients of each model: those that spent most.", min=0)] = 20,
    json: Json = False,
) -> None:
    """Show every model's budget and which clients spent most of it."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History, Ledger

        accounts, data_sets = History(database).accounts(clients), Ledger(database).data_sets()
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
        more = account.clients_total - len(account.clients)
        others = f"; {more} more clients" if more else ""
        output.say(
            f"{account.model}: {account.entries} entries{others}; last hash, to be noted elsewhere: {account.head}"
        )


_Key = Annotated[Path | None, typer.Option(help="The signer's public key; needed to believe --anchor and --since.")]
_Since = Annotated[
    str | None, typer.Option(help="A signed head to verify from: what came before it is taken on the signer's word.")
]


@app.command(
    epilog="Example: noiseproof ledger verify --noted 3f5a...\n\n"
    "Example: noiseproof ledger verify --anchor https://notary.example/head.json --key operator.pem.pub"
)
def verify(
    ledger: LedgerOption = "noiseproof-ledger.db",
    noted: Annotated[
        str | None,
        typer.Option(help="A hash noted earlier (of a receipt, or of `ledger show`) that must still be there."),
    ] = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(help="A signed head that must still be there: a file, a URL that answers with it, or a ledger."),
    ] = None,
    since: _Since = None,
    key: _Key = None,
    json: Json = False,
) -> None:
    """Replay every history: its chain of hashes, limits and rights at every moment, and the balances it leads to.

    Exits 1 if anything was changed, cut out or overdrawn, or granted by nobody.
    """
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History, Ledger

        id = Ledger(database).id
        anchors = [found for where in anchor or () for found in _fetch(where, key, id)]
        results = History(database).verify(noted, anchors=anchors, since=_newest(since, key, id))
    holds = all(result.holds for result in results)
    document = {"holds": holds, "models": [vars(result) for result in results]}
    rows = [(r.model, r.entries, r.answers, r.holds, "\n".join(r.problems[:5])) for r in results]
    output.answer(json, document, None, ("model", "entries", "answers", "holds", "problems"), rows)
    if noted is None and not anchors and since is None:
        output.note(
            "a history that was cut off at its end, balances and all, looks whole by itself; give --noted or --anchor."
        )
    if not holds:
        raise typer.Exit(1)


def _fetch(where: str, key: Path | None, ledger: str) -> list[Checkpoint]:
    from noiseproof.releases.signing_keys import read_public_key
    from noiseproof.serve.ledger import heads

    if key is None:
        raise SettingError("without the signer's public key a head shows nothing; give --key.")
    check_no_password(where)
    return heads.fetch(where, read_public_key(key), ledger)


def _newest(where: str | None, key: Path | None, ledger: str) -> Checkpoint | None:
    return None if where is None else max(_fetch(where, key, ledger), key=lambda one: one.made_at)


@app.command(
    epilog="Example: noiseproof ledger sign --key operator.pem --out head.json\n\n"
    "Example: noiseproof ledger sign --signer 'openssl pkeyutl -sign -rawin -inkey operator.pem -in {payload}' "
    "--public operator.pem.pub --out head.json"
)
def sign(
    key: SigningKey = None,
    signer: SigningCommand = None,
    public: SigningPublic = None,
    ledger: LedgerOption = "noiseproof-ledger.db",
    out: Annotated[Path | None, typer.Option(help="File for the signed head, to be kept elsewhere.")] = None,
    into: Annotated[str | None, typer.Option(help="Another ledger to keep it in as well.")] = None,
    since: Annotated[
        str | None, typer.Option(help="The last head that this key signed: only what came after it is verified.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Verify a ledger, then sign where its histories are and how everybody stands: a head that proves later cuts.

    Keep it where whoever can write to the ledger cannot: another machine, a page on the web, another ledger.
    """
    from noiseproof.files import check_out, write_whole
    from noiseproof.releases.signing_keys import key_id

    if out is None and into is None:
        raise SettingError("say where the signed head is to be kept: --out FILE, --into LEDGER, or both.")
    who = signed_by(key, signer, public)
    if out is not None:
        check_out(out, force=force, inputs=(ledger, *(one for one in (key, public) if one is not None)))
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History, Ledger, heads

        earlier = None
        if since is not None:
            check_no_password(since)
            earlier = max(heads.fetch(since, who.public_key(), Ledger(database).id), key=lambda one: one.made_at)
        checkpoint = History(database).checkpoint(earlier)
        document = checkpoint.signed(who)
    if out is not None:
        write_whole(out, document, mode=0o600)
    if into is not None:
        with open_ledger(into) as other:
            heads.keep(other, checkpoint, document)
    entries = sum(sequence for sequence, _ in checkpoint.models.values())
    told = {"ledger": checkpoint.ledger, "entries": entries, "by": key_id(who.public_key())}
    places = " and ".join(str(place) for place in (out, into) if place is not None)
    output.tell(
        json,
        {**told, "out": None if out is None else str(out), "into": into},
        f"{entries} entries of the ledger {checkpoint.ledger} are vouched for in {places}.",
    )


@app.command(epilog="Example: noiseproof ledger backup --out ledger-2026-11-18.db")
def backup(
    out: Annotated[Path, typer.Option(help="File for the backup; it is a ledger that nothing can be spent from.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    force: Force = False,
    json: Json = False,
) -> None:
    """Copy a ledger, in use or not, into one file, and verify the copy. (Copying the file itself loses what is not in it yet.)"""
    from noiseproof.files import check_out

    check_out(out, force=force, inputs=(ledger,))
    with open_ledger(ledger) as database:
        from noiseproof.serve import ledger as ledgers

        entries = ledgers.backup(database, out)
    output.tell(json, {"entries": entries, "out": str(out)}, f"{entries} entries are in {out}; the copy holds.")


_Bundles = Annotated[
    list[Path] | None,
    typer.Option(help="A bundle that the ledger pays for, of every machine that served it; what it noted is counted."),
]


@app.command(
    epilog="Example: noiseproof ledger restore ledger-2026-11-18.db --bundle model --ledger noiseproof-ledger.db"
)
def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `ledger backup` wrote.", exists=True)],
    ledger: LedgerOption = "noiseproof-ledger.db",
    bundle: _Bundles = None,
    nothing_since: Annotated[
        bool,
        typer.Option("--nothing-since", help="Nothing was spent since: the service was stopped before the backup."),
    ] = False,
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", help="Revoke all keys: some may have been revoked since the backup.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a ledger of a backup, in a new file or an empty database, and count as spent what may have been spent since.

    Every bundle notes how much may be spent before it is; so nothing is sold twice, and at most 1/64 of a budget is lost.
    """
    output.need_serve()
    from noiseproof.serve.ledger import Database, copies
    from noiseproof.serve.ledger import restore as bring_back

    check_no_password(ledger)
    counted = bring_back(str(backup), ledger, bundle or [], nothing_since=nothing_since)
    revoked = 0
    if revoke_keys:
        with Database(ledger, create=False) as database:
            revoked = copies.revoke_keys(database)
    _tell_counted(json, ledger, counted, revoked)
    if not revoke_keys:
        output.note("keys that were revoked after the backup work again; look at `noiseproof keys list`.")


@app.command(epilog="Example: noiseproof ledger recover model --ledger postgresql://user@host/budgets")
def recover(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="Bundles that the ledger pays for.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Count as spent what bundles noted beyond a ledger that was put back by other means, so that it can go on."""
    with open_ledger(ledger) as database:
        from noiseproof.serve import ledger as ledgers

        counted = ledgers.recover(database, bundles)
    _tell_counted(json, ledger, counted, 0)


def _tell_counted(json: bool, ledger: str, counted: dict[str, list[str]], revoked: int) -> None:
    lines = [
        f"{model}: {', '.join(lost) if lost else 'nothing'} was counted as spent." for model, lost in counted.items()
    ]
    shown = shown_address(ledger)
    document = {"ledger": shown, "counted": counted, "keys_revoked": revoked}
    output.tell(json, document, "\n".join([f"The ledger {shown} can be used.", *lines]))


@app.command("close", epilog="Example: noiseproof ledger close model")
def close_account(
    model: Annotated[str, typer.Argument(help="An account, as `ledger show` has it.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Close a model's budget for good: nothing more is answered from it, and it cannot be opened again."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import Ledger

        balance = Ledger(database).close(model)
    spent = balance.spent.to_json()
    output.tell(
        json, {"model": model, "spent": spent, "closed": True}, f"{model} is closed; {spent['amounts'][0]} were spent."
    )


@app.command(epilog="Example: noiseproof ledger role serving --ledger postgresql://owner@host/budgets")
def role(
    name: Annotated[str, typer.Argument(help="A role of PostgreSQL that exists and is to serve.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    json: Json = False,
) -> None:
    """Let a database role serve from a ledger, and do nothing else: no keys, no rights, no changes of the history."""
    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger.roles import grant_role

        statements = grant_role(database, name)
    output.tell(json, {"role": name, "statements": statements}, f"{name} may serve from this ledger, and no more.")


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
            with whole_file(out, mode=0o600) as file:  # who asked, and when, is nobody else's business
                count = sum(bool(file.write(codec.dumps(entry).encode() + b"\n")) for entry in entries)
            output.tell(json, {"entries": count, "out": str(out)}, f"{count} entries are in {out}.")
        elif json:
            output.emit(list(entries))
        else:
            for entry in entries:
                typer.echo(codec.dumps(entry))

"""Backup and restore: a ledger as one file that nothing can be spent from, and how a ledger comes back without selling twice."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select

from noiseproof.errors import LedgerError, SettingError
from noiseproof.files import sync_folder
from noiseproof.releases.bundles import BINDING
from noiseproof.serve.ledger.accounts import AccountTransaction
from noiseproof.serve.ledger.bindings import Binding, Noted
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.history import History
from noiseproof.serve.ledger.records import timestamp
from noiseproof.serve.ledger.tables import GRANTING, grants, keys, metadata, properties, version_table

LOST = "lost-with-a-ledger"
"""The client that is charged what may have been spent and is not in the history."""
_AT_ONCE = 1000


def backup(database: Database, out: Path) -> int:
    """Copy a ledger, of whatever database, into one new file of SQLite's, in one state, and verify the copy.

    The copy is marked: nothing can be spent from it. While it is written it is called `OUT.partial`.

    Args:
        database: The ledger.
        out: The file; its folder must exist.

    Returns:
        How many entries it holds.

    Raises:
        LedgerError: If the copy does not verify; it is then left as `OUT.partial`.
    """
    partial = out.with_name(f"{out.name}.partial")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            partial.with_name(partial.name + suffix).unlink()
    with Database(str(partial)) as copy:
        with database.reading() as source, copy.writing() as target:
            _copy(source, target)
            target.execute(insert(properties).values(name="backup", value=timestamp(time.time_ns() // 1000)))
        results = History(copy).verify()
        for result in results:
            if not result.holds:
                raise LedgerError(f"the ledger does not hold, nor does its copy {partial}: {result.problems[0]}")
        copy.into_one_file()
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(partial, out)
    sync_folder(out.parent)
    return sum(result.entries for result in results)


def restore(source: str, target: str, bundles: Sequence[Path], *, nothing_since: bool = False) -> dict[str, list[str]]:
    """Make a ledger of a backup, in an empty database, and count as spent what bundles noted since.

    Args:
        source: The backup.
        target: The ledger to make.
        bundles: The bundles that the ledger pays for, of every machine that served them.
        nothing_since: Whether nothing was spent since the backup, because the service was stopped before it.

    Returns:
        By account: what was counted as spent, in exact decimals; empty where nothing was.

    Raises:
        LedgerError: If the backup does not verify, is none, or nobody says what was spent since.
        SettingError: If there is something at the target already.
    """
    with Database(source, create=False) as old, old.reading() as connection:
        marked = connection.execute(
            select(properties.c.value).where(properties.c.name == "backup")
        ).scalar_one_or_none()
        if marked is None:
            raise LedgerError(f"{source} is no backup; `noiseproof ledger backup` makes one.")
        for result in History(old).verify():
            if not result.holds:
                raise LedgerError(f"the backup does not hold: {result.model}: {result.problems[0]}")
        if not nothing_since:
            noted = {one.model for one in map(_noted, bundles)}
            spendable = {one.model for one in History(old).accounts(0) if any(one.everyone.left.units)}
            if missing := sorted(spendable - noted):
                raise LedgerError(
                    f"nobody knows what was spent of {', '.join(missing)} since the backup: give --bundle for each, or "
                    "--nothing-since if the service was stopped before the backup."
                )
        _check_empty(target)
        with Database(target) as new:
            with new.writing() as written:
                _copy(connection, written)
                written.execute(delete(properties).where(properties.c.name == "backup"))
            return recover(new, bundles)


def recover(database: Database, bundles: Sequence[Path]) -> dict[str, list[str]]:
    """Count as spent what bundles noted that may have been spent, and a ledger from an older copy does not know of.

    Formal guarantee
    ----------------
    Afterwards no account has more left than its release's capacity less everything that was ever spent of it, if
    `bundles` are all that were served from it, with what `Binding` wrote in them last.

    Args:
        database: The ledger.
        bundles: The bundles that it pays for, of every machine that served them.

    Returns:
        By account: what was counted as spent, in exact decimals; empty where nothing was.

    Raises:
        LedgerError: If a bundle is paid for by another ledger.
    """
    counted: dict[str, list[str]] = {}
    with database.writing() as connection:
        id = connection.execute(select(properties.c.value).where(properties.c.name == "id")).scalar_one()
        for bundle in bundles:
            noted = _noted(bundle)
            if noted.ledger != id:
                raise LedgerError(f"{bundle} is paid for by another ledger (id {noted.ledger}).")
            if noted.model is None:
                continue
            account = AccountTransaction.lock(connection, {noted.model}, {LOST})()[noted.model]
            spent = account.everyone.spent
            most = account.chain.amount(noted.at_most).capped(account.everyone.capacity).at_least(spent)
            lost = most - spent
            if any(lost.units):
                account.charge(LOST, lost)
                account.write(connection)
            counted.setdefault(noted.model, []).extend(lost.to_json()["amounts"] if any(lost.units) else ())
    with database.reading() as connection:
        for bundle in bundles:
            noted = _noted(bundle)
            if noted.model is not None:
                account = AccountTransaction.read(connection, {noted.model})()[noted.model]
                Binding(bundle, noted.ledger).renew(noted.model, account.sequence, account.head, account.everyone)
    return counted


def revoke_keys(database: Database) -> int:
    """Revoke every key: after a restore, those that were revoked since the backup would be live again."""
    from noiseproof.serve.ledger.keys import Keys

    with database.reading() as connection:
        live = connection.execute(select(keys.c.id).where(keys.c.revoked_at.is_(None))).scalars().all()
    for id in live:
        Keys(database).revoke(id)
    return len(live)


def _noted(bundle: Path) -> Noted:
    noted = Noted.read(bundle / BINDING)
    if noted is None:
        raise SettingError(f"{bundle} names no ledger; it was never served, or costs nothing.")
    return noted


def _check_empty(target: str) -> None:
    with suppress(LedgerError):
        Database(target, create=False).close()
        raise SettingError(
            "there is a ledger at the target already; restore to another place, then change the address."
        )


def _copy(source: Connection, target: Connection) -> None:
    """Copy every table into a ledger that was just made, in place of what is in it."""
    for table in (properties, *GRANTING, grants):
        if table is not properties and target.execute(select(table).limit(1)).first() is not None:
            raise SettingError("a ledger can be copied into an empty one only.")
    target.execute(delete(properties))
    for table in metadata.sorted_tables:
        if table is version_table:
            continue
        rows = iter(source.execute(select(table), execution_options={"yield_per": _AT_ONCE}).mappings())
        while some := [dict(row) for row in islice(rows, _AT_ONCE)]:
            target.execute(insert(table), some)

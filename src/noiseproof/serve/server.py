"""Server: workers that share a port, a ledger and a rate, and are started again when one dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvicorn

from noiseproof.errors import SettingError
from noiseproof.serve import monitoring
from noiseproof.serve.access import Rates
from noiseproof.serve.app import from_environment
from noiseproof.serve.models import ServedModel
from noiseproof.serve.monitoring import FOLDER
from noiseproof.serve.service import Service
from noiseproof.serve.settings import VARIABLE, Settings

_LOOK = 0.1
_GRACE = 40.0
"""Seconds that workers have to answer what waits; then they are killed."""


def check(settings: Settings) -> tuple[dict[str, ServedModel], dict[str, int | None]]:
    """Load every bundle and open every account once, so that what is wrong is said before any worker starts.

    Gives the models, and how many answers are left of each (None for one that costs nothing).
    """
    from noiseproof.releases import bundles

    service = Service(settings, {name: bundles.load(folder) for name, folder in settings.bundles.items()})
    left: dict[str, int | None] = {}
    try:
        for name, model in service.models.items():
            left[name] = None
            if model.price is not None:
                left[name] = model.price.times_within(service.books.ledger.balance(name).left)
    finally:
        service.books.close()
        service.rates.close()
    return service.models, left


def run(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 2,
    certificate: Path | None = None,
    private_key: Path | None = None,
) -> None:
    """Serve until told to stop (SIGTERM, SIGINT): then no new requests, and those that wait are answered."""
    monitoring.configure()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingError(f"{host}:{port} cannot be listened on ({error.strerror}); choose another port.") from None
    parent, child = os.pipe()
    with listening, tempfile.TemporaryDirectory(prefix="noiseproof-") as folder:
        rates, metrics = Path(folder) / "rates", Path(folder) / "metrics"
        Rates.create(rates)
        metrics.mkdir()
        environment = {
            **os.environ,
            VARIABLE: replace(settings, shared=str(rates)).to_json(),
            FOLDER: str(metrics),
            **({CERTIFICATE: str(certificate), PRIVATE_KEY: str(private_key)} if certificate else {}),
        }
        command = [sys.executable, "-m", "noiseproof.serve.server", str(listening.fileno()), str(parent)]

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, env=environment, pass_fds=(listening.fileno(), parent))

        stop = threading.Event()
        before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            supervise(spawn, workers, stop)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(parent)
            os.close(child)


def supervise(spawn: Callable[[], subprocess.Popen[bytes]], count: int, stop: threading.Event) -> None:
    """Keep `count` workers running until `stop` is set, then end them.

    One that dies is started again at once; if it keeps dying, ever more slowly.
    """
    workers = [_Kept(spawn) for _ in range(count)]
    try:
        while not stop.wait(_LOOK):
            for worker in workers:
                worker.look()
    finally:
        for worker in workers:
            worker.process.terminate()
        until = time.monotonic() + _GRACE
        for worker in workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


class _Kept:
    """A worker that is kept running."""

    def __init__(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._spawn = spawn
        self._started = time.monotonic()
        self._pause = 0.0
        self.process = spawn()

    def look(self) -> None:
        """Start it again if it is dead, and has been so for long enough."""
        code = self.process.poll()
        now = time.monotonic()
        if code is None:
            if now - self._started > 60:
                self._pause = 0.0
            return
        if now - self._started < self._pause:
            return
        monitoring.line("worker died", code=code, pid=self.process.pid)
        self._pause = min(30.0, 2 * self._pause + 1.0)
        self._started = now
        self.process = self._spawn()


# Worker: one process of a service, as `server` starts it; it serves a socket that it was given, and ends with its parent.
#
# Usage: python -m noiseproof.serve.server SOCKET PARENT, two file descriptors; settings come by the environment.


CERTIFICATE, PRIVATE_KEY = "NOISEPROOF_SERVE_CERTIFICATE", "NOISEPROOF_SERVE_PRIVATE_KEY"


def main(listening: int, parent: int) -> None:
    """Serve until told to stop: then no new requests, and those that wait are answered."""
    server = uvicorn.Server(
        uvicorn.Config(
            from_environment,
            factory=True,
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=32 << 10,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=30,
            ssl_certfile=os.environ.get(CERTIFICATE),
            ssl_keyfile=os.environ.get(PRIVATE_KEY),
        )
    )

    def orphaned() -> None:
        os.read(parent, 1)  # returns when the last holder of the other end is gone
        server.should_exit = True

    threading.Thread(target=orphaned, daemon=True).start()
    server.run([socket.socket(fileno=listening)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

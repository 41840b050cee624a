"""Server: uvicorn's worker processes, which share a port, a ledger and rate limits, and are replaced when they die."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from uvicorn import Config
from uvicorn.supervisors import Multiprocess

from noiseproof.errors import SettingError
from noiseproof.files import write_whole
from noiseproof.releases.release import PredictionRelease
from noiseproof.serve import listeners, logs, monitoring
from noiseproof.serve.ledger import DataSetBalance, Spend
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.service import VARIABLE, Service, Settings

_HANG_SECONDS = 15
"""Seconds after which a worker that does not answer its parent is taken for hung, and replaced."""
_FINISH_SECONDS = 30
"""Seconds that a worker has to answer what waits; the parent kills it some seconds later."""


def check(settings: Settings) -> tuple[dict[str, ServedModel], dict[str, int | None], list[DataSetBalance]]:
    """Load every bundle and open every account once, so that what is wrong is said before any worker starts.

    A bundle whose answers cost is bound to the ledger that first paid for it: another one would sell them again.

    Returns:
        The models, how many answers are left of each (None for one that costs nothing), and their data sets.
    """
    service = Service(settings, settings.load_bundles())
    left: dict[str, int | None] = dict.fromkeys(service.models)
    try:
        ledger = service.connection.ledger
        for name, model in service.models.items():
            if model.price is not None:
                left[name] = model.answers_left(ledger.balance(model.account))
        data_sets = [ledger.data_set(name) for name in sorted({model.data_set for model in service.models.values()})]
    finally:
        service.close()
    return service.models, left, data_sets


def pay(bundle: Path, release: PredictionRelease, ledger: str, *, answers: int, client: str) -> int:
    """Pay for answers of a bundle from the ledger that it is bound to, as a service would; they may be given after that.

    Args:
        bundle: The bundle's folder.
        release: What it holds.
        ledger: The ledger's file or address.
        answers: How many are wanted.
        client: Whom the ledger notes for it.

    Returns:
        How many more answers there are.

    Raises:
        BudgetError: If they cost more than is left; nothing is spent then.
        LedgerError: If the bundle is paid for by another ledger, or there is none.
    """
    model = ServedModel(bundle.resolve().name, release, bundle=bundle)
    assert model.price is not None
    connection = LedgerConnection(ledger, [model])
    try:
        accounts = connection.ledger
        accounts.spend(Spend(model.account, client, model.price * answers, answers))
        return model.answers_left(accounts.balance(model.account))
    finally:
        connection.close()


def run(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 2,
    certificate: Path | None = None,
    private_key: Path | None = None,
    metrics_port: int | None = None,
    models: Mapping[str, ServedModel] | None = None,
) -> None:
    """Serve until told to stop (SIGTERM, SIGINT): then no new requests, and those that wait are answered.

    Metrics are for operators' keys. With `metrics_port` they are also at that port of this machine's own address (127.0.0.1),
    for a scraper without a key; they tell of the budgets of `models`, which `check` gave.
    """
    logs.configure(uvicorn=logging.INFO)  # which says when a worker died
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a file
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingError(f"{host}:{port} cannot be listened on ({error.strerror}); choose another port.") from None
    with listening, tempfile.TemporaryDirectory(prefix="noiseproof-") as folder:
        rates, metrics = Path(folder) / "rates", Path(folder) / "metrics"
        metrics.mkdir()
        os.environ[VARIABLE] = json.dumps({**asdict(settings), "shared": str(rates)})
        os.environ[monitoring.FOLDER] = str(metrics)
        os.environ[listeners.FILE] = str(Path(folder) / "connections")
        os.environ[listeners.WORKERS] = str(workers)
        config = Config(
            "noiseproof.serve.app:from_environment",
            factory=True,
            workers=workers,
            # By name: a worker that must import it before it can hear its parent's pings is taken for hung.
            http="noiseproof.serve.connections:GuardedProtocol",
            loop="noiseproof.serve.listeners:FairLoop",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_FINISH_SECONDS,
            timeout_worker_healthcheck=_HANG_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
        with _metrics_at(metrics_port, LedgerConnection(settings.ledger, (models or {}).values()), metrics):
            _Workers(config, [listening]).run()


@contextlib.contextmanager
def _metrics_at(port: int | None, connection: LedgerConnection, folder: Path) -> Iterator[None]:
    """The workers' metrics at a port of 127.0.0.1, for as long as it lasts."""
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    registry.register(monitoring.Metrics(connection))
    try:
        server, _ = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise SettingError(f"127.0.0.1:{port} cannot be listened on ({error.strerror}); choose another port.") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        connection.close()


class _Workers(Multiprocess):
    """uvicorn's workers, none of which can keep the service from ending; it is counted how many were replaced."""

    def keep_subprocess_alive(self) -> None:
        before = [worker.pid for worker in self.processes]
        super().keep_subprocess_alive()
        replaced = sum(worker.pid not in before for worker in self.processes)
        if replaced:
            file = Path(os.environ[monitoring.FOLDER]) / monitoring.RESTARTS
            write_whole(file, str(replaced + (int(file.read_text()) if file.is_file() else 0)))
            for pid in set(before) - {worker.pid for worker in self.processes}:
                mark_process_dead(pid, str(file.parent))  # so that what it said of its queue is forgotten

    def join_all(self) -> None:
        until = time.monotonic() + _FINISH_SECONDS + 10
        for worker in self.processes:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

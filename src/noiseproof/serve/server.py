"""Server: workers that share a port, a ledger and a rate, and are started again when one dies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from noiseproof.serve.metrics import FOLDER
from noiseproof.serve.rates import Rates
from noiseproof.serve.served import ServedModel
from noiseproof.serve.service import Service
from noiseproof.serve.settings import VARIABLE, Settings


def check(settings: Settings) -> tuple[dict[str, ServedModel], dict[str, int | None]]:
    """Load every bundle and open every account once, so that what is wrong is said before any worker starts.

    Gives the models, and how many answers are left of each (None for one that costs nothing).
    """
    from noiseproof import bundles

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
    from dataclasses import replace

    import uvicorn

    with tempfile.TemporaryDirectory(prefix="noiseproof-") as folder:
        rates = Path(folder) / "rates"
        Rates.create(rates)
        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        os.environ[VARIABLE] = replace(settings, shared=str(rates)).to_json()
        os.environ[FOLDER] = str(metrics)
        uvicorn.run(
            "noiseproof.serve.app:from_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=32 << 10,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=30,
            timeout_worker_healthcheck=60,
            ssl_certfile=None if certificate is None else str(certificate),
            ssl_keyfile=None if private_key is None else str(private_key),
        )

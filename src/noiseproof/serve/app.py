"""The app: a service behind addresses. `create_app` for any ASGI server; `from_environment` for our own workers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from noiseproof import __version__
from noiseproof.privacy import Randomness
from noiseproof.releases.release import Release
from noiseproof.serve import budgets, catalogue, console, monitoring, operations, predictions, problems
from noiseproof.serve.service import Service
from noiseproof.serve.settings import VARIABLE, Settings


def create_app(settings: Settings, releases: Mapping[str, Release], *, rng: Randomness | None = None) -> FastAPI:
    """An ASGI app that serves releases by name; noise comes from `Secure` randomness unless `rng` says otherwise."""
    service = Service(settings, releases, rng)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    app = FastAPI(
        title="noiseproof",
        summary="Private predictions, paid for from a budget that cannot be overdrawn.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(monitoring.RequestLog, metrics=service.metrics)
    for module in (predictions, catalogue, budgets, operations, console):
        app.include_router(module.router)
    _document(app, service)
    return app


def _document(app: FastAPI, service: Service) -> None:
    """Say in the OpenAPI document which models there are, and of which shapes their inputs."""
    document = app.openapi()
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["schema"]["enum"] = list(service.models)
    body = document["paths"][predictions.PATH]["post"]["requestBody"]["content"]["application/json"]
    shapes = {model.shape: None for model in service.models.values()}
    body["schema"] = {"anyOf": [predictions.body_schema(shape, service.settings.rows) for shape in shapes]}


def from_environment() -> FastAPI:
    """The app of a worker process, with the settings that its parent left in the environment."""
    import torch

    from noiseproof.releases import bundles

    torch.set_num_threads(1)  # workers share the cores; within one, a small network is faster in one thread
    monitoring.configure()
    settings = Settings.from_json(os.environ[VARIABLE])
    return create_app(settings, {name: bundles.load(folder) for name, folder in settings.bundles.items()})

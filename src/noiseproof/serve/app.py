"""The app: every address of the service. `create_app` for any ASGI server; `from_environment` for our own workers."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.security import HTTPAuthorizationCredentials
from prometheus_client import CONTENT_TYPE_LATEST

from noiseproof import __version__, palette
from noiseproof.errors import LedgerError
from noiseproof.privacy import Randomness
from noiseproof.releases.release import Release
from noiseproof.serve import access, documents, logs, monitoring, predictions
from noiseproof.serve.access import BEARER, KEY_PROBLEMS, Problem, documented
from noiseproof.serve.bodies import JSON
from noiseproof.serve.ledger import Caller, History
from noiseproof.serve.ledger.history import GRANTS
from noiseproof.serve.logs import log_event
from noiseproof.serve.models import ServedModel
from noiseproof.serve.service import VARIABLE, Service, Settings, service_of

_SECONDS = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0, "month": 30 * 86400.0}
_INTERVALS = 60
_MOST_CLIENTS = 1000
"""Clients that are listed at once: those that spent most."""
_RESTART_SECONDS = 5.0
"""What a worker that cannot start waits before it dies, so that it is not started again at once."""
_MODEL_PROBLEMS = documented("not-found", "unprocessable", *KEY_PROBLEMS)
_BUDGET_PROBLEMS = documented("forbidden", "not-found", "unprocessable", *KEY_PROBLEMS)

_router = APIRouter()


def create_app(settings: Settings, releases: Mapping[str, Release], *, rng: Randomness | None = None) -> FastAPI:
    """An ASGI app that serves releases by name.

    Args:
        settings: What the service allows, and where its ledger is.
        releases: What answers, by the name that it is served under.
        rng: Where the noise comes from; `Secure` randomness by default.

    Returns:
        The app; its service is at `app.state.service`.

    Raises:
        SettingError: If a release may not be served, or cannot be charged for.
        UnsupportedError: If a release answers no queries.

    Examples:
        >>> import noiseproof as npf
        >>> release = npf.train("dp-sgd", "digits", epsilon=3, epochs=1)
        >>> app = create_app(Settings(ledger="sqlite:///ledger.db"), {"digits": release})
        >>> list(app.state.service.models)
        ['digits']
        >>> app.state.service.close()  # a server that ran the app does that when it stops
    """
    service = Service(settings, releases, rng)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Service]]:
        service.start()
        ticking = asyncio.create_task(service.health.tick())
        yield {"service": service}
        ticking.cancel()
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
    access.install(app)
    app.add_middleware(monitoring.RequestLog, metrics=service.metrics)
    app.include_router(predictions.router)
    app.include_router(_router)
    _describe_models(app, service)
    return app


def from_environment() -> FastAPI:
    """The app of a worker process, with the settings that its parent left in the environment."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # workers share the cores; within one, a small network is faster in one thread
    logs.configure()
    settings = Settings(**json.loads(os.environ[VARIABLE]))
    try:
        app = create_app(settings, settings.load_bundles())
    except Exception:
        time.sleep(_RESTART_SECONDS)
        raise
    # A collection that looks at all that was imported and loaded stops everybody for 140 ms, and finds nothing.
    gc.collect()
    gc.freeze()
    return app


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_models(app: FastAPI, service: Service) -> None:
    """Say in the OpenAPI document which models there are, and of which shapes their inputs."""
    document = app.openapi()
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["schema"]["enum"] = list(service.models)
    content = document["paths"][predictions.PATH]["post"]["requestBody"]["content"]
    kinds = {(model.shape, *(column["name"] for column in model.columns)): model for model in service.models.values()}
    content[JSON]["schema"] = {
        "anyOf": [documents.body_schema(model, service.settings.rows) for model in kinds.values()]
    }


ServiceHere = Annotated[Service, Depends(service_of)]


async def _caller(
    request: Request, service: ServiceHere, given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
) -> Caller:
    return await service.authenticator.authenticate(request, given.credentials if given is not None else None)


CallerHere = Annotated[Caller, Depends(_caller)]


async def _operator(caller: CallerHere) -> Caller:
    if not caller.operator:
        raise Problem("forbidden", "Only an operator's key may see this; `noiseproof keys create NAME --operator`.")
    return caller


OperatorHere = Annotated[Caller, Depends(_operator)]
ClientName = Annotated[
    # PostgreSQL keeps no text with a zero byte in it, and says so by an error.
    str | None,
    Query(max_length=100, pattern=r"^[^\x00]*$", description="Another client; for operators only."),
]


@_router.get("/v1/models", tags=["models"], summary="All models", responses=documented(*KEY_PROBLEMS))
async def models(service: ServiceHere, caller: CallerHere) -> documents.Models:
    """Every model, its price and its verdict."""
    listed = [_listed(service, model) for model in service.models.values()]
    return documents.Models(models=listed, client=caller.client, operator=caller.operator)


# What reads the ledger is not `async`: FastAPI runs it in threads.
@_router.get("/v1/models/{name}", tags=["models"], summary="A model's card", responses=_MODEL_PROBLEMS)
def card(name: str, service: ServiceHere, caller: CallerHere) -> documents.ModelCard:
    """A model with its card, and what all releases of its data set promise together."""
    model = service.model(name)
    return documents.card(model, service.connection.ledger.data_set(model.data_set))


@_router.get("/v1/models/{name}/budget", tags=["budgets"], summary="What is spent and left", responses=_BUDGET_PROBLEMS)
def budget(name: str, service: ServiceHere, caller: CallerHere, client: ClientName = None) -> documents.Budget:
    """A model's budget, and the share of the client that asks."""
    model = service.model(name)
    whose = _allowed(caller, client)
    everyone = own = None
    if model.price is not None:
        default = service.settings.client_answers
        limit = None if default is None else model.price * default
        total, share = service.connection.ledger.share(model.account, whose, each=model.price, limit=limit)
        everyone, own = (documents.balance(model, one) for one in (total, share))
    return documents.Budget(
        model=name, client=whose, basis=model.basis, signature=_signature(model), everyone=everyone, own=own
    )


@_router.get("/v1/models/{name}/clients", tags=["budgets"], summary="Who has spent what", responses=_BUDGET_PROBLEMS)
def clients(name: str, service: ServiceHere, operator: OperatorHere) -> documents.Clients:
    """The clients that had most of a model, for operators."""
    model = service.model(name)
    if model.price is None:
        return documents.Clients(model=name, clients=[])
    found = [
        documents.Client(
            client=client,
            answers_spent=model.price.times_within(balance.spent) or 0,
            answers_limit=model.price.times_within(balance.capacity) or 0,
        )
        for client, balance in service.connection.ledger.balances(model.account, _MOST_CLIENTS).items()
        if client
    ]
    return documents.Clients(model=name, clients=sorted(found, key=lambda one: -one.answers_spent))


@_router.get("/v1/models/{name}/spending", tags=["budgets"], summary="Answers over time", responses=_BUDGET_PROBLEMS)
def spending(
    name: str,
    service: ServiceHere,
    caller: CallerHere,
    period: Literal["hour", "day", "week", "month"] = "day",
    client: ClientName = None,
) -> documents.Spending:
    """Answers paid for, in sixty intervals of the last hour, day, week or month: everybody's for operators, else one's own."""
    model = service.model(name)
    whose = None if caller.operator and client is None else _allowed(caller, client)
    seconds = _SECONDS[period]
    found = History(service.connection.database).spending(model.account, seconds, _INTERVALS, whose)
    return documents.Spending(
        model=name,
        client=whose,
        seconds=seconds / _INTERVALS,
        starts=[start for start, _ in found],
        answers=[answers for _, answers in found],
    )


@_router.get("/v1/models/{name}/entries", tags=["budgets"], summary="Who had answers", responses=_BUDGET_PROBLEMS)
def entries(
    name: str, service: ServiceHere, operator: OperatorHere, most: Annotated[int, Query(ge=1, le=10_000)] = 100
) -> documents.Entries:
    """The newest answers that were paid for, newest first, for operators. What was asked is kept nowhere."""
    model = service.model(name)
    found = History(service.connection.database).newest(model.account, most)
    return documents.Entries(model=name, entries=[documents.EntrySent.model_validate(one) for one in found])


@_router.get(
    "/v1/models/{name}/verification", tags=["budgets"], summary="Replay the history", responses=_BUDGET_PROBLEMS
)
def verification(name: str, service: ServiceHere, operator: OperatorHere) -> documents.Verification:
    """Replay the ledger's histories and say what is wrong with this model's and with who was granted what; for operators."""
    model = service.model(name)
    found = [one for one in History(service.connection.database).verify() if one.model in (model.account, GRANTS)]
    own = next((one for one in found if one.model == model.account), None)
    problems = [problem for one in found for problem in one.problems]
    counts = {"entries": own.entries, "answers": own.answers, "head": own.head} if own else {}
    return documents.Verification.model_validate(
        {"model": name, "holds": not problems, "entries": 0, "answers": 0, "head": "", **counts, "problems": problems}
    )


@_router.post(
    "/v1/models/{name}/close",
    tags=["management"],
    summary="Close a model's budget for good",
    responses=_BUDGET_PROBLEMS,
)
def close(name: str, service: ServiceHere, operator: OperatorHere) -> documents.Budget:
    """Lower a model's budget to what was spent: nothing more is sold. It cannot be taken back."""
    model = service.model(name)
    if model.price is None:
        raise Problem("unprocessable", "This model costs nothing, so that there is no budget to close; retire it.")
    service.connection.ledger.close(model.account)
    log_event("budget closed", model=name, client=operator.client)
    return budget(name, service, operator)


@_router.post(
    "/v1/models/{name}/retire", tags=["management"], summary="Retire a model for good", responses=_BUDGET_PROBLEMS
)
def retire(name: str, service: ServiceHere, operator: OperatorHere) -> documents.Model:
    """Close a model's budget, if it has one, and answer no more under its name. It cannot be taken back."""
    service.retire(name)
    log_event("model retired", model=name, client=operator.client)
    return _listed(service, service.model(name))


def _signature(model: ServedModel) -> documents.Signature:
    return documents.Signature.model_validate(model.signature)


def _listed(service: Service, model: ServedModel) -> documents.Model:
    return documents.Model.model_validate(model).model_copy(update={"retired": model.name in service.retired})


def _allowed(caller: Caller, client: str | None) -> str:
    if client is not None and client != caller.client and not caller.operator:
        raise Problem("forbidden", "Another client's budget is for operators to see.")
    return client or caller.client


@_router.get("/healthz", tags=["operations"], summary="Is the worker alive?")
async def health() -> documents.Health:
    """Always ok, as long as the worker answers."""
    return documents.Health(status="ok")


@_router.get("/readyz", tags=["operations"], summary="Can it answer?", responses=documented("ledger-unavailable"))
async def ready(service: ServiceHere) -> documents.Health:
    """Ready while the ledger commits: by the last spend or, where there was none, by a write that means nothing."""
    if not service.health.ready:
        raise LedgerError("nothing was committed to the ledger in the last seconds.")
    return documents.Health(status="ready")


@_router.get(
    "/metrics",
    tags=["operations"],
    summary="Metrics for Prometheus",
    response_class=Response,
    responses=documented("forbidden", *KEY_PROBLEMS),
)
def metrics(service: ServiceHere, operator: OperatorHere) -> Response:
    """Counts and times over all workers, and what is left of budgets, for operators."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@_router.get("/", include_in_schema=False)
@_router.get("/console.js", include_in_schema=False)
@_router.get("/console.css", include_in_schema=False)
def console(request: Request) -> Response:
    """The console, a page for people, comes from the package; it asks nothing of any other host."""
    file = Path(__file__).parent / "console" / (request.url.path.strip("/") or "index.html")
    if file.suffix == ".css":
        return Response(palette.style() + file.read_text("utf-8"), media_type="text/css")
    return FileResponse(file)

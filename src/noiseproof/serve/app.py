"""The app: every address of the service. `create_app` for any ASGI server; `from_environment` for our own workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from noiseproof import __version__
from noiseproof.errors import DataError
from noiseproof.privacy import Randomness
from noiseproof.releases.release import Release
from noiseproof.serve import access, documents, monitoring
from noiseproof.serve.access import Problem, documented
from noiseproof.serve.batcher import FailedAnswerError, PredictionRequest
from noiseproof.serve.ledger import Balance, Caller, History, Refused
from noiseproof.serve.models import NotJsonError
from noiseproof.serve.service import VARIABLE, Service, Settings

_LARGE = 1 << 18
"""Bytes from which on a body is parsed in a thread, so that others need not wait."""
_SECONDS = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0, "month": 30 * 86400.0}
_INTERVALS = 60
_RESTART_SECONDS = 5.0
"""What a worker that cannot start waits before it dies, so that it is not started again at once."""
_PREDICTIONS = "/v1/models/{name}/predictions"
_KEY_PROBLEMS = ("unauthorised", "too-many-requests", "ledger-unavailable")
"""What may go wrong wherever a key is needed."""
_MODEL_PROBLEMS = documented("not-found", "unprocessable", *_KEY_PROBLEMS)
_BUDGET_PROBLEMS = documented("forbidden", "not-found", "unprocessable", *_KEY_PROBLEMS)
_BEARER = HTTPBearer(auto_error=False, scheme_name="API key", description="A key from `noiseproof keys create`.")

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
    """
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
    access.install(app)
    app.add_middleware(monitoring.RequestLog, metrics=service.metrics)
    app.include_router(_router)
    _describe_models(app, service)
    return app


def from_environment() -> FastAPI:
    """The app of a worker process, with the settings that its parent left in the environment."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # workers share the cores; within one, a small network is faster in one thread
    monitoring.configure()
    settings = Settings(**json.loads(os.environ[VARIABLE]))
    try:
        return create_app(settings, settings.load_bundles())
    except Exception:
        time.sleep(_RESTART_SECONDS)
        raise


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
    body = document["paths"][_PREDICTIONS]["post"]["requestBody"]["content"]["application/json"]
    kinds = {(model.shape, *(column["name"] for column in model.columns)): model for model in service.models.values()}
    body["schema"] = {"anyOf": [documents.body_schema(model, service.settings.rows) for model in kinds.values()]}


def _service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


ServiceHere = Annotated[Service, Depends(_service)]


async def _caller(
    request: Request, service: ServiceHere, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Caller:
    return await service.authenticator.authenticate(request, given.credentials if given is not None else None)


CallerHere = Annotated[Caller, Depends(_caller)]


async def _operator(caller: CallerHere) -> Caller:
    if not caller.operator:
        raise Problem("forbidden", "Only an operator's key may see this; `noiseproof keys create NAME --operator`.")
    return caller


OperatorHere = Annotated[Caller, Depends(_operator)]
ClientName = Annotated[str | None, Query(max_length=100, description="Another client; for operators only.")]


@_router.post(
    _PREDICTIONS,
    tags=["predictions"],
    summary="Answer queries, within the privacy budget",
    response_class=Response,
    responses={
        200: {"model": documents.Predictions, "description": "Answers, paid for"},
        **documented(
            *("bad-request", "forbidden", "budget-exhausted", "not-found", "too-slow", "too-large"),
            *("unsupported-media-type", "unprocessable", "idempotency-mismatch", "overloaded"),
            *_KEY_PROBLEMS,
        ),
    },
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {}}}},
)
async def predict(
    name: str,
    request: Request,
    service: ServiceHere,
    caller: CallerHere,
    idempotency_key: Annotated[
        str | None,
        Header(
            pattern=r"^[\x21-\x7e]{1,200}$",
            description="A retry with the same key and inputs gets the same answer and costs nothing more.",
        ),
    ] = None,
) -> Response:
    """Answer a batch of queries whole, or refuse it and spend nothing."""
    model = service.model(name)
    request.state.model = model.name
    settings = service.settings
    with service.batcher.expecting():
        body = await access.read_body(request, limit=settings.body, seconds=settings.body_seconds)
        try:
            features = model.read(body) if len(body) < _LARGE else await run_in_threadpool(model.read, body)
        except DataError as error:
            kind = "bad-request" if isinstance(error, NotJsonError) else "unprocessable"
            raise Problem(kind, str(error)) from None
        asked = PredictionRequest(
            model,
            caller,
            features,
            request.state.secret,
            limit=service.limit(caller),
            retry_key=idempotency_key,
            memoise=settings.memoise and model.price is not None,
        )
    try:
        outcome = await service.batcher.submit(asked)
    except queue.Full:
        raise Problem(
            "overloaded", "Too many requests wait; nothing was spent.", headers={"Retry-After": "1"}
        ) from None
    except FailedAnswerError as error:
        if error.receipt is None:
            raise
        spent = request.state.answers = error.receipt.entry.answers
        request.state.receipt = error.receipt.id
        raise Problem(
            "internal",
            f"The request could not be answered and {spent} answers were spent; send it again with the same "
            "Idempotency-Key, if it had one, and it costs nothing more.",
            receipt=error.receipt.to_json(),
        ) from None
    if isinstance(outcome, Refused):
        raise _refusal(asked, outcome)
    request.state.receipt = outcome.receipt
    if outcome.replayed:
        return Response(outcome.document, headers={"Idempotency-Replayed": "true"}, media_type="application/json")
    request.state.answers = outcome.answers
    return Response(outcome.document, media_type="application/json")


def _refusal(asked: PredictionRequest, refused: Refused) -> Problem:
    sentence = refused.sentence(asked.spend)
    sentence = sentence[0].upper() + sentence[1:]
    if refused.reason == "revoked":
        return Problem("unauthorised", sentence, headers={"WWW-Authenticate": "Bearer"})
    if refused.reason == "retry":
        return Problem("idempotency-mismatch", sentence)
    remaining = {"answers": asked.model.answers_left(refused.everyone, refused.client)}
    return Problem("budget-exhausted", sentence, remaining=remaining)


@_router.get("/v1/models", tags=["models"], summary="All models", responses=documented(*_KEY_PROBLEMS))
async def models(service: ServiceHere, caller: CallerHere) -> documents.Models:
    """Every model, its price and its verdict."""
    listed = [documents.Model.model_validate(model) for model in service.models.values()]
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
        balances = service.connection.ledger.balances(model.account)
        total = balances[""]
        share = balances.get(whose, Balance(total.capacity, total.spent * 0))
        limit = service.limit(caller)
        if whose == caller.client and limit is not None:
            share = replace(share, capacity=(model.price * limit).capped(total.capacity).at_least(share.spent))
        everyone, own = (documents.balance(model, one) for one in (total, share))
    return documents.Budget(model=name, client=whose, basis=model.basis, everyone=everyone, own=own)


@_router.get("/v1/models/{name}/clients", tags=["budgets"], summary="Who has spent what", responses=_BUDGET_PROBLEMS)
def clients(name: str, service: ServiceHere, operator: OperatorHere) -> documents.Clients:
    """Every client of a model, for operators."""
    model = service.model(name)
    if model.price is None:
        return documents.Clients(model=name, clients=[])
    found = [
        documents.Client(
            client=client,
            answers_spent=model.price.times_within(balance.spent) or 0,
            answers_limit=model.price.times_within(balance.capacity) or 0,
        )
        for client, balance in service.connection.ledger.balances(model.account).items()
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


def _allowed(caller: Caller, client: str | None) -> str:
    if client is not None and client != caller.client and not caller.operator:
        raise Problem("forbidden", "Another client's budget is for operators to see.")
    return client or caller.client


@_router.get("/healthz", tags=["operations"], summary="Is the worker alive?")
async def health() -> documents.Status:
    """Always ok, as long as the worker answers."""
    return documents.Status(status="ok")


@_router.get("/readyz", tags=["operations"], summary="Can it answer?", responses=documented("ledger-unavailable"))
def ready(service: ServiceHere) -> documents.Status:
    """Ready when the ledger can be read."""
    with service.connection.database.reading() as connection:
        connection.execute(text("SELECT 1"))
    return documents.Status(status="ready")


@_router.get("/metrics", tags=["operations"], summary="Metrics for Prometheus", response_class=Response)
def metrics(service: ServiceHere) -> Response:
    """Counts and times over all workers, and what is left of budgets."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@_router.get("/", include_in_schema=False)
@_router.get("/console.js", include_in_schema=False)
@_router.get("/console.css", include_in_schema=False)
def console(request: Request) -> FileResponse:
    """The console, a page for people, comes from the package; it asks nothing of any other host."""
    return FileResponse(Path(__file__).parent / "console" / (request.url.path.strip("/") or "index.html"))

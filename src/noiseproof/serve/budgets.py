"""`GET /v1/models/{name}/budget`, `/clients`, `/spending`: what was spent, what is left, by whom and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from noiseproof.serve.dependencies import PROBLEMS, CallerHere, OperatorHere, ServiceHere
from noiseproof.serve.documents import (
    BudgetDocument,
    ClientDocument,
    ClientsDocument,
    SpendingDocument,
    balance_document,
)
from noiseproof.serve.ledger import Balance, Caller
from noiseproof.serve.problems import Problem, documented

_SECONDS = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0, "month": 30 * 86400.0}
_INTERVALS = 60

Client = Annotated[str | None, Query(max_length=100, description="Another client; for operators only.")]

router = APIRouter(tags=["budgets"])
_RESPONSES = documented("forbidden", "not-found", "unprocessable", *PROBLEMS)


# These read the ledger and are therefore not `async`: FastAPI runs them in threads.
@router.get("/v1/models/{name}/budget", summary="What is spent and left", responses=_RESPONSES)
def budget(name: str, service: ServiceHere, caller: CallerHere, client: Client = None) -> BudgetDocument:
    """A model's budget, and the share of the client that asks."""
    model = service.model(name)
    whose = _allowed(caller, client)
    everyone = own = None
    if model.price is not None:
        balances = service.books.ledger.balances(name)
        everyone = balances[""]
        own = balances.get(whose, Balance(everyone.capacity, everyone.spent.nothing))
        limit = service.limit(caller)
        if whose == caller.client and limit is not None:
            own = replace(own, capacity=(model.price * limit).capped(everyone.capacity).at_least(own.spent))
    return BudgetDocument(
        model=name,
        client=whose,
        basis=model.basis,
        everyone=None
        if everyone is None or model.price is None
        else balance_document(model.price, everyone, model.delta),
        own=None if own is None or model.price is None else balance_document(model.price, own, model.delta),
    )


@router.get("/v1/models/{name}/clients", summary="Who has spent what", responses=_RESPONSES)
def clients(name: str, service: ServiceHere, operator: OperatorHere) -> ClientsDocument:
    """Every client of a model, for operators."""
    model = service.model(name)
    if model.price is None:
        return ClientsDocument(model=name, clients=[])
    found = [
        ClientDocument(
            client=client,
            answers_spent=model.price.times_within(balance.spent) or 0,
            answers_limit=model.price.times_within(balance.capacity) or 0,
        )
        for client, balance in service.books.ledger.balances(name).items()
        if client
    ]
    return ClientsDocument(model=name, clients=sorted(found, key=lambda one: -one.answers_spent))


@router.get("/v1/models/{name}/spending", summary="Answers over time", responses=_RESPONSES)
def spending(
    name: str,
    service: ServiceHere,
    caller: CallerHere,
    period: Literal["hour", "day", "week", "month"] = "day",
    client: Client = None,
) -> SpendingDocument:
    """Answers paid for, in sixty intervals of the last hour, day, week or month: everybody's for operators, else one's own."""
    service.model(name)
    whose = None if caller.operator and client is None else _allowed(caller, client)
    seconds = _SECONDS[period]
    found = service.books.history.spending(name, seconds, _INTERVALS, whose)
    return SpendingDocument(
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

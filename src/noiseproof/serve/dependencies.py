"""What routes depend on: the worker's service, and who asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from noiseproof.serve.ledger import Caller
from noiseproof.serve.problems import Problem
from noiseproof.serve.service import Service

_BEARER = HTTPBearer(auto_error=False, scheme_name="API key", description="A key from `noiseproof keys create`.")


def get_service(request: Request) -> Service:
    """The worker's service."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def get_caller(
    request: Request,
    service: Annotated[Service, Depends(get_service)],
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Caller:
    """Who asks; or a problem."""
    return await service.doorman.let_in(request, given.credentials if given is not None else None)


async def get_operator(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
    """Who asks, if it is an operator; or a problem."""
    if not caller.operator:
        raise Problem("forbidden", "Only an operator's key may see this; `noiseproof keys create NAME --operator`.")
    return caller


ServiceHere = Annotated[Service, Depends(get_service)]
CallerHere = Annotated[Caller, Depends(get_caller)]
OperatorHere = Annotated[Caller, Depends(get_operator)]

PROBLEMS = ("unauthorised", "too-many-requests", "ledger-unavailable")
"""What may go wrong wherever a key is needed."""

"""Problems: what went wrong, as RFC 9457 problem details; never a traceback, never a value of the request's."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from noiseproof.errors import LedgerError

MEDIA_TYPE = "application/problem+json"

_TITLES = {
    "bad-request": (400, "The request cannot be read"),
    "unauthorised": (401, "A valid API key is needed"),
    "forbidden": (403, "This key may not do that"),
    "budget-exhausted": (403, "The privacy budget does not cover this"),
    "not-found": (404, "There is no such thing here"),
    "method-not-allowed": (405, "This cannot be done here"),
    "too-slow": (408, "The request took too long to arrive"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body must be application/json"),
    "unprocessable": (422, "The inputs do not fit the model"),
    "idempotency-mismatch": (422, "The idempotency key belongs to another request"),
    "too-many-requests": (429, "Too many requests"),
    "internal": (500, "Something went wrong here"),
    "overloaded": (503, "Too many requests are waiting"),
    "ledger-unavailable": (503, "The ledger cannot be reached"),
}


class ProblemDetails(BaseModel):
    """An error as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


class Problem(Exception):
    """A request that is refused; `kind` is the last part of the problem's type."""

    def __init__(self, kind: str, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = headers
        self.more = more

    def response(self) -> Response:
        """The problem as it is sent."""
        status, title = _TITLES[self.kind]
        details = ProblemDetails(
            type=f"urn:noiseproof:problem:{self.kind}", title=title, status=status, detail=self.detail, **self.more
        )
        return Response(to_json(details), status, self.headers, MEDIA_TYPE)


def ledger_problem(error: LedgerError) -> Problem:
    """The ledger is away: nothing was answered; it is worth trying again soon."""
    detail = "The ledger cannot be used at the moment; nothing was answered."
    return Problem("ledger-unavailable", detail, headers={"Retry-After": "1"})


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Problems for an operation's OpenAPI document."""
    content = {MEDIA_TYPE: {"schema": ProblemDetails.model_json_schema()}}
    found: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status, title = _TITLES[kind]
        described = f"{found[status]['description']}; {title}" if status in found else title
        found[status] = {"description": described, "content": content}
    return found


def install(app: FastAPI) -> None:
    """Make every error of an app a problem."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(LedgerError)
    async def _ledger(_: Request, error: LedgerError) -> Response:
        return ledger_problem(error).response()

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        where = ", ".join(sorted({str(found["loc"][-1]) for found in error.errors() if found["loc"][0] != "body"}))
        return Problem("unprocessable", f"These parameters are not as documented: {where or 'unknown'}.").response()

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        kinds = {404: "not-found", 405: "method-not-allowed"}
        kind = kinds.get(error.status_code, "bad-request" if error.status_code < 500 else "internal")
        headers = dict(error.headers) if error.headers else None
        return Problem(kind, "There is nothing at this address for this method.", headers=headers).response()

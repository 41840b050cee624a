"""The address that answers queries: from a request's bytes to an answer's, with nothing in between that need not be."""

from __future__ import annotations

import asyncio
import queue
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from noiseproof.errors import DataError
from noiseproof.serve import documents
from noiseproof.serve.access import BEARER, KEY_PROBLEMS, Problem, documented
from noiseproof.serve.batcher import FailedAnswerError, PredictionRequest
from noiseproof.serve.bodies import BODIES, JSON
from noiseproof.serve.ledger import Refused
from noiseproof.serve.models import NotJsonError
from noiseproof.serve.service import service_of

PATH = "/v1/models/{name}/predictions"
_LARGE = 1 << 18
"""Bytes from which on a body is parsed in a thread, so that others need not wait."""
_RETRY_KEY = r"^[\x21-\x7e]{1,200}$"
_RETRY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": _RETRY_KEY},
    "description": "A retry with the same key and inputs gets the same answer and costs nothing more.",
}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


class BareRoute(APIRoute):
    """A route whose function is given the request as it came: FastAPI's own reading takes longer than a small answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        return self.endpoint


router = APIRouter(route_class=BareRoute)


@router.post(
    PATH,
    tags=["predictions"],
    summary="Answer queries, within the privacy budget",
    response_class=Response,
    responses={
        200: {"model": documents.Predictions, "description": "Answers, paid for"},
        **documented(
            *("bad-request", "forbidden", "budget-exhausted", "not-found", "retired", "too-slow", "too-large"),
            *("unsupported-media-type", "unprocessable", "idempotency-mismatch", "overloaded"),
            *KEY_PROBLEMS,
        ),
    },
    openapi_extra={
        "parameters": [_NAME, _RETRY_HEADER],
        "security": [{BEARER.scheme_name: []}],
        "requestBody": {"required": True, "content": {JSON: {}}},
    },
)
async def predict(request: Request) -> Response:
    """Answer a batch of queries whole, or refuse it and spend nothing.

    Inputs are JSON. An array can also be sent as a file of numpy's (`application/x-npy`), and a table's rows as an Arrow
    stream (`application/vnd.apache.arrow.stream`).
    """
    service, headers = service_of(request), request.headers
    scheme, _, key = headers.get("authorization", "").partition(" ")
    caller = await service.authenticator.authenticate(request, key if scheme.lower() == "bearer" else None)
    model = service.answering(request.path_params["name"])
    request.state.model = model.name
    settings = service.settings
    retry_key = headers.get("idempotency-key")
    if retry_key is not None and not re.match(_RETRY_KEY, retry_key):
        raise Problem("unprocessable", "These parameters are not as documented: Idempotency-Key.")
    with service.batcher.expecting(), service.room.taken(caller.client, _announced(headers, settings.body)):
        kind, body = await read_body(request, limit=settings.body, seconds=settings.body_seconds)
        try:
            features = model.read(body, kind) if len(body) < _LARGE else await run_in_threadpool(model.read, body, kind)
        except DataError as error:
            raise Problem("bad-request" if isinstance(error, NotJsonError) else "unprocessable", str(error)) from None
        asked = PredictionRequest(
            model,
            caller,
            features,
            request.state.secret,
            limit=service.limit(caller),
            retry_key=retry_key,
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
        return Response(outcome.document, headers={"Idempotency-Replayed": "true"}, media_type=JSON)
    request.state.answers = outcome.answers
    return Response(outcome.document, media_type=JSON)


async def read_body(request: Request, *, limit: int, seconds: float) -> tuple[str, bytes]:
    """A request's media type and bytes; refused as soon as they are known to be too many, too slow or of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in BODIES:
        raise Problem("unsupported-media-type", f"Send the inputs as {', '.join(BODIES[:-1])} or {BODIES[-1]}.")
    too_large = Problem("too-large", f"A request may have {limit} bytes; send fewer inputs at once.")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal():
        raise Problem("bad-request", "The Content-Length is not a number.")
    if int(declared) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        detail = f"The body did not arrive within {seconds:g} seconds; nothing was answered and nothing spent."
        raise Problem("too-slow", detail) from None
    return kind, parts[0] if len(parts) == 1 else b"".join(parts)


def _announced(headers: Headers, limit: int) -> int:
    """How many bytes of a body are to be expected; what is wrong with the number is told by whoever reads the body."""
    length = headers.get("content-length", "")
    return min(int(length), limit) if length.isdecimal() else limit


def _refusal(asked: PredictionRequest, refused: Refused) -> Problem:
    sentence = refused.sentence(asked.spend)
    sentence = sentence[0].upper() + sentence[1:]
    if refused.reason == "revoked":
        return Problem("unauthorised", sentence, headers={"WWW-Authenticate": "Bearer"})
    if refused.reason == "retry":
        return Problem("idempotency-mismatch", sentence)
    remaining = {"answers": asked.model.answers_left(refused.everyone, refused.client)}
    return Problem("budget-exhausted", sentence, remaining=remaining)

"""`POST /v1/models/{name}/predictions`: inputs in; probabilities, labels, cost, what remains and a receipt out."""

from __future__ import annotations

import queue
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from noiseproof.errors import DataError
from noiseproof.serve.batcher import Question
from noiseproof.serve.bodies import read_body
from noiseproof.serve.dependencies import PROBLEMS, CallerHere, ServiceHere
from noiseproof.serve.documents import PredictionsDocument, left
from noiseproof.serve.ledger import Refused, refusal
from noiseproof.serve.models import NotJsonError
from noiseproof.serve.problems import Problem, documented

_LARGE = 1 << 18
"""Bytes from which on a body is parsed in a thread, so that others need not wait."""

PATH = "/v1/models/{name}/predictions"

router = APIRouter(tags=["predictions"])


@router.post(
    PATH,
    summary="Answer queries, within the privacy budget",
    response_class=Response,
    responses={
        200: {"model": PredictionsDocument, "description": "Answers, paid for"},
        **documented(
            "bad-request",
            "forbidden",
            "budget-exhausted",
            "not-found",
            "too-slow",
            "too-large",
            "unsupported-media-type",
            "unprocessable",
            "idempotency-mismatch",
            "overloaded",
            *PROBLEMS,
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
    with service.batcher.coming():
        body = await read_body(request, limit=settings.body, seconds=settings.body_seconds)
        try:
            features = model.read(body) if len(body) < _LARGE else await run_in_threadpool(model.read, body)
        except NotJsonError as error:
            raise Problem("bad-request", str(error)) from None
        except DataError as error:
            raise Problem("unprocessable", str(error)) from None
        question = Question(
            model,
            caller,
            features,
            request.state.secret,
            limit=service.limit(caller),
            retry_key=idempotency_key,
            memoise=settings.memoise and model.price is not None,
        )
    try:
        outcome = await service.batcher.ask(question)
    except queue.Full:
        raise Problem(
            "overloaded", "Too many requests wait; nothing was spent.", headers={"Retry-After": "1"}
        ) from None
    if isinstance(outcome, Refused):
        raise _refused(question, outcome)
    request.state.receipt = outcome.receipt
    if outcome.replayed:
        return Response(outcome.document, headers={"Idempotency-Replayed": "true"}, media_type="application/json")
    request.state.answers = outcome.answers
    return Response(outcome.document, media_type="application/json")


def body_schema(shape: tuple[int, ...], rows: int) -> dict[str, Any]:
    """The JSON schema of a request to a model of that shape."""
    items: dict[str, Any] = {"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}
    for size in reversed(shape):
        items = {"type": "array", "items": items, "minItems": size, "maxItems": size}
    inputs = {"type": "array", "items": items, "minItems": 1, "maxItems": rows}
    described = {**inputs, "description": "Records of the model's shape, coded as it was trained."}
    return {
        "type": "object",
        "properties": {"inputs": described},
        "required": ["inputs"],
        "additionalProperties": False,
    }


def _refused(question: Question, refused: Refused) -> Problem:
    sentence = refusal(question.spend, refused)
    sentence = sentence[0].upper() + sentence[1:]
    if refused.reason == "revoked":
        return Problem("unauthorised", sentence, headers={"WWW-Authenticate": "Bearer"})
    if refused.reason == "retry":
        return Problem("idempotency-mismatch", sentence)
    assert question.model.price is not None
    remaining = {"answers": left(question.model.price, refused.everyone, refused.client)}
    return Problem("budget-exhausted", sentence, remaining=remaining)

"""`/healthz`, `/readyz`, `/metrics`: for whoever runs the service."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from noiseproof.serve.dependencies import ServiceHere
from noiseproof.serve.documents import StatusDocument
from noiseproof.serve.problems import documented

router = APIRouter(tags=["operations"])


@router.get("/healthz", summary="Is the worker alive?")
async def health() -> StatusDocument:
    """Always ok, while there is somebody to say so."""
    return StatusDocument(status="ok")


@router.get("/readyz", summary="Can it answer?", responses=documented("ledger-unavailable"))
def ready(service: ServiceHere) -> StatusDocument:
    """Ready when the ledger can be read."""
    with service.books.database.reading() as connection:
        connection.execute(text("SELECT 1"))
    return StatusDocument(status="ready")


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
def metrics(service: ServiceHere) -> Response:
    """Counts and times over all workers, and what is left of budgets."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

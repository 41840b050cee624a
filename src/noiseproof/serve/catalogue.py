"""`GET /v1/models`: what is served, and on what terms."""

from __future__ import annotations

from fastapi import APIRouter

from noiseproof.serve.dependencies import PROBLEMS, CallerHere, ServiceHere
from noiseproof.serve.documents import CardDocument, ModelsDocument, card_document, model_document
from noiseproof.serve.problems import documented

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="All models", responses=documented(*PROBLEMS))
async def models(service: ServiceHere, caller: CallerHere) -> ModelsDocument:
    """Every model, its price and its verdict."""
    listed = [model_document(model) for model in service.models.values()]
    return ModelsDocument(models=listed, client=caller.client, operator=caller.operator)


@router.get(
    "/v1/models/{name}", summary="A model's card", responses=documented("not-found", "unprocessable", *PROBLEMS)
)
async def card(name: str, service: ServiceHere, caller: CallerHere) -> CardDocument:
    """A model with its card: what is claimed, what is proven, what an attack found."""
    return card_document(service.model(name))

"""A FastAPI app as one writes it in ten lines: pydantic bodies, one forward pass a request, no noise, no ledger, no keys."""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel

from noiseproof.releases import ModelRelease, load_bundle

torch.set_num_threads(1)
app = FastAPI()
_release = load_bundle(os.environ["BENCH_BUNDLE"]) if "BENCH_BUNDLE" in os.environ else None


class Inputs(BaseModel):
    """Records."""

    inputs: list[list[list[list[float]]]]


class Answers(BaseModel):
    """Labels and probabilities."""

    labels: list[str]
    probabilities: list[list[float]]


@app.get("/readyz")
async def ready() -> dict[str, str]:
    """Ready as soon as it answers."""
    return {"status": "ready"}


@app.post("/v1/models/public/predictions")
async def predict(body: Inputs) -> Answers:
    """Answer a batch."""
    assert isinstance(_release, ModelRelease)
    probabilities = _release.predict(torch.tensor(body.inputs))
    labels = [_release.public.classes[best] for best in probabilities.argmax(1).tolist()]
    return Answers(labels=labels, probabilities=probabilities.tolist())

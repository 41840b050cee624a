"""ServedModel: a release under a name, with the price of its answers and a reader for its inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.types import FailFast
from safetensors.torch import save as save_tensors

from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.privacy import Randomness
from noiseproof.releases.release import ModelRelease, PredictionRelease, Release, check_features
from noiseproof.serve.ledger import Amount
from noiseproof.serve.ledger.amounts import LARGEST

Answering = ModelRelease | PredictionRelease


class ServedModel:
    """What answers under a name. A `ModelRelease` answers for nothing; a `PredictionRelease` at a price an answer."""

    def __init__(self, name: str, release: Release, *, rows: int = 1024) -> None:
        if not isinstance(release, ModelRelease | PredictionRelease):
            raise UnsupportedError(f"{name} is a {release.kind} release, which answers no queries; serve another.")
        self.name = name
        self.release: Answering = release
        self.classes = release.public.classes
        self.shape = tuple(release.public.shape)
        self.price = price(release) if isinstance(release, PredictionRelease) else None
        self._reader = _reader(self.shape, rows)

    @property
    def capacity(self) -> Amount | None:
        """What its answers may cost in all: the release's promise, less the queries that were asked before."""
        if self.price is None or not isinstance(self.release, PredictionRelease):
            return None
        # A total beyond what the ledger can count is cut off there: that promise was worth nothing anyway.
        most = LARGEST // max(1, *self.price.units)
        return self.price * min(self.release.queries_left, most)

    @property
    def basis(self) -> Literal["proven", "claimed"]:
        """Whether the price is a proven cost, or only what a method's authors claim."""
        return "proven" if self.release.card.proven is not None else "claimed"

    @property
    def delta(self) -> float:
        """The delta at which the card states its epsilon."""
        promise = self.release.card.proven or self.release.card.claimed
        return promise.delta if promise is not None else 0.0

    def fingerprint(self) -> str:
        """A digest of the release's secrets that tells it apart from every other release."""
        tensors = {name: tensor.contiguous() for name, tensor in self.release.tensors().items()}
        return hashlib.sha256(save_tensors(tensors)).hexdigest()

    def read(self, body: bytes) -> torch.Tensor:
        """The inputs of a request's JSON, if they are finite records of the right shape; else a `DataError`."""
        try:
            # Field by field: a body may hold nothing but the inputs.
            inputs = self._reader.validate_json(body).inputs  # type: ignore[attr-defined]
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            raise (NotJsonError if first["type"] == "json_invalid" else DataError)(
                _sentence(first, self.shape)
            ) from None
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as that
            features = torch.from_numpy(np.array(inputs, dtype=np.float32))
        return check_features(features, self.shape)

    def answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Class probabilities for queries that are paid for."""
        if isinstance(self.release, ModelRelease):
            return self.release.predict(features)
        return self.release.answer_paid(features, rng)


class NotJsonError(DataError):
    """The body is not JSON at all."""


def price(release: PredictionRelease) -> Amount:
    """What one answer costs, in the measure in which all of the release's answers together cost least."""
    card = release.card
    promise = card.proven or card.claimed
    delta = promise.delta if promise is not None else 0.0
    answers = max(1, release.queries)
    events = release.events
    if not events:
        raise SettingError(f"{release.method} names no event for an answer, so that no ledger can charge for it.")
    found = [Amount.of_event(event, card.neighbours, answers=answers, delta=delta) for event in events]
    return min(found, key=lambda amount: (amount * answers).epsilon(delta))


def _reader(shape: tuple[int, ...], rows: int) -> TypeAdapter[BaseModel]:
    """A reader of `{"inputs": [...]}` that stops at the first number that is not finite or not in its place."""
    row: Any = Annotated[float, Field(strict=True, allow_inf_nan=False)]
    for size in reversed(shape):
        row = Annotated[list[row], Len(size, size), FailFast()]
    inputs = Annotated[list[row], Len(1, rows), FailFast()]
    body = create_model("Body", __config__=ConfigDict(extra="forbid"), inputs=(inputs, ...))
    return TypeAdapter(body)


def _sentence(error: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """What is wrong with a body, by position and never by value."""
    where = "".join(f"[{part}]" for part in error["loc"] if isinstance(part, int))
    kind = error["type"]
    if kind == "json_invalid":
        return "the body is not JSON that can be read here (NaN, Infinity and deep nesting are not)."
    if kind == "extra_forbidden":
        return "the body may hold nothing but inputs."
    if kind == "missing" or not error["loc"]:
        return 'the body must be an object {"inputs": [...]}.'
    if kind in ("too_short", "too_long"):
        what = "a row" if where else "a request"
        return f"inputs{where} has the wrong length: {what} of this model is checked against shape {list(shape)}."
    return f"inputs{where} is not a finite number or list as shape {list(shape)} wants it."

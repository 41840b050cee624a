"""Documents: what the service takes and sends, as it stands in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

import numpy.typing as npt
import orjson
import torch
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from noiseproof.privacy.budget import Neighbours
from noiseproof.releases.signing import Status
from noiseproof.serve.ledger import Amount, DataSetBalance, Paid
from noiseproof.serve.ledger import Balance as LedgerBalance
from noiseproof.serve.ledger.amounts import Measure
from noiseproof.serve.models import Basis, ServedModel

_EXACT = ("gradient norm",)
"""Facts of a run that 0.1 wrote on cards although they tell exactly what private records gave."""


class _Document(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class AmountSent(_Document):
    """Privacy in a measure that adds up, in exact decimals; `orders` for Renyi divergences."""

    measure: Measure
    amounts: list[str]
    orders: list[float] | None = None

    @model_validator(mode="before")
    @classmethod
    def _decimals(cls, value: Any) -> Any:
        return value.to_json() if isinstance(value, Amount) else value


class Cost(AmountSent):
    """What a request cost: for `answers` new ones; `memoised` were known already and cost nothing."""

    answers: int
    memoised: int


class Remaining(_Document):
    """How many more answers this client can have; the model's budget and its own both count."""

    answers: int


class ReceiptSent(_Document):
    """Proof of the spend: its place and its hash in the model's history."""

    id: str
    model: str
    client: str
    sequence: int
    answers: int
    made_at: str
    hash: str


class Predictions(_Document):
    """Answers, in the order of the inputs. `cost`, `remaining` and `receipt` are null for a model that costs nothing."""

    model: str
    classes: list[str]
    labels: list[str | float]
    probabilities: list[list[float]]
    intervals: list[list[float]] | None = None
    """The lower and upper end for each predicted number, where the model gives them."""
    cost: Cost | None
    remaining: Remaining | None
    receipt: ReceiptSent | None


class ColumnSent(_Document):
    """What is public about a column: bounds, categories, how dates are written, whether it may be missing."""

    name: str
    low: float | None
    high: float | None
    categories: list[str]
    integer: bool
    missing: bool
    date: str | None
    text: int


class Signature(_Document):
    """Who vouched for the bundle that a model was loaded from, in words; `by` is the id of a key that was checked."""

    status: Status
    sentence: str
    by: str | None


class Model(_Document):
    """A model: what it takes, what it promises, and what an answer costs."""

    name: str
    kind: Literal["model", "prediction"]
    method: str
    verdict: str
    shape: list[int]
    classes: list[str]
    columns: list[ColumnSent]
    """The columns of the table that it was made from, by whose names it takes records; empty where it was no table."""
    price: AmountSent | None
    basis: Basis
    signature: Signature
    retired: bool = False
    """Whether an operator retired it, so that it answers no more."""


class Models(_Document):
    """All models."""

    models: list[Model]
    client: str
    operator: bool


class DataSetLimit(_Document):
    """What all releases of a data set may promise together."""

    epsilon: float
    delta: float


class DataSet(_Document):
    """What all releases of a data set that this ledger knows promise together; null where one proves nothing."""

    name: str
    releases: int
    neighbours: Neighbours
    epsilon: float | None
    delta: float
    limit: DataSetLimit | None
    warning: str | None


class ModelCard(Model):
    """A model with its whole card, and with the data set that it was made from."""

    card: dict[str, Any]
    data_set: DataSet


class Epsilon(_Document):
    """An amount as the epsilon that it allows for at delta; null where it allows for none."""

    delta: float
    spent: float | None
    limit: float | None

    @field_validator("spent", "limit", mode="before")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        return None if value == float("inf") else value


class Balance(_Document):
    """What may be spent and what was, in answers and in the measure that adds up."""

    answers_spent: int
    answers_limit: int
    answers_left: int
    spent: AmountSent
    limit: AmountSent
    epsilon: Epsilon


class Budget(_Document):
    """A model's budget and a client's share of it; null for a model that costs nothing."""

    model: str
    client: str
    basis: Basis
    signature: Signature
    everyone: Balance | None
    own: Balance | None


class Client(_Document):
    """A client's use of a model."""

    client: str
    answers_spent: int
    answers_limit: int


class Clients(_Document):
    """All clients that have asked a model."""

    model: str
    clients: list[Client]


class Spending(_Document):
    """Answers paid for over time: `answers[i]` in the interval that starts at `starts[i]` (seconds since 1970)."""

    model: str
    client: str | None
    seconds: float
    starts: list[float]
    answers: list[int]


class EntrySent(_Document):
    """A line of a model's history: who had how many answers when. What was asked is kept nowhere."""

    sequence: int
    made_at: str
    client: str
    answers: int
    receipt: str
    hash: str


class Entries(_Document):
    """The newest answers that were paid for, newest first."""

    model: str
    entries: list[EntrySent]


class Verification(_Document):
    """What replaying a model's history found: hashes, limits and rights at every moment, and the balances."""

    model: str
    holds: bool
    entries: int
    answers: int
    head: str
    problems: list[str]


class Health(_Document):
    """How the service is."""

    status: Literal["ok", "ready"]


def predictions(model: ServedModel, probabilities: npt.NDArray[Any], paid: Paid | None, fresh: int) -> bytes:
    """The answer to a request, as JSON: a `Predictions`, written without checking it again."""
    document: dict[str, Any] = {
        "model": model.name,
        "classes": model.classes,
        "labels": [],
        "probabilities": [],
        "intervals": None,
        "cost": None,
        "remaining": None,
        "receipt": None,
    }
    answers = torch.from_numpy(probabilities)
    if model.classes:
        document["labels"] = [model.classes[place] for place in model.release.named(answers).tolist()]
        document["probabilities"] = probabilities
    else:
        units = model.public.in_units(answers).tolist()  # where intervals were asked for, their ends stand behind
        document["labels"] = [row[0] for row in units]
        document["intervals"] = [row[1:] for row in units] if probabilities.shape[1] == 3 else None
    if model.price is not None:
        document["cost"] = {**model.cost(fresh), "answers": fresh, "memoised": len(probabilities) - fresh}
        if paid is not None:
            document["remaining"] = {"answers": model.answers_left(paid.everyone, paid.client)}
            document["receipt"] = paid.receipt.to_json()
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def balance(model: ServedModel, balance: LedgerBalance) -> Balance:
    """A balance for people and for programs."""
    assert model.price is not None
    price, delta, spent, limit = model.price, model.delta, balance.spent, balance.capacity
    return Balance(
        answers_spent=price.times_within(spent) or 0,
        answers_limit=price.times_within(limit) or 0,
        answers_left=price.times_within(balance.left) or 0,
        spent=AmountSent.model_validate(spent),
        limit=AmountSent.model_validate(limit),
        epsilon=Epsilon(delta=delta, spent=spent.epsilon(delta), limit=limit.epsilon(delta)),
    )


def card(model: ServedModel, data_set: DataSetBalance) -> ModelCard:
    """A model's card as it is sent: without what bundles of version 0.1 state exactly of private records."""
    card = model.card.model_dump(mode="json")
    card["ran"] = {name: value for name, value in card["ran"].items() if name not in _EXACT}
    listed = Model.model_validate(model).model_dump()
    return ModelCard(**listed, card=card, data_set=DataSet(**data_set.to_json()))


def body_schema(model: ServedModel, rows: int) -> dict[str, Any]:
    """The JSON schema of a request to a model."""
    shape = model.shape
    items: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
    for least, most in (*((size, size) for size in reversed(shape)), (1, rows)):
        items = {"type": "array", "items": items, "minItems": least, "maxItems": most}
    inputs = {**items, "description": "Records of the model's shape, coded as it was trained."}
    if model.columns:
        cell = {"type": ["string", "number", "boolean", "null"]}
        record = {
            "type": "object",
            "properties": {column["name"]: cell for column in model.columns},
            "required": [column["name"] for column in model.columns if not column["missing"]],
            "additionalProperties": False,
        }
        named = {"type": "array", "items": record, "minItems": 1, "maxItems": rows}
        inputs = {"anyOf": [inputs, {**named, "description": "Records by the names of the table's columns."}]}
    return {"type": "object", "properties": {"inputs": inputs}, "required": ["inputs"], "additionalProperties": False}

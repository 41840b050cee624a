"""Documents: what the service sends, as it stands in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import to_json

from noiseproof.serve.ledger import Amount, Balance, Paid
from noiseproof.serve.models import ServedModel


class AmountDocument(BaseModel):
    """Privacy in a measure that adds up, in exact decimals; `orders` for Renyi divergences."""

    measure: Literal["pure", "gdp", "zcdp", "rdp"]
    amounts: list[str]
    orders: list[float] | None = None


class CostDocument(AmountDocument):
    """What a request cost: for `answers` new ones; `memoised` were known already and cost nothing."""

    answers: int
    memoised: int


class RemainingDocument(BaseModel):
    """How many more answers this client can have; the model's budget and its own both count."""

    answers: int


class ReceiptDocument(BaseModel):
    """Proof of the spend: its place and its hash in the model's history."""

    id: str
    model: str
    client: str
    sequence: int
    answers: int
    made_at: str
    hash: str


class PredictionsDocument(BaseModel):
    """Answers, in the order of the inputs. `cost`, `remaining` and `receipt` are null for a model that costs nothing."""

    model: str
    classes: list[str]
    labels: list[str]
    probabilities: list[list[float]]
    cost: CostDocument | None
    remaining: RemainingDocument | None
    receipt: ReceiptDocument | None


class ModelDocument(BaseModel):
    """A model: what it takes, what it promises, and what an answer costs."""

    name: str
    kind: Literal["model", "prediction"]
    method: str
    verdict: str
    shape: list[int]
    classes: list[str]
    price: AmountDocument | None
    basis: Literal["proven", "claimed"]


class ModelsDocument(BaseModel):
    """All models."""

    models: list[ModelDocument]
    client: str
    operator: bool


class CardDocument(ModelDocument):
    """A model with its whole card."""

    card: dict[str, Any]


class EpsilonDocument(BaseModel):
    """An amount as the epsilon that it allows for at delta; null where it allows for none."""

    delta: float
    spent: float | None
    limit: float | None


class BalanceDocument(BaseModel):
    """What may be spent and what was, in answers and in the measure that adds up."""

    answers_spent: int
    answers_limit: int
    answers_left: int
    spent: AmountDocument
    limit: AmountDocument
    epsilon: EpsilonDocument


class BudgetDocument(BaseModel):
    """A model's budget and a client's share of it; null for a model that costs nothing."""

    model: str
    client: str
    basis: Literal["proven", "claimed"]
    everyone: BalanceDocument | None
    own: BalanceDocument | None


class ClientDocument(BaseModel):
    """A client's use of a model."""

    client: str
    answers_spent: int
    answers_limit: int


class ClientsDocument(BaseModel):
    """All clients that have asked a model."""

    model: str
    clients: list[ClientDocument]


class SpendingDocument(BaseModel):
    """Answers paid for over time: `answers[i]` in the interval that starts at `starts[i]` (seconds since 1970)."""

    model: str
    client: str | None
    seconds: float
    starts: list[float]
    answers: list[int]


class StatusDocument(BaseModel):
    """How the service is."""

    status: Literal["ok", "ready"]


def predictions_document(model: ServedModel, probabilities: list[list[float]], paid: Paid | None, fresh: int) -> bytes:
    """The answer to a request, as JSON."""
    labels = [model.classes[row.index(max(row))] for row in probabilities]
    document: dict[str, Any] = {
        "model": model.name,
        "classes": list(model.classes),
        "labels": labels,
        "probabilities": probabilities,
        "cost": None,
        "remaining": None,
        "receipt": None,
    }
    if model.price is not None:
        cost = (model.price * fresh).to_json()
        document["cost"] = {**cost, "answers": fresh, "memoised": len(probabilities) - fresh}
    if model.price is not None and paid is not None:
        document["remaining"] = {"answers": left(model.price, paid.everyone, paid.client)}
        document["receipt"] = paid.receipt.to_json()
    return to_json(document)


def left(price: Amount, *balances: Balance) -> int:
    """How many answers all of the balances can pay for."""
    return min(price.times_within(balance.left) or 0 for balance in balances)


def balance_document(price: Amount, balance: Balance, delta: float) -> BalanceDocument:
    """A balance for people and for programs."""
    return BalanceDocument(
        answers_spent=price.times_within(balance.spent) or 0,
        answers_limit=price.times_within(balance.capacity) or 0,
        answers_left=price.times_within(balance.left) or 0,
        spent=amount_document(balance.spent),
        limit=amount_document(balance.capacity),
        epsilon=EpsilonDocument(
            delta=delta, spent=_finite(balance.spent.epsilon(delta)), limit=_finite(balance.capacity.epsilon(delta))
        ),
    )


def amount_document(amount: Amount) -> AmountDocument:
    """An amount as it is sent."""
    return AmountDocument(**amount.to_json())


def model_document(model: ServedModel) -> ModelDocument:
    """A model as it is listed."""
    card = model.release.card
    return ModelDocument(
        name=model.name,
        kind="model" if model.price is None else "prediction",
        method=card.method,
        verdict=card.verdict,
        shape=list(model.shape),
        classes=list(model.classes),
        price=None if model.price is None else amount_document(model.price),
        basis=model.basis,
    )


def card_document(model: ServedModel) -> CardDocument:
    """A model with its card."""
    return CardDocument(**model_document(model).model_dump(), card=model.release.card.model_dump(mode="json"))


def _finite(epsilon: float) -> float | None:
    return epsilon if epsilon < float("inf") else None

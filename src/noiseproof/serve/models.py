"""ServedModel: a release under a name, its price and a reader of its inputs; and the ledger that models are paid from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, TypeAdapter, ValidationError, create_model
from pydantic.types import FailFast
from safetensors.torch import save as save_tensors

from noiseproof.data.dataset import Public
from noiseproof.data.tables import code_rows, listed
from noiseproof.errors import DataError, LedgerError, SettingError, UnsupportedError
from noiseproof.privacy import Card, Randomness, Reproducible
from noiseproof.releases.release import ModelRelease, PredictionRelease, Release, check_features
from noiseproof.releases.signing import Verdict
from noiseproof.serve import bodies
from noiseproof.serve.bodies import JSON, NPY
from noiseproof.serve.ledger import Amount, Balance, Binding, Database, Ledger, Promise
from noiseproof.serve.ledger.amounts import LARGEST

if TYPE_CHECKING:
    import pandas as pd

Basis = Literal["proven", "claimed"]
"""Whether a price is a proven cost, or only what a method's authors claim."""


_MOST_SIZES, _MOST_FEATURES = 8, 1 << 28
"""Dimensions and features of one record."""


class ServedModel:
    """What answers under a name. A `ModelRelease` answers for nothing; a `PredictionRelease` at a price an answer."""

    def __init__(
        self,
        name: str,
        release: Release,
        *,
        rows: int = 1024,
        data_set: str | None = None,
        bundle: str | Path | None = None,
        signature: Verdict = Verdict(False),  # noqa: B008 (it is frozen)
    ) -> None:
        if not isinstance(release, ModelRelease | PredictionRelease):
            raise UnsupportedError(f"{name} is a {release.kind} release, which answers no queries; serve another.")
        self.name = self.account = name
        """What it is served under, and the account that pays for its answers, which another name may have opened."""
        self.data_set = data_set or _data_set_of(release.public)
        self.bundle = None if bundle is None else Path(bundle)
        """The folder that it was loaded from, where its ledger is noted."""
        self.signature = signature
        """Who vouched for the bundle as it was when it was loaded."""
        self.release: ModelRelease | PredictionRelease = release
        self.card = release.card
        self.kind, self.method, self.verdict = release.kind, release.method, release.card.verdict
        self.classes = release.public.classes
        self.shape = tuple(release.public.shape)
        self.price = price(release) if isinstance(release, PredictionRelease) else None
        self.delta = _delta(self.card)
        self._check_offer()
        self.public = release.public
        self.columns = [dataclasses.asdict(column) for column in release.public.columns]
        self._rows = rows
        self._costs: dict[int, dict[str, Any]] = {}  # of as many answers as a request may ask for
        self._try()
        self._reader = _reader(_coded(self.shape), rows)
        self._records = _reader(dict[str, _Cell], rows) if release.public.kind == "table" else None

    def _try(self) -> None:
        """Refuse a release that cannot answer, before anybody pays for it: answer once, and throw the answer away."""
        if not (1 <= len(self.shape) <= _MOST_SIZES and 0 < math.prod(self.shape) <= _MOST_FEATURES):
            raise SettingError(f"{self.name} takes records of a shape that there is not; make it again.")
        try:
            answer = self.answer(torch.full((1, *self.shape), 0.5), Reproducible(0))
            if not answer.isfinite().all():
                raise ArithmeticError("an answer is not finite")
        except Exception as error:
            raise SettingError(f"{self.name} cannot answer ({type(error).__name__}); make it again.") from None

    def _check_offer(self) -> None:
        """Refuse a release that offers more answers than the epsilon that its card proves covers, whoever wrote its settings.

        What is only claimed is added up by its authors' arithmetic, which a ledger does not follow.
        """
        promise = self.card.proven
        if self.price is None or promise is None:
            return
        assert isinstance(self.release, PredictionRelease)
        offered = (self.price * self.release.queries).epsilon(self.delta)
        if not offered <= promise.epsilon * (1 + _AGREEMENT):
            raise SettingError(
                f"{self.name} offers {self.release.queries} answers, which cost epsilon {offered:.4g}, and its card says "
                f"{promise.epsilon:.4g}; it is not the release that the card was written for, make it again."
            )

    @property
    def capacity(self) -> Amount | None:
        """What its answers may cost in all: the release's promise, less the queries that were asked before."""
        if not isinstance(self.release, PredictionRelease) or self.price is None:
            return None
        # A total beyond what the ledger can count is cut off there: that promise was worth nothing anyway.
        most = LARGEST // max(1, *self.price.units)
        return self.price * min(self.release.queries_left, most)

    @property
    def basis(self) -> Basis:
        """Whether the price is a proven cost, or only what a method's authors claim."""
        return "proven" if self.card.proven is not None else "claimed"

    def cost(self, answers: int) -> dict[str, Any]:
        """What so many answers cost, in exact decimals."""
        if answers not in self._costs:
            assert self.price is not None
            self._costs[answers] = (self.price * answers).to_json()
        return self._costs[answers]

    def answers_left(self, *balances: Balance) -> int:
        """How many answers all of the balances can pay for."""
        assert self.price is not None
        # In one pass over whole numbers: every answer says it.
        return min(
            [
                (most - spent) // unit
                for balance in balances
                for unit, most, spent in zip(self.price.units, balance.capacity.units, balance.spent.units, strict=True)
                if unit
            ],
            default=0,
        )

    @property
    def promise(self) -> Promise:
        """What the release promises for its records, or for persons."""
        unit = self.card.unit if self.card.unit in ("record", "person") else "record"
        proven = self.card.proven if self.card.unit == unit else None
        return Promise(None if proven is None else proven.epsilon, self.delta, self.card.neighbours, unit)

    def fingerprints(self) -> tuple[str, str]:
        """Digests that tell the release apart from every other: of all it is, and of its weights alone (as in 0.1).

        Both may tell private records apart and must not leave unkeyed.
        """
        tensors = {name: tensor.contiguous() for name, tensor in self.release.tensors().items()}
        weights = hashlib.sha256(save_tensors(tensors)).hexdigest()
        queries = self.release.queries if isinstance(self.release, PredictionRelease) else None
        noise = None if self.price is None else self.price.to_json()
        whole = json.dumps([weights, self.method, queries, noise])
        return hashlib.sha256(whole.encode()).hexdigest(), weights

    def read(self, body: bytes, kind: str = JSON) -> torch.Tensor:
        """The inputs of a request, if they are records of the right shape within the public bounds.

        A model of a table also takes records by the names of its columns, with categories, dates and gaps as in the table.

        Args:
            body: What was sent.
            kind: Its media type, one of `BODIES`.

        Returns:
            Coded features, (records, *shape).

        Raises:
            DataError: If they are no such records; before anything is paid for.
        """
        if kind == JSON:
            return self._read_json(body)
        if kind == NPY:
            return self._within_bounds(bodies.read_npy(body, self.shape, self._rows))
        if self._records is not None:
            return self._code(bodies.read_arrow(body, self._rows))
        raise DataError("only a model of a table takes Arrow; send the records as JSON or as an npy file.")

    def _read_json(self, body: bytes) -> torch.Tensor:
        features = bodies.read_numbers(body, self.shape, self._rows)
        if features is not None:
            return self._within_bounds(features)
        # What is not just numbers in their places: named records, or something wrong, which is told by its position.
        reader = self._records if self._records is not None and _BY_NAME.match(body) else self._reader
        try:
            # Field by field: a body may hold nothing but the inputs.
            inputs = reader.validate_json(body).inputs  # type: ignore[attr-defined]
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            raise (NotJsonError if first["type"] == "json_invalid" else DataError)(
                _sentence(first, self.shape)
            ) from None
        if reader is self._records:
            import pandas as pd

            return self._code(pd.DataFrame(inputs, dtype=object))
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as that
            return self._within_bounds(np.array(inputs, dtype=np.float32))

    def _within_bounds(self, features: npt.NDArray[np.float32]) -> torch.Tensor:
        if not (features.min() >= 0 and features.max() <= 1):  # also where one is NaN
            tensor = check_features(torch.from_numpy(features), self.shape)
            outside = int(((tensor < 0) | (tensor > 1)).flatten(1).any(1).nonzero()[0])
            raise DataError(f"inputs[{outside}] lies outside [0, 1], the public bounds of every coded feature.")
        return torch.from_numpy(features)

    def _code(self, frame: pd.DataFrame) -> torch.Tensor:
        if unknown := [name for name in map(str, frame.columns) if name not in self.public.order]:
            known = ", ".join(column.name for column in self.public.columns)
            raise DataError(
                f"inputs name {listed(unknown)}, which is no column of this model; its columns are {known}."
            )
        for column in self.public.columns:
            if column.missing and column.name not in frame.columns:
                frame[column.name] = None
        return code_rows(frame, self.public, name="the list of inputs")[0]

    def answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Class probabilities for queries that are paid for."""
        if isinstance(self.release, ModelRelease):
            return self.release.predict(features)
        return self.release.answer_paid(features, rng)


class NotJsonError(DataError):
    """The body is not JSON at all."""


def _data_set_of(public: Public) -> str:
    """A name for the data set that a release was made from, told by its columns, or by its shape where it has none.

    Only by what neighbouring files share. Two data sets that look alike share a name, which counts too much, never too
    little; whoever knows better names them (`noiseproof serve --data-set`).
    """
    seen: list[Any] = [column.name for column in public.columns] or list(public.shape)
    digest = hashlib.sha256(json.dumps([public.kind, seen, public.target]).encode()).hexdigest()
    return f"{public.kind}-{digest[:12]}"


def price(release: PredictionRelease) -> Amount:
    """What one answer costs, in the measure in which all of the release's answers together cost least."""
    card = release.card
    delta = _delta(card)
    answers = max(1, release.queries)
    events = release.events
    if not events:
        raise SettingError(f"{release.method} names no event for an answer, so that no ledger can charge for it.")
    try:
        found = [Amount.of_event(event, card.neighbours, answers=answers, delta=delta) for event in events]
        return min(found, key=lambda amount: (amount * answers).epsilon(delta))
    except (TypeError, ValueError, ArithmeticError):
        raise SettingError(
            f"what an answer of this {release.method} costs cannot be computed; make it again."
        ) from None


def _delta(card: Card) -> float:
    """The delta at which a card states its epsilon."""
    promise = card.proven or card.claimed
    return promise.delta if promise is not None else 0.0


_Cell = StrictStr | StrictBool | Annotated[float, Field(strict=True, allow_inf_nan=False)] | None
_BY_NAME = re.compile(rb'\s*\{\s*"inputs"\s*:\s*\[\s*\{')
"""How a body begins whose records are given by the names of columns."""


def _coded(shape: tuple[int, ...]) -> Any:
    """The type of one coded record."""
    row: Any = Annotated[float, Field(strict=True, allow_inf_nan=False)]
    for size in reversed(shape):
        row = Annotated[list[row], Len(size, size), FailFast()]
    return row


def _reader(row: Any, rows: int) -> TypeAdapter[BaseModel]:
    """A reader of `{"inputs": [...]}` that stops at the first number that is not finite or not in its place."""
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
    if any(isinstance(part, str) and part != "inputs" for part in error["loc"]):
        return f"inputs{where} holds something that is no text, number, truth value or null."
    return f"inputs{where} is not a finite number or list as shape {list(shape)} wants it."


_DEADLINE_SECONDS = 10.0
"""Seconds that a transaction of the service may wait for its database."""


class LedgerConnection:
    """The ledger's database as one worker uses it, with an account for every model that costs something.

    It is opened when it is first needed: a worker starts even while the database is away, and until it is back,
    whatever needs it says so.
    """

    def __init__(self, url: str, models: Iterable[ServedModel]) -> None:
        self._url = url
        self.models = list(models)
        self._fingerprints = [model.fingerprints() for model in self.models]
        self._lock = threading.Lock()
        self._opened: Ledger | None = None

    @property
    def database(self) -> Database:
        """The open database; raises `LedgerError` while it is away."""
        return self.ledger.database

    @property
    def ledger(self) -> Ledger:
        """The accounts."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    def close(self) -> None:
        """Close the database if it is open."""
        with self._lock:
            if self._opened is not None:
                with suppress(LedgerError):  # it is away, and what was noted before stands
                    self._opened.note()
                self._opened.database.close()
                self._opened = None

    def _open(self) -> Ledger:
        database = Database(self._url, create=False, deadline=_DEADLINE_SECONDS)
        try:
            ledger = Ledger(database)
            bindings: dict[str, list[Binding]] = {}
            for model, (release, weights) in zip(self.models, self._fingerprints, strict=True):
                if model.capacity is not None:
                    capacity, binding = model.capacity, None
                    if model.bundle is not None:
                        binding = Binding(model.bundle, ledger.id)
                        with database.reading() as connection:
                            binding.check(connection)
                    model.account = ledger.open(model.name, release=release, capacity=capacity, weights=weights)
                    if binding is not None:
                        binding.check_account(model.account)
                        bindings.setdefault(model.account, []).append(binding)
                ledger.draw(model.data_set, release=release, promise=model.promise)
            ledger = Ledger(database, bindings)
            ledger.note()
        except BaseException:
            database.close()
            raise
        return ledger


_AGREEMENT = 1e-3
"""How far a ledger's sum of prices may be from what the card's accountant made of all answers at once (3e-5 was seen)."""

"""Card: what is promised about a release, what of it is proven, and what an attack found."""

from __future__ import annotations

import json
import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from noiseproof.errors import BundleError
from noiseproof.privacy.budget import Neighbours

Unit = Literal["record", "model", "batch"]
"""Whose presence the promise hides: one record's, one trained model's, one batch's."""

Place = Literal["none", "inputs", "losses", "gradients", "parameters", "predictions"]
"""Where on the way from a record to an answer the noise goes in."""

Verdict = Literal["proven", "weaker than claimed", "nothing proven", "refuted"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Claim(_Frozen):
    """The epsilon that a method's authors state, by their own arithmetic, for what was really run."""

    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    unit: Unit = "record"
    neighbours: Neighbours = "add-or-remove"
    source: str
    """Which theorem or formula of which paper gives it."""


class Proof(_Frozen):
    """The epsilon that holds for what was really run, and what the proof stands on."""

    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    accountant: str
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not math.isfinite(self.epsilon):
            raise ValueError("an infinite epsilon is no proof: leave `proven` empty and say why")
        return self


class Audit(_Frozen):
    """A lower bound on the true epsilon, from playing a game against the mechanism."""

    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    trials: int = Field(gt=0)
    game: str


class Card(_Frozen):
    """Everything that can be said about a release's privacy, computed from what ran.

    `proven` is empty where nothing is proven, and then `why` says why. `ran` holds the facts the numbers were computed
    from: steps taken, sampling rate, sampler, noise, sizes.
    """

    method: str
    place: Place
    unit: Unit = "record"
    neighbours: Neighbours
    randomness: Literal["reproducible", "secure"]
    claimed: Claim | None = None
    proven: Proof | None = None
    why: str | None = None
    audited: Audit | None = None
    ran: dict[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reader must know: bounds read off the data, seeded randomness, settings tuned on private records."""

    @model_validator(mode="after")
    def _say_why(self) -> Self:
        if self.proven is None and not self.why:
            raise ValueError("a card that proves nothing must say why")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """`refuted` if an audit found more than was claimed; else what the proof says of the claim."""
        return verdict(self.claimed, self.proven, self.audited)

    def with_audit(self, audited: Audit) -> Card:
        """The same card with an audit's result; if it was audited before, the larger bound stays."""
        if self.audited is not None and self.audited.epsilon >= audited.epsilon:
            return self
        return self.model_copy(update={"audited": audited})

    def to_json(self) -> str:
        """The card as JSON, with its verdict."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Card:
        """Read a card, or raise a `BundleError`; the verdict is computed again, never trusted."""
        try:
            fields = dict(json.loads(text))
            fields.pop("verdict", None)
            return cls.model_validate(fields)
        except (ValueError, TypeError) as error:
            raise BundleError("a card cannot be read: it is not the JSON that a card is written as.") from error


def verdict(claimed: Claim | None, proven: Proof | None, audited: Audit | None) -> Verdict:
    """What the three numbers say together; an audit at a smaller delta than the claim's says nothing about it."""
    if (
        claimed is not None
        and audited is not None
        and audited.epsilon > claimed.epsilon
        and audited.delta * (1 + 1e-6) >= claimed.delta
    ):
        return "refuted"
    if proven is None:
        return "nothing proven"
    if claimed is not None and _weaker(proven, claimed):
        return "weaker than claimed"
    return "proven"


def _weaker(proof: Proof, claim: Claim) -> bool:
    # Accountants agree to some 1e-6; a proof that misses its claim by less is not weaker in any useful sense.
    return proof.epsilon > claim.epsilon * (1 + 1e-6) or proof.delta > claim.delta * (1 + 1e-6)

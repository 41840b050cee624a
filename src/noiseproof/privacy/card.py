"""Card: what is promised about a release, what of it is proven, what an attack found; Game: the attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from noiseproof.errors import BundleError
from noiseproof.files import strict_json
from noiseproof.privacy.budget import Neighbours, check_delta, check_neighbours

if TYPE_CHECKING:
    import torch

Unit = Literal["record", "person", "model", "batch"]
"""Whose presence the promise hides: one record's, that of a person with all their records, one trained model's, one batch's."""

Place = Literal["none", "inputs", "losses", "gradients", "parameters", "predictions"]
"""Where on the way from a record to an answer the noise goes in."""

Verdict = Literal["proven", "weaker than claimed", "nothing proven", "refuted", "rehearsal"]

_SLACK = 1e-6
"""Accountants agree to about this; a proof that misses its claim by less is not weaker in any useful sense."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class _Promise(_Frozen):
    epsilon: float = Field(ge=0)
    """The epsilon, 0 or more. A claim's may be infinite, a proof's not."""
    delta: float = Field(ge=0, lt=1)
    """The delta at which epsilon is stated, in [0, 1)."""

    def epsilon_at(self, delta: float) -> float:
        """The epsilon that the promise implies at another delta, so that it can be compared with what is stated there.

        Formal guarantee
        ----------------
        Whatever is (epsilon, delta)-DP is (epsilon', delta')-DP for every delta' above delta, where 1 + e^epsilon' is
        (1 - delta') / (1 - delta) times 1 + e^epsilon: the mechanism that leaks everything with probability delta and
        is randomised response otherwise dominates all of them (Kairouz, Oh and Viswanath 2015). For a smaller delta
        the promise implies nothing, and the result is infinite.
        """
        if delta * (1 + _SLACK) < self.delta:
            return math.inf
        if delta <= self.delta or math.isinf(self.epsilon):
            return self.epsilon
        share = (1 - delta) / (1 - self.delta)
        inner = share - (1 - share) * math.exp(-self.epsilon)
        return max(0.0, self.epsilon + math.log(inner)) if inner > 0 else 0.0

    def refuted_by(self, audit: Audit) -> bool:
        """Whether an audit found more than the promise allows at the audit's delta."""
        return audit.epsilon > self.epsilon_at(audit.delta)


class Claim(_Promise):
    """The epsilon that a method's authors state, by their own arithmetic, for what was really run.

    Examples:
        >>> from noiseproof.privacy import Claim
        >>> claim = Claim(epsilon=1.0, delta=1e-5, source="Theorem 1")
        >>> claim.epsilon_at(1e-6)  # at a smaller delta it promises nothing
        inf
    """

    unit: Unit = "record"
    """Whose presence is claimed to be hidden: a record's, a person's, a model's or a batch's."""
    neighbours: Neighbours = "add-or-remove"
    """Which data sets are neighbours in the claim."""
    source: str
    """Which theorem or formula of which paper gives it."""


class Proof(_Promise):
    """The epsilon that holds for what was really run, and what the proof stands on.

    Examples:
        >>> from noiseproof.privacy import accountants
        >>> from noiseproof.privacy.events import sampled_gaussian
        >>> spend = accountants.epsilon(sampled_gaussian(rate=0.01, sigma=1.1, steps=1000), delta=1e-5)
        >>> proof = spend.proof("records are drawn by Poisson sampling")
        >>> proof.accountant, proof.assumptions
        ('pld', ('records are drawn by Poisson sampling',))
    """

    accountant: str
    """What gave epsilon: an accountant (`pld`, `rdp`, ...), a filter, or an argument in words."""
    assumptions: tuple[str, ...] = ()
    """What must be true for the proof to hold, in sentences that a reader of the card can check."""

    @property
    def for_persons(self) -> Self:
        """The same proof in the words of a mechanism whose unit is a person."""
        words = (("number of records", "number of persons"), ("one record", "one person"))
        said = self.assumptions
        for record, person in words:
            said = tuple(text.replace(record, person) for text in said)
        return self.model_copy(update={"assumptions": said})

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not math.isfinite(self.epsilon):
            raise ValueError("an infinite epsilon is no proof: leave `proven` empty and say why")
        return self


class Audit(_Frozen):
    """A lower bound on the true epsilon, from playing a game against the mechanism.

    Users get one from an audit's result (`AuditResult.audited`) and put it on a card with `Card.with_audit`.

    Examples:
        >>> from noiseproof.privacy import Audit, Claim
        >>> found = Audit(epsilon=1.3, delta=1e-5, confidence=0.95, trials=1000, game="one canary")
        >>> Claim(epsilon=1.0, delta=1e-5, source="Theorem 1").refuted_by(found)
        True
    """

    epsilon: float = Field(ge=0)
    """The bound: with probability `confidence` the true epsilon is no smaller; 0 says nothing."""
    delta: float = Field(ge=0, lt=1)
    """The delta at which the bound holds."""
    confidence: float = Field(gt=0, lt=1)
    """The probability, over the game's randomness, with which the bound is valid."""
    trials: int = Field(gt=0)
    """How often the game was played in each of its two worlds; of an audit in one run, the number of canaries."""
    game: str
    """Which game was played."""


class Card(_Frozen):
    """Everything that can be said about a release's privacy, computed from what ran.

    Every release has one as `release.card`; its `verdict` sums it up.

    Examples:
        >>> from noiseproof.privacy import Card, Claim, Proof
        >>> card = Card(
        ...     method="my-method",
        ...     place="gradients",
        ...     neighbours="add-or-remove",
        ...     randomness="secure",
        ...     claimed=Claim(epsilon=1.0, delta=1e-5, source="Theorem 1"),
        ...     proven=Proof(epsilon=2.5, delta=1e-5, accountant="pld"),
        ... )
        >>> card.verdict
        'weaker than claimed'
        >>> Card.from_json(card.to_json()) == card
        True
    """

    method: str
    """The name of the method that made the release."""
    place: Place
    """Where the noise went in, on the way from a record to an answer."""
    unit: Unit = "record"
    """Whose presence is hidden: one record's, one person's, one trained model's, or one batch's."""
    neighbours: Neighbours
    """Which data sets are neighbours: those that differ in one unit more or less, or in one exchanged."""
    randomness: Literal["reproducible", "secure"]
    """Where the noise came from; with `reproducible`, which is seeded, the release is a rehearsal."""
    claimed: Claim | None = None
    """What the method's authors claim for what ran; None where they claim nothing."""
    proven: Proof | None = None
    """What is proven for what ran; None where nothing is."""
    why: str | None = None
    """Why nothing is proven (needed then), or why the proof is weaker than the claim."""
    audited: Audit | None = None
    """What an attack found; None before an audit."""
    ran: dict[str, Any] = Field(default_factory=dict)
    """The facts that the numbers were computed from: steps taken, sampling rate, sampler, noise, sizes."""
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
        """What may be said of the release.

        `refuted` if an audit found more than was claimed or proven, `nothing proven` without a proof, `rehearsal` if
        the randomness was seeded (whoever knows the seed can take the noise off, so that `proven` is what the same run
        would have with secure randomness), else `proven` or `weaker than claimed`.
        """
        found = self.verdict_if_secure
        seeded = self.randomness == "reproducible" and found in ("proven", "weaker than claimed")
        return "rehearsal" if seeded else found

    @property
    def verdict_if_secure(self) -> Verdict:
        """The verdict that the same run would have with secure randomness."""
        return verdict(self.claimed, self.proven, self.audited)

    @property
    def text(self) -> str:
        """The verdict in a sentence, for people."""
        if self.verdict == "refuted" and self.audited:
            found = f"and an audit found at least {_said(self.audited)}"
            if not (self.proven and self.proven.refuted_by(self.audited)):
                return f"Refuted: {_said(self.claimed)} is claimed, {found}."
            return (
                f"Refuted: {_said(self.proven)} is proven, {found}, at a confidence of {self.audited.confidence:.6g}: the "
                "proof, the program or the audit is wrong, and until it is known which, nothing is to be relied on."
            )
        if self.proven is None:
            return f"Nothing proven: {self.why}"
        promise = f"{_said(self.proven)} for one {self.unit} ({self.neighbours})"
        if self.verdict == "rehearsal":
            return (
                f"Rehearsal: its randomness was seeded, and whoever knows the seed can take the noise off, so that "
                f"nothing of it may leave; with secure randomness the same run has {promise}."
            )
        claimed = f", where {_said(self.claimed)} was claimed" if self.claimed else ""
        return f"{self.verdict.capitalize()}: {promise}{claimed}."

    @property
    def promises(self) -> list[tuple[str, str, str, str]]:
        """What is claimed, proven and audited, as rows of a table: kind, epsilon, delta, and by what."""
        found = (
            ("claimed", self.claimed, self.claimed and self.claimed.source),
            ("proven", self.proven, self.proven and self.proven.accountant),
            ("audited, at least", self.audited, self.audited and self.audited.game),
        )
        return [
            (kind, f"{one.epsilon:.4g}", f"{one.delta:g}", said or "") for kind, one, said in found if one is not None
        ]

    def __str__(self) -> str:
        return f"{self.method}: {self.text}"

    def _repr_html_(self) -> str:
        from noiseproof.notebook import html_table

        return html_table(str(self), ("", "ε", "δ", "by"), self.promises)

    def with_spent(self, epsilon: float, delta: float, what: str) -> Card:
        """The same card after something else was spent on the same records for the release.

        Args:
            epsilon: What it cost.
            delta: What it cost.
            what: What it paid for, as a note.

        Returns:
            The card, whose claim and proof have grown by as much: basic composition.
        """
        both = {
            name: None
            if one is None
            else one.model_copy(update={"epsilon": one.epsilon + epsilon, "delta": one.delta + delta})
            for name, one in (("claimed", self.claimed), ("proven", self.proven))
        }
        return self.model_copy(update={**both, "notes": (*self.notes, what)})

    def with_audit(self, audited: Audit) -> Card:
        """The same card with an audit's result; a bound from before stays if it says as much at as large a delta.

        Args:
            audited: What the audit found.

        Returns:
            The card with the new result; with the earlier one where that says as much, or refutes the card and the new one
            does not.
        """
        before, after = self.audited, self.model_copy(update={"audited": audited})
        refuted, still = self.verdict == "refuted", after.verdict == "refuted"
        if before is None or still > refuted:
            return after
        as_much = before.epsilon >= audited.epsilon and before.delta >= audited.delta
        return self if as_much or refuted > still else after

    def to_json(self) -> str:
        """The card as JSON, with its verdict."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Card:
        """Read a card, or raise a `BundleError`; the verdict is computed again, never trusted."""
        try:
            fields = dict(strict_json(text))
            fields.pop("verdict", None)
            return cls.model_validate(fields)
        except (ValueError, TypeError) as error:
            raise BundleError("a card cannot be read: it is not the JSON that a card is written as.") from error


def verdict(claimed: Claim | None, proven: Proof | None, audited: Audit | None) -> Verdict:
    """What the three numbers say together; they are only ever compared at one delta (`Claim.epsilon_at`)."""
    if audited is not None and any(promise.refuted_by(audited) for promise in (claimed, proven) if promise):
        return "refuted"
    if proven is None:
        return "nothing proven"
    if claimed is not None and proven.epsilon_at(claimed.delta) > claimed.epsilon * (1 + _SLACK):
        return "weaker than claimed"
    return "proven"


def _said(promise: _Promise | Audit | None) -> str:
    return "nothing" if promise is None else f"epsilon {promise.epsilon:.3g} at delta {promise.delta:g}"


@dataclass(frozen=True)
class Game:
    """The attack that hits a mechanism hardest, ready to be played many times.

    `play(world, trials, generator)` runs the mechanism `trials` times, on D where `world` is 0 and on its neighbour D'
    where it is 1, and returns one float64 score a trial: the larger, the more it looks like world 1. It is vectorised
    over the trials where the mechanism allows. Trials are independent: no draw of the mechanism's is shared between
    them, and all its randomness comes from `generator`. Scores may tie, and may be infinite where the score is certain;
    a NaN is a failure of the mechanism. `claimed` and `proven` are the guarantees of *exactly what `play` runs* (not of
    a longer training with the same settings), for the game's own unit and neighbours and at a delta that is not above
    the game's, so that a bound above one of them refutes it.

    Raises:
        SettingError: If delta is out of its range or the neighbouring relation is unknown.
        ValueError: If a promise is stated at a larger delta than the game's, or the claim for another unit or other
            neighbours.

    Examples:
        A sum with Gaussian noise of one sensitivity, 0 in one world and 1 in the other:

        >>> import torch
        >>> from noiseproof.privacy import Game
        >>> def play(world, trials, generator):
        ...     return world + torch.randn(trials, generator=generator, dtype=torch.float64)
        >>> game = Game("a noisy sum", play, "add-or-remove", delta=1e-5, gaussian=True)
        >>> game.play(1, 1000, torch.Generator().manual_seed(0)).shape
        torch.Size([1000])
    """

    name: str
    """What the game is called in results and reports."""
    play: Callable[[int, int, torch.Generator], torch.Tensor]
    """Runs the mechanism in one of the two worlds and returns the scores, as above."""
    neighbours: Neighbours
    """How D and D' differ."""
    delta: float
    """The delta at which a bound is computed."""
    claimed: Claim | None = None
    """What is claimed of what `play` runs; None where nothing is."""
    proven: Proof | None = None
    """What is proven of what `play` runs; None where nothing is."""
    unit: Unit = "record"
    """Whose presence the two worlds differ in."""
    gaussian: bool = False
    """Whether both worlds' scores are normal with one variance, so that the tighter Gaussian-DP fit is valid. Not so
    where records are sampled, where noise is cut off, or where only a proof says mu-GDP."""

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_neighbours(self.neighbours)
        for promise in (self.claimed, self.proven):
            if promise is not None and promise.delta > self.delta * (1 + _SLACK):
                raise ValueError(f"{self.name}: an audit at delta {self.delta} says nothing about {promise.delta}")
        if self.claimed is not None and (self.claimed.unit, self.claimed.neighbours) != (self.unit, self.neighbours):
            raise ValueError(f"{self.name}: the claim is for other neighbours or another unit than the game")

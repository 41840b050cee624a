"""Answers with a proof: noise on all classes, or one class chosen, calibrated for a number of answers within a budget."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import TypeAdapter
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.privacy import Randomness, accountants, calibration, gaussian_dp
from noiseproof.privacy.budget import Budget, Neighbours
from noiseproof.privacy.card import Proof
from noiseproof.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, PureDpEvent, SelfComposedDpEvent
from noiseproof.privacy.mechanisms import Exponential, Gaussian, Laplace

AnswerKind = Literal["label", "probabilities"]
"""`label`: one class, as a vector with a single 1. `probabilities`: all classes, with noise on each."""
_GUMBEL = math.pi / math.sqrt(6)
"""The standard deviation of standard Gumbel noise."""


@dataclass(frozen=True)
class ScoreChange:
    """How far one record may move the scores of one answer, under stated neighbours.

    `l1` and `l2` are norms of the change; `span` is its largest entry less its smallest, all that matters to a choice.
    """

    l1: float
    l2: float
    span: float
    neighbours: Neighbours


@dataclass(frozen=True)
class Answer(ABC):
    """One answer's noise. `amount` is what calibration finds: the larger, the less private and the less noisy."""

    law: ClassVar[str]
    neighbours: Neighbours
    amount: float

    @property
    def loss(self) -> float:
        """The largest privacy loss of an answer, where there is one."""
        return self.amount

    @property
    @abstractmethod
    def events(self) -> tuple[DpEvent, ...]:
        """What one answer does to the private records, for accountants; each of them alone describes it."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The standard deviation of the noise on a score (for choices: of the Gumbel noise that would choose alike)."""

    @abstractmethod
    def noised(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """The answers: (queries, classes) scores with noise, or labels as vectors with a single 1."""

    def cost(self, answers: int, delta: float) -> tuple[float, str]:
        """The epsilon that so many answers cost together at delta, and the accountant that says so.

        By the sum of losses, or what Renyi accounting makes of an event where that is less.
        """
        found = [(answers * self.loss, "sum")]
        if answers > 1 and delta > 0:
            for event in self.events:
                together = SelfComposedDpEvent(event, answers)
                spent = accountants.epsilon(together, delta, accountant="rdp", neighbours=self.neighbours)
                found.append((spent.epsilon, spent.accountant))
        return min(found)

    def proof(self, budget: Budget, assumptions: tuple[str, ...] = ()) -> Proof:
        """What `budget.queries` such answers cost together."""
        epsilon, accountant = self.cost(budget.queries, budget.delta)
        return Proof(epsilon=epsilon, delta=budget.delta, accountant=accountant, assumptions=assumptions)

    @property
    def _contributions(self) -> int:
        """An event's noise is over one record's own contribution, which accountants double where one is replaced."""
        return 2 if self.neighbours == "replace-one" else 1

    def to_json(self) -> dict[str, Any]:
        """The answer's settings, for a bundle."""
        return {"law": self.law, **asdict(self)}


@dataclass(frozen=True)
class GaussianAnswer(Answer):
    """Normal noise on every class; `amount` is mu.

    Formal guarantee
    ----------------
    If a record moves the scores by at most `l2`, an answer is mu-GDP, and q answers, which may depend on each other,
    are sqrt(q) mu-GDP, exactly. Unit and neighbours are the moves'. Dong, Roth and Su 2022.
    """

    law: ClassVar[str] = "gaussian"
    l2: float

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """Gaussian noise of 1 / mu times what a record moves."""
        return (GaussianDpEvent(self._contributions / self.amount),)

    @property
    def spread(self) -> float:
        """The standard deviation of the noise on a score."""
        return self.l2 / self.amount

    def noised(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Scores with noise."""
        # An answer is a release of its own: rounding counts its classes, not those of the whole batch.
        return rng.add_gaussian(scores, Gaussian(self.l2, 1 / self.amount).scale(rng, scores.shape[1]))

    def cost(self, answers: int, delta: float) -> tuple[float, str]:
        """By Gaussian differential privacy, exactly."""
        return gaussian_dp.epsilon_of(math.sqrt(answers) * self.amount, delta), "gdp"


@dataclass(frozen=True)
class LaplaceAnswer(Answer):
    """Laplace noise on every class; `amount` is an answer's epsilon.

    Formal guarantee
    ----------------
    If a record moves the scores by at most `l1`, an answer is `amount`-DP; answers may depend on each other. Unit and
    neighbours are the moves'. Dwork, McSherry, Nissim and Smith 2006.
    """

    law: ClassVar[str] = "laplace"
    l1: float

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """Laplace noise of 1 / epsilon times what a record moves."""
        return (LaplaceDpEvent(self._contributions / self.amount),)

    @property
    def spread(self) -> float:
        """The standard deviation of the noise on a score."""
        return math.sqrt(2) * self.l1 / self.amount

    def noised(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Scores with noise."""
        return rng.add_laplace(scores, Laplace(self.l1, self.amount).scale(rng, scores.shape[1]))


@dataclass(frozen=True)
class ExponentialAnswer(Answer):
    """One class, chosen by the exponential mechanism; `amount` is an answer's epsilon.

    Formal guarantee
    ----------------
    If a record changes no two scores by amounts further apart than `span`, an answer is `amount`-DP with a privacy loss
    of range `amount`; a shift of all scores changes nothing. Answers may depend on each other. Unit and neighbours are
    the moves'. McSherry and Talwar 2007; Dong, Durfee and Rogers 2020.
    """

    law: ClassVar[str] = "exponential"
    span: float

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """A choice whose loss has a bounded range."""
        return (PureDpEvent(self.amount, self.neighbours, bounded_range=True),)

    @property
    def spread(self) -> float:
        """The standard deviation of the Gumbel noise whose largest score would be the chosen one."""
        return _GUMBEL * self.span / self.amount

    def noised(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """The chosen classes."""
        # Shifted by half the span, no entry moves by more than half of it: that is what the mechanism wants to hear.
        chosen = Exponential(self.span / 2, self.amount, self.neighbours).release(scores, rng)
        return functional.one_hot(chosen, scores.shape[1]).to(scores.dtype)


@dataclass(frozen=True)
class VoteAnswer(Answer):
    """One class, chosen with probability proportional to exp(amount * votes), where each of `voters` has one vote.

    Formal guarantee
    ----------------
    If a record changes one voter's vote, an answer is `loss`-DP, exactly, with a privacy loss of range 2 `amount`.
    With one voter it is randomised response, whose loss is `amount`: half of what the exponential mechanism's proof
    gives, since the probabilities' sum cannot change. With many it comes close to 2 `amount`. Moving a vote from class
    a to class b multiplies the probability of a by e^-amount Z / Z'; Z' / Z is largest where b has all the other votes
    and a none but this one. Answers may depend on each other. Unit and neighbours: whatever changes one vote at most.
    """

    law: ClassVar[str] = "votes"
    voters: int
    classes: int

    @property
    def loss(self) -> float:
        """The largest privacy loss of an answer."""
        s, k, c = self.amount, self.voters, self.classes

        # Both sums divided by e^(s k), which may be too large for a float.
        after = 1 + (c - 1) * math.exp(-s * k)
        before = math.exp(-s) + math.exp(-s * (k - 1)) + (c - 2) * math.exp(-s * k)
        return s + math.log(after / before) + self._rounding

    @property
    def _rounding(self) -> float:
        # amount * votes is computed in float64, and a choice's loss is twice that far off at most.
        return 2.0**-50 * (1 + self.amount * self.voters)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """A choice by its largest loss, or by its loss's range."""
        return (
            PureDpEvent(self.loss, self.neighbours),
            PureDpEvent(2 * self.amount + self._rounding, self.neighbours, bounded_range=True),
        )

    @property
    def spread(self) -> float:
        """The standard deviation of the Gumbel noise whose largest score would be the chosen one."""
        return _GUMBEL / self.amount

    def noised(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """The chosen classes; `scores` are counts of votes."""
        chosen = rng.choose(scores.double() * self.amount)
        return functional.one_hot(chosen, scores.shape[1]).to(scores.dtype)


_ANSWERS = {kind.law: kind for kind in (GaussianAnswer, LaplaceAnswer, ExponentialAnswer, VoteAnswer)}


def from_json(fields: Mapping[str, Any]) -> Answer:
    """The answer that `Answer.to_json` wrote."""
    given = {name: value for name, value in fields.items() if name != "law"}
    return TypeAdapter(_ANSWERS[fields["law"]]).validate_python(given)


def calibrate(build: Callable[[float], Answer], budget: Budget) -> Answer:
    """The answer with the least noise of which `budget.queries` fit into the budget."""
    probe = build(1.0)
    if isinstance(probe, GaussianAnswer):
        if budget.delta == 0:
            raise SettingError("Gaussian noise has no finite epsilon at delta 0; choose a delta above 0.")
        return build(gaussian_dp.mu_within(budget.epsilon, budget.delta) / math.sqrt(budget.queries) * (1 - 1e-12))
    if budget.queries == 1 and not isinstance(probe, VoteAnswer):
        return build(budget.epsilon)

    def cost(amount: float) -> float:
        return build(amount).cost(budget.queries, budget.delta)[0]

    start = budget.epsilon / math.sqrt(budget.queries)
    return build(calibration.calibrate(cost, budget.epsilon, start=start, increasing=True, tolerance=1e-4))


def least_noise(change: ScoreChange, kind: AnswerKind, budget: Budget) -> Answer:
    """The answer of that kind with the least noise, for scores that move so; public numbers alone decide."""
    near = budget.neighbours
    if change.neighbours != near:
        raise SettingError(f"these scores are known to move so under {change.neighbours}, not {near}.")
    if kind == "label":
        return calibrate(lambda amount: ExponentialAnswer(near, amount, change.span), budget)
    found = [calibrate(lambda amount: LaplaceAnswer(near, amount, change.l1), budget)]
    if budget.delta > 0:
        found.append(calibrate(lambda amount: GaussianAnswer(near, amount, change.l2), budget))
    return min(found, key=lambda answer: answer.spread)


def onto_simplex(scores: torch.Tensor) -> torch.Tensor:
    """The nearest probability vector to each row, in L2 (Duchi et al. 2008)."""
    ordered = scores.sort(dim=1, descending=True).values
    counts = torch.arange(1, scores.shape[1] + 1, dtype=scores.dtype, device=scores.device)
    shifts = (ordered.cumsum(1) - 1) / counts
    support = (ordered > shifts).sum(1, keepdim=True)
    return (scores - shifts.gather(1, support - 1)).clamp_(min=0)

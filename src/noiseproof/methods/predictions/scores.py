"""Public feature maps of bounded norm for `logits` and `votes`: functions of one record, fitted on nothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import torch

from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError
from noiseproof.methods import Method
from noiseproof.methods.predictions.answers import (
    Answer,
    ExponentialAnswer,
    Kind,
    VoteAnswer,
    check_kind,
    from_json,
    prove,
)
from noiseproof.privacy.card import Claim, Place
from noiseproof.releases.release import PredictionRelease, Saved

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.privacy import Budget, Card, Randomness
    from noiseproof.privacy.events import DpEvent


MapName = Literal["auto", "raw", "fourier", "scattering"]
"""`raw`: the features themselves. `fourier`: random Fourier features. `scattering`: wavelets, for pictures."""


@dataclass(frozen=True)
class BoundedMap:
    """A named map, float64, no longer than 1: longer vectors are shortened to length 1.

    `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `fourier` for up to 128 features
    and `raw` for more (random Fourier features of many sparse bits need to be very many): the shape, which is public,
    decides.

    Formal guarantee
    ----------------
    None is needed: a record's features depend on that record and on public numbers alone.
    """

    name: MapName
    shape: tuple[int, ...]
    width: int = 1000
    length: float = 0.6
    """Of `fourier`: number of features, and the kernel's length scale between records of norm 1."""

    def __post_init__(self) -> None:
        if self.name not in ("auto", "raw", "fourier", "scattering"):
            raise SettingError(f"a feature map is auto, raw, fourier or scattering, not {self.name!r}.")
        if self.width < 1 or not self.length > 0:
            raise SettingError(f"fourier features need a width and a length above 0, not {self.width}, {self.length}.")
        self._map().shape(self.shape)  # refuses shapes that the map cannot take

    @property
    def chosen(self) -> MapName:
        """The map that `auto` stands for."""
        if self.name != "auto":
            return self.name
        picture = len(self.shape) == 3 and min(self.shape[1:]) >= 16 and not any(side % 4 for side in self.shape[1:])
        if picture:
            return "scattering"
        return "fourier" if math.prod(self.shape) <= 128 else "raw"

    def _map(self) -> FeatureMap:
        if self.chosen == "raw":
            return UnitNormMap()
        if self.chosen == "fourier":
            return Chain((UnitNormMap(), RandomFourierMap(self.width, self.length)))
        return Chain((ScatteringMap(), GroupNormMap(), UnitNormMap()))

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """The mapped records, (records, width) in float64."""
        mapped = self._map()(features.float()).double()
        norms = torch.linalg.vector_norm(mapped, dim=1, keepdim=True)
        return mapped / norms.clamp(min=1.0)


# ScoreRelease: answers from secret scores of all classes, with noise that a proof stands on.


Secret = TypeVar("Secret")
"""What scores are made of, and what never leaves."""


class ScoreRelease(PredictionRelease, Generic[Secret]):
    """Answers to a fixed number of queries: scores a class, noised as `answer` says, then made probabilities.

    Formal guarantee
    ----------------
    That of `answer`, once for every query, where one record moves a query's scores no further than `answer` says. Making
    probabilities of noised scores uses nothing private.
    """

    def __init__(
        self,
        secret: Secret,
        answer: Answer,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        *,
        queries: int,
        rng: Randomness,
        asked: int = 0,
    ) -> None:
        super().__init__(card, public, settings, queries=queries, rng=rng, asked=asked)
        self._secret = secret
        self.answer = answer

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What one answer does to the private records."""
        return self.answer.events

    def _answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        noised = self.answer.noised(self._scores(features), rng)
        if isinstance(self.answer, ExponentialAnswer | VoteAnswer):
            return noised.float()
        return self._probabilities(noised).float()

    @abstractmethod
    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        """Secret scores, (queries, classes) in float64."""

    @abstractmethod
    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        """Probabilities from noised scores."""

    def description(self) -> dict[str, Any]:
        """The queries that are gone, and the answers' noise."""
        return {**super().description(), "answer": self.answer.to_json()}

    @classmethod
    @abstractmethod
    def _restored(cls, saved: Saved) -> Secret:
        """What scores are made of, from a bundle."""

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same answers, with as many queries left as when it was saved."""
        answer = from_json(saved.description["answer"])
        return cls(cls._restored(saved), answer, saved.card, saved.public, saved.settings, **cls._spent(saved))


# ScoreMethod: what the proven siblings have in common: secret scores, answers with noise on them, a card with a proof.


@dataclass(frozen=True)
class ScoreMethod(Method):
    """A method whose answers are scores of all classes that one record moves by a known amount at most, with noise."""

    place: ClassVar[Place] = "predictions"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, over all queries"
    assumptions: ClassVar[tuple[str, ...]]
    """What its proof takes for granted, besides what the randomness does."""

    answer: Kind = "label"

    def __post_init__(self) -> None:
        check_kind(self.answer)

    def score_card(
        self, dataset: Dataset, budget: Budget, rng: Randomness, answer: Answer, ran: Mapping[str, Any]
    ) -> Card:
        """The card of a run whose answers are noised so: it claims the budget, and proves what the answers cost."""
        claimed = Claim(
            epsilon=budget.epsilon,
            delta=budget.delta,
            neighbours=budget.neighbours,
            source="the budget that the noise was calibrated to",
        )
        proven = prove(answer, budget, (*self.assumptions, *rng.assumptions))
        noise = {"queries": budget.queries, "answer": self.answer, "noise": answer.law}
        return self.card(dataset, budget, rng, claimed=claimed, proven=proven, ran={**noise, **ran})

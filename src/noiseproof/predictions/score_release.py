"""ScoreRelease: answers from secret scores of all classes, with noise that a proof stands on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch

from noiseproof.predictions.answers import Answer, ExponentialAnswer, VoteAnswer, from_json
from noiseproof.releases import PredictionRelease, Saved

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card, Randomness
    from noiseproof.guarantees.events import DpEvent

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

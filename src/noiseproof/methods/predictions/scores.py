"""What logits, teachers and votes share: secret scores of all classes, answers with noise on them, a card with a proof."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.methods import Method
from noiseproof.methods.common import MOST_ANSWERS, claim_of, crowded, proven_game, seeded_by
from noiseproof.methods.predictions.answers import (
    Answer,
    AnswerKind,
    ExponentialAnswer,
    GaussianAnswer,
    LaplaceAnswer,
    VoteAnswer,
    from_json,
)
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Card, Game, Randomness, Reproducible
from noiseproof.privacy.card import Place
from noiseproof.privacy.events import DpEvent
from noiseproof.releases.release import PredictionRelease, Saved, describe_network


class ScoreRelease(PredictionRelease):
    """Answers to a fixed number of queries: scores a class, noised as `answer` says, then made probabilities.

    `tensors` are what scores are made of, and never leave; `facts` are what else is needed to restore it, as JSON.

    Formal guarantee
    ----------------
    That of `answer`, once for every query, where one record moves a query's scores no further than `answer` says. Making
    probabilities of noised scores uses nothing private.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        answer: Answer,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        *,
        queries: int,
        rng: Randomness,
        asked: int = 0,
        network: Network | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(card, public, settings, queries=queries, rng=rng, asked=asked)
        self.answer = answer
        self._tensors, self._network, self._facts = dict(tensors), network, dict(facts or {})
        self.network = network

    @property
    def labels_only(self) -> bool:
        """Whether the noise chooses a class rather than moving scores."""
        return isinstance(self.answer, ExponentialAnswer | VoteAnswer)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What one answer does to the private records."""
        return self.answer.events

    def _answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        noised = self.answer.noised(self._scores(features), rng)
        if self.labels_only:
            return noised.float()
        return self._probabilities(noised).float()

    @abstractmethod
    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        """Secret scores, (queries, classes) in float64."""

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        """Probabilities from noised scores."""
        return torch.softmax(noised, dim=1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the scores are made of, the records or the weights: the bundle stays on the trusted side."""
        return {name: value.detach().cpu() for name, value in self._tensors.items()}

    def description(self) -> dict[str, Any]:
        """The queries that are gone, the answers' noise and the network's recipe."""
        network = {} if self._network is None else {"network": describe_network(self._network)}
        return {**super().description(), "answer": self.answer.to_json(), **self._facts, **network}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same answers, with as many queries left as when it was saved."""
        known = ("queries", "asked", "answer", "network")
        return cls(
            saved.tensors,
            from_json(saved.description["answer"]),
            saved.card,
            saved.public,
            saved.settings,
            network=saved.network if "network" in saved.description else None,
            facts={name: value for name, value in saved.description.items() if name not in known},
            **cls._spent(saved),
        )


@dataclass(frozen=True)
class ScoreMethod(Method):
    """A method whose answers are scores of all classes that one record moves by a known amount at most, with noise."""

    place: ClassVar[Place] = "predictions"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, over all queries"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    assumptions: ClassVar[tuple[str, ...]]
    """What its proof takes for granted, besides what the randomness does."""
    release: ClassVar[type[ScoreRelease]]

    answer: AnswerKind = "label"
    """`label`: one class, as a vector with a single 1. `probabilities`: all classes, with noise on each. A numeric target is
    answered by a number either way."""

    def _release(
        self,
        tensors: Mapping[str, torch.Tensor],
        answer: Answer,
        dataset: Dataset,
        budget: Budget,
        rng: Randomness,
        ran: Mapping[str, Any],
        **more: Any,
    ) -> Any:
        """The release of answers noised so; its card claims the budget, and proves what the answers cost."""
        proven = answer.proof(budget, (*self.assumptions, *rng.assumptions))
        kind = self.answer if dataset.public.task == "classification" else "number"
        noise = {"queries": budget.queries, "answer": kind, "noise": answer.law}
        card = self.card(dataset, budget, rng, claimed=claim_of(budget), proven=proven, ran={**noise, **ran})
        return self.release(
            tensors, answer, card, dataset.public, self.settings(), queries=budget.queries, rng=rng, **more
        )

    def _answers_game(
        self, what: str, releases: tuple[ScoreRelease, ...], query: torch.Tensor, budget: Budget, canaries: int
    ) -> Game:
        """The budget's answers to `query`, scored by their likelihood ratio (or what rises with it) in both worlds.

        Of more than a thousand answers a thousand are played, and what is proven of so many is what they are held to.
        """
        answer, queries = releases[0].answer, min(budget.queries, MOST_ANSWERS)
        scores = torch.cat([release._scores(query) for release in releases])

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng, gains = seeded_by(generator), torch.zeros(trials, dtype=torch.float64)
            for _ in range(queries):
                seen = answer.noised(scores[world].expand(trials, -1).clone(), rng)
                if isinstance(answer, LaplaceAnswer):
                    gains += (seen - scores[0]).abs().sum(1) - (seen - scores[1]).abs().sum(1)
                else:
                    gains += seen @ (scores[1] - scores[0])
            return gains

        proven = answer.proof(replace(budget, queries=queries))
        gaussian = isinstance(answer, GaussianAnswer)
        return proven_game(f"{self.name}: {what}", play, budget, proven, gaussian=gaussian, canaries=canaries)

    def _record_game(self, what: str, features: torch.Tensor, budget: Budget, canaries: int) -> Game:
        """The game of a record of class 1 equal to the first of `features`, whose classes are 0, 1, ...: what is asked.

        World 0 is without that record; under replace-one it has it as class 0.
        """
        public = Public(shape=tuple(features.shape[1:]), classes=("0", "1"))
        labels = torch.arange(len(features))
        there = torch.cat([features, features[:1]])
        with_it, other = (Dataset("game", there, torch.cat([labels, torch.tensor([k])]), public) for k in (1, 0))
        with_it, other = (crowded(each, len(features), canaries) for each in (with_it, other))
        without = Dataset("game", features, labels, public) if budget.neighbours == "add-or-remove" else other
        fitted = tuple(self.fit(None, each, budget, rng=Reproducible(0)) for each in (without, with_it))
        return self._answers_game(what, fitted, features[:1], budget, canaries)  # type: ignore[arg-type]

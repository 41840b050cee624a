"""ScoreMethod: what the proven siblings have in common: secret scores, answers with noise on them, a card with a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from noiseproof.guarantees.card import Claim, Place
from noiseproof.methods import Method
from noiseproof.predictions.answers import Answer, Kind, check_kind, prove

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Card, Randomness


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

"""teachers: networks trained on disjoint shards, whose answers are averaged or vote, with noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Claim, Place
from noiseproof.methods import Method, register
from noiseproof.networks import StackedNetwork, Training, fit_stack
from noiseproof.predictions.answers import (
    Answer,
    Kind,
    Moves,
    VoteAnswer,
    calibrate,
    check_kind,
    from_json,
    least_noise,
    onto_simplex,
    prove,
)
from noiseproof.predictions.games import teachers_game
from noiseproof.predictions.score_release import ScoreRelease
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import describe_network, restore_network

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Budget, Card, Game, Randomness
    from noiseproof.networks import Network

_ASSUMPTIONS = (
    "a teacher's answer depends on its own shard alone, also in its last bits, though all are trained as one batch",
    "the number of teachers and their l2 are settings: where they are derived from the number of records, that is public",
)
_RECORDS_A_CLASS = 20
"""A shard with fewer records of each class than this, on average, is taken to teach little."""


@register
@dataclass(frozen=True)
class Teachers(Method):
    """Networks trained on disjoint shards vote on a label, or their probabilities are averaged with noise.

    Needs no convexity and takes any network. All teachers are trained at once, as one stacked network. At a large
    epsilon one teacher is enough: its label is then answered by randomised response.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for all of the budget's queries together, which may be chosen adaptively; pure epsilon for a
    single one. Unit: record. Neighbours: add-or-remove or replace-one, with the same noise for both: every record is put
    into a shard by a draw of its own, so that data sets that differ in one record differ in one shard, whether the
    record was added, removed or replaced, and one teacher alone may answer differently. Whatever the networks are, that
    changes one vote of k, or the average of k probability vectors by 2 / k in L1 and sqrt(2) / k in L2 norm.
    (Papernot et al. 2017 and 2018; `answers` for the noise.)
    """

    name: ClassVar[str] = "teachers"
    place: ClassVar[Place] = "predictions"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, over all queries"

    answer: Kind = "label"
    teachers: int | None = None
    """How many; None derives it from the budget, the classes and the number of records."""
    epochs: int = 100
    batch: int = 100
    learning_rate: float = 1e-3
    l2: float | None = None
    """Keras's factor; None takes 7 / (records of a shard), on average, at most 0.01."""

    def __post_init__(self) -> None:
        check_kind(self.answer)
        if self.teachers is not None and self.teachers < 1:
            raise SettingError(f"there must be at least one teacher, not {self.teachers}.")
        Training(epochs=self.epochs, batch=self.batch, lr=self.learning_rate, l2=self.l2 or 0.0)

    def count(self, budget: Budget, classes: int, records: int) -> int:
        """How many teachers: so many that their agreement outweighs the noise, if shards can still teach.

        Where shards would be too small, one teacher answers by randomised response if that keeps most labels.
        """
        if self.teachers is not None:
            return self.teachers
        one = self.noise(budget, classes, 1)
        epsilon = one.amount if isinstance(one, VoteAnswer) else budget.epsilon / budget.queries
        enough = max(1, math.ceil(6 * math.log(5 * classes) / epsilon))
        if records < enough * classes * _RECORDS_A_CLASS and epsilon >= math.log(classes):
            return 1
        return max(1, min(enough, records // 10))

    def noise(self, budget: Budget, classes: int, teachers: int) -> Answer:
        """The answers' noise."""
        near = budget.neighbours
        if self.answer == "label":
            return calibrate(lambda amount: VoteAnswer(teachers, classes, near, amount), budget)
        # A billionth more than 2 and sqrt(2): probabilities in float64 sum to 1 but for rounding.
        share = (1 + 1e-9) / teachers
        moves = Moves(l1=2 * share, l2=math.sqrt(2) * share, span=2 * share, neighbours=near)
        return least_noise(moves, "probabilities", budget)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> TeachersRelease:
        """Draw every record's shard, and train a network on each."""
        records, count = len(dataset), self.count(budget, dataset.classes, len(dataset))
        answer = self.noise(budget, dataset.classes, count)
        seeds = torch.randint(2**31, (count,), generator=rng.generator).tolist()
        shard = (rng.uniform((records,)) * count).long()
        members = [(shard == index).nonzero().flatten() for index in range(count)]
        taught = [index for index in range(count) if len(members[index])]
        training = Training(
            epochs=self.epochs,
            batch=self.batch,
            lr=self.learning_rate,
            l2=min(7 * count / records, 0.01) if self.l2 is None else self.l2,
        )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # A teacher without a shard stays as it was initialised.
        everyone = StackedNetwork.of(network, seeds)
        trained = fit_stack(
            network,
            dataset.features.to(device),
            dataset.labels.to(device),
            [members[index] for index in taught],
            training,
            seeds=[seeds[index] for index in taught],
            progress=progress,
        ).to("cpu")
        for name, value in everyone.parameters.items():
            value[taught] = trained.parameters[name]
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=Claim(
                epsilon=budget.epsilon,
                delta=budget.delta,
                neighbours=budget.neighbours,
                source="the budget that the noise was calibrated to",
            ),
            proven=prove(answer, budget, (*_ASSUMPTIONS, *rng.assumptions)),
            ran={
                "queries": budget.queries,
                "teachers": count,
                "answer": self.answer,
                "noise": answer.law,
                "standard deviation": answer.spread,
                "epochs": self.epochs,
                "l2": training.l2,
            },
        )
        return TeachersRelease(everyone, answer, card, dataset.public, self.settings(), queries=budget.queries, rng=rng)

    def game(self, budget: Budget) -> Game:
        """One teacher of several changes its mind completely; the others agree with what it says then."""
        return teachers_game(self, budget)


class TeachersRelease(ScoreRelease):
    """Answers of secret networks, averaged or by vote."""

    def __init__(
        self,
        networks: StackedNetwork,
        answer: Answer,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        *,
        queries: int,
        rng: Randomness,
        asked: int = 0,
    ) -> None:
        super().__init__(answer, card, public, settings, queries=queries, rng=rng, asked=asked)
        self._networks = networks

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        # A teacher whose training diverged must still answer within bounds.
        logits = self._networks.logits(features.float(), batch=256).nan_to_num(0.0, 1e4, -1e4)
        if isinstance(self.answer, VoteAnswer):
            return functional.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0).double()
        return torch.softmax(logits.double(), dim=-1).mean(0)

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        return onto_simplex(noised)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The secret weights of all teachers: the bundle stays on the trusted side."""
        return {name: value.detach().cpu() for name, value in self._networks.parameters.items()}

    def description(self) -> dict[str, Any]:
        """The queries that are gone, the noise, and the network's recipe."""
        return {**super().description(), "network": describe_network(self._networks.network)}

    @classmethod
    def restore(
        cls,
        tensors: Mapping[str, torch.Tensor],
        description: Mapping[str, Any],
        *,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        module: nn.Module | None = None,
    ) -> TeachersRelease:
        """The same answers, with as many queries left as when it was saved."""
        network = restore_network(description["network"], module)
        return cls(
            StackedNetwork(network, tensors),
            from_json(description["answer"]),
            card,
            public,
            settings,
            **cls._spent(description),
        )

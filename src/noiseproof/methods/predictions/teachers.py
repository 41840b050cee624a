"""teachers: networks trained on disjoint shards, whose answers are averaged or vote, with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.predictions.answers import Answer, Moves, VoteAnswer, calibrate, least_noise, onto_simplex
from noiseproof.methods.predictions.convexified import Convexified
from noiseproof.methods.predictions.games import teachers_game
from noiseproof.methods.predictions.scores import ScoreMethod, ScoreRelease
from noiseproof.networks import StackedNetwork, Training
from noiseproof.networks.fitting import fit_stacks
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import Saved, describe_network
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Game, Randomness


_RECORDS_A_CLASS = 20
"""A shard with fewer records of each class than this, on average, is taken to teach little."""
_MOST = 200
"""More teachers than this are not worth their memory."""
_FEW = 100
"""With fewer records of each class, a teacher that has all of them is trained on the convexified loss."""

LossName = Literal["auto", "cross-entropy", "convexified"]


@register
@dataclass(frozen=True)
class Teachers(ScoreMethod):
    """Networks trained on disjoint shards vote on a label, or their probabilities are averaged with noise.

    Needs no convexity and takes any network. All teachers are trained at once, as one stacked network. At a large
    epsilon one teacher is enough, which is then the mean of several networks, and its label is answered by randomised
    response.

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
    assumptions: ClassVar[tuple[str, ...]] = (
        "a teacher's answer depends on its own shard alone, also in its last bits, though all are trained as one batch",
        "the number of teachers and their loss are settings: where they are derived from the number of records, that is public",
    )

    teachers: int | None = None
    """How many; None derives it from the budget, the classes and the number of records."""
    epochs: int = 100
    batch_size: int = 100
    lr: float = 1e-3
    l2: float = 1e-3
    """Keras's factor: l2 * ||W||^2 over the kernels is added to the loss."""
    loss: LossName = "auto"
    """`auto`: Lu et al.'s convexified loss for a single teacher with few records of each class, else cross-entropy."""
    members: int | None = None
    """Networks whose mean is a teacher, all on its shard; None takes 5 for a single teacher and 1 for several."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("teachers", "members"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"teachers's setting {name} must be at least 1, not {value}.")
        if self.loss not in get_args(LossName):
            raise SettingError(f"teachers's setting loss is one of {', '.join(get_args(LossName))}, not {self.loss!r}.")
        self._training(1, 2, 1)

    def _training(self, teachers: int, classes: int, records: int) -> Training:
        plain = Training(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, l2=self.l2)
        few = teachers == 1 and records < _FEW * classes
        if self.loss == "convexified" or (self.loss == "auto" and few):
            return replace(plain, loss=Convexified(1.0, "code"))
        return plain

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
        return max(1, min(enough, records // 10, _MOST))

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
        """Draw every record's shard, and train networks on each."""
        records, count = len(dataset), self.count(budget, dataset.classes, len(dataset))
        members = self.members or (5 if count == 1 else 1)
        answer = self.noise(budget, dataset.classes, count)
        seeds = torch.randint(2**31, (count * members,), generator=rng.generator).tolist()
        drawn = (rng.uniform((records,)) * count).long().clamp_(max=count - 1)
        shards = [(drawn == index).nonzero().flatten() for index in range(count)]
        # Teacher j is the networks j * members and those after it. Without a shard they stay as they were initialised.
        taught = [index for index in range(count * members) if len(shards[index // members])]
        device = default_device()
        everyone = StackedNetwork.of(network, seeds)
        trained = fit_stacks(
            network,
            dataset.features.to(device),
            dataset.labels.to(device),
            [shards[index // members] for index in taught],
            self._training(count, dataset.classes, records),
            seeds=[seeds[index] for index in taught],
            progress=progress,
        ).to("cpu")
        for name, value in everyone.parameters.items():
            value[taught] = trained.parameters[name]
        card = self.score_card(
            dataset,
            budget,
            rng,
            answer,
            {
                "teachers": count,
                "networks a teacher": members,
                "standard deviation": answer.spread,
                "epochs": self.epochs,
            },
        )
        return TeachersRelease(
            Ensemble(everyone, count), answer, card, dataset.public, self.settings(), queries=budget.queries, rng=rng
        )

    def game(self, budget: Budget) -> Game:
        """One teacher of several changes its mind completely; the others agree with what it says then."""
        return teachers_game(self, budget)


@dataclass(frozen=True)
class Ensemble:
    """All networks in one stack, as many for each teacher."""

    networks: StackedNetwork
    teachers: int


class TeachersRelease(ScoreRelease[Ensemble]):
    """Answers of secret networks, averaged or by vote."""

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        # A teacher whose training diverged must still answer within bounds.
        logits = self._secret.networks.logits(features.float(), batch_size=256).nan_to_num(0.0, 1e4, -1e4)
        answers = torch.softmax(logits.double(), dim=-1).unflatten(0, (self._secret.teachers, -1)).mean(1)
        if isinstance(self.answer, VoteAnswer):
            return functional.one_hot(answers.argmax(-1), answers.shape[-1]).sum(0).double()
        return answers.mean(0)

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        return onto_simplex(noised)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The secret weights of all teachers: the bundle stays on the trusted side."""
        return {name: value.detach().cpu() for name, value in self._secret.networks.parameters.items()}

    def description(self) -> dict[str, Any]:
        """The queries that are gone, the noise, and the network's recipe."""
        return {
            **super().description(),
            "teachers": self._secret.teachers,
            "network": describe_network(self._secret.networks.network),
        }

    @classmethod
    def _restored(cls, saved: Saved) -> Ensemble:
        return Ensemble(StackedNetwork(saved.network, saved.tensors), saved.description["teachers"])

"""teachers: networks trained on disjoint shards, whose answers are averaged or vote, with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch.nn import functional

from noiseproof.data import Dataset, Public
from noiseproof.methods import register
from noiseproof.methods.common import Count, FixedShards, NonNegative, Positive, crowded, draw_shards, initial_seed
from noiseproof.methods.predictions.answers import Answer, ScoreChange, VoteAnswer, calibrate, least_noise, onto_simplex
from noiseproof.methods.predictions.lu import Convexified
from noiseproof.methods.predictions.scores import ScoreMethod, ScoreRelease
from noiseproof.networks import Network, StackedNetwork, Training
from noiseproof.networks.fitting import fit_stacks
from noiseproof.networks.objectives import Objective
from noiseproof.privacy import Budget, Game, Randomness
from noiseproof.progress import SILENT, Progress
from noiseproof.tensors import default_device

_RECORDS_A_CLASS = 20
"""A shard with fewer records of each class than this, on average, is taken to teach little."""
_MOST = 200
"""More teachers than this are not worth their memory."""
_EXACT = 0.05
"""The noise on a predicted number, as a share of its range, that enough teachers bring it down to."""
_STEPS, _SHORT, _LONG = 1000, 1e-2, 1e-3
"""Trainings of fewer steps get the first of the two learning rates."""
_FEW = 100
"""With fewer records of each class, a teacher that has all of them is trained on the convexified loss."""

LossName = Literal["auto", "cross-entropy", "convexified"]


class TeachersRelease(ScoreRelease):
    """Answers of secret networks, averaged or by vote."""

    @cached_property
    def _networks(self) -> StackedNetwork:
        """All networks in one stack, as many for each teacher."""
        assert self._network is not None
        return StackedNetwork(self._network, self._tensors)

    def training(self) -> Training:
        """The teachers' own, with the loss that was taken for so many records."""
        made = Teachers(**self.settings)
        records = self.card.ran["persons" if self.card.unit == "person" else "records"]
        return made._training(self._facts["teachers"], self.public, records)

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        # A teacher whose training diverged must still answer within bounds.
        logits = self._networks.logits(features.float(), batch_size=256).nan_to_num(0.0, 1e4, -1e4)
        answers = Objective.of(self.public, {}).answers(logits.double())
        answers = answers.unflatten(0, (self._facts["teachers"], -1)).mean(1)
        if isinstance(self.answer, VoteAnswer):
            return functional.one_hot(answers.argmax(-1), answers.shape[-1]).sum(0).double()
        return answers.mean(0)

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        return onto_simplex(noised) if self.public.task == "classification" else noised.clamp(0, 1)


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
    single one. Unit: record, or person, whose records lie in one shard. Neighbours: add-or-remove or replace-one, with
    the same noise for both: every record is put into a shard by a draw of its own, so that data sets that differ in one
    record differ in one shard, whether the record was added, removed or replaced, and one teacher alone may answer
    differently. Whatever the networks are, that changes one vote of k, or the average of k probability vectors by 2 / k
    in L1 and sqrt(2) / k in L2 norm. Of a number the teachers' predictions, each within the target's public bounds, are
    averaged: one teacher moves the mean by 1 / k. (Papernot et al. 2017 and 2018; `answers` for the noise.)

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("teachers", records, epsilon=3, queries=10, teachers=5, epochs=2)
        >>> release.card.verdict
        'proven'
        >>> release.predict(torch.rand(4, 4)).sum(1)  # labels, as vectors with a single 1
        tensor([1., 1., 1., 1.])
    """

    name: ClassVar[str] = "teachers"
    release: ClassVar[type[ScoreRelease]] = TeachersRelease
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    assumptions: ClassVar[tuple[str, ...]] = (
        "a teacher's answer depends on its own shard alone, also in its last bits, though all are trained as one batch",
        "the teachers' number, loss and learning rate are settings: where derived from the number of records, that is public",
    )

    teachers: Count | None = None
    """How many; None derives it from the budget, the classes and the number of records."""
    epochs: Annotated[int, Ge(0)] = 100
    """Passes of each network over its shard, in shuffled batches."""
    batch_size: Count = 100
    """Records of a network's step, or all of its shard where that has fewer."""
    lr: Positive | None = None
    """Adam's learning rate; None takes 0.001, and 0.01 for a training of fewer than 1,000 steps."""
    l2: NonNegative = 1e-3
    """Keras's factor: l2 * ||W||^2 over the kernels is added to the loss."""
    loss: LossName = "auto"
    """`auto`: Lu et al.'s convexified loss for a single teacher with few records of each class, else cross-entropy."""
    members: Count | None = None
    """Networks whose mean is a teacher, all on its shard; None takes 5 for a single teacher and 1 for several."""

    def _training(self, teachers: int, public: Public, records: int) -> Training:
        lr = self.lr
        if lr is None:
            steps = self.epochs * math.ceil(records / teachers / self.batch_size)
            lr = _SHORT if steps < _STEPS else _LONG
        plain = Training(epochs=self.epochs, batch_size=self.batch_size, lr=lr, l2=self.l2)
        if public.task != "classification":
            return replace(plain, loss=Objective.of(public, {}).stacked)
        few = teachers == 1 and records < _FEW * len(public.classes)
        if self.loss == "convexified" or (self.loss == "auto" and few):
            return replace(plain, loss=Convexified(1.0, "code"))
        return plain

    def count(self, budget: Budget, classes: int, records: int, *, numeric: bool = False) -> int:
        """How many teachers: so many that their agreement outweighs the noise, if shards can still teach.

        Where shards would be too small, one teacher answers by randomised response if that keeps most labels.
        """
        if self.teachers is not None:
            return self.teachers
        if numeric:
            wanted = math.ceil(self.noise(budget, 1, 1, numeric=True).spread / _EXACT)
            return max(1, min(wanted, records // _RECORDS_A_CLASS, _MOST))
        one = self.noise(budget, classes, 1)
        epsilon = one.amount if isinstance(one, VoteAnswer) else budget.epsilon / budget.queries
        enough = max(1, math.ceil(6 * math.log(5 * classes) / epsilon))
        if records < enough * classes * _RECORDS_A_CLASS and epsilon >= math.log(classes):
            return 1
        return max(1, min(enough, records // 10, _MOST))

    def noise(self, budget: Budget, classes: int, teachers: int, *, numeric: bool = False) -> Answer:
        """The answers' noise."""
        near = budget.neighbours
        if numeric:
            share = (1 + 1e-9) / teachers
            return least_noise(ScoreChange(l1=share, l2=share, span=share, neighbours=near), "probabilities", budget)
        if self.answer == "label":
            return calibrate(lambda amount: VoteAnswer(near, amount, teachers, classes), budget)
        # A billionth more than 2 and sqrt(2): probabilities in float64 sum to 1 but for rounding.
        share = (1 + 1e-9) / teachers
        change = ScoreChange(l1=2 * share, l2=math.sqrt(2) * share, span=2 * share, neighbours=near)
        return least_noise(change, "probabilities", budget)

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> TeachersRelease:
        """Draw every record's shard, and train networks on each."""
        records, numeric = dataset.persons, dataset.public.task != "classification"
        count = self.count(budget, dataset.classes, records, numeric=numeric)
        members = self.members or (5 if count == 1 else 1)
        answer = self.noise(budget, dataset.classes, count, numeric=numeric)
        seeds = [initial_seed(rng) for _ in range(count * members)]
        shards = draw_shards(rng, dataset, count)
        # Teacher j is the networks j * members and those after it. Without a shard they stay as they were initialised.
        taught = [index for index in range(count * members) if len(shards[index // members])]
        device = default_device()
        everyone = StackedNetwork.of(network, seeds)
        training = self._training(count, dataset.public, records)
        trained = fit_stacks(
            network,
            dataset.features.to(device),
            dataset.labels.to(device),
            [shards[index // members] for index in taught],
            training,
            seeds=[seeds[index] for index in taught],
            progress=progress,
        ).to("cpu")
        for name, value in everyone.parameters.items():
            value[taught] = trained.parameters[name]
        ran = {
            "teachers": count,
            "networks a teacher": members,
            "standard deviation": answer.spread,
            "epochs": self.epochs,
            "lr": training.lr,
        }
        facts, weights = {"teachers": count}, everyone.parameters
        return self._release(weights, answer, dataset, budget, rng, ran, network=network, facts=facts)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """Teachers of two classes, half of them of each; a record that nobody could learn from turns one round.

        The whole training runs, in both worlds: networks that learned from other shards than their own would change too.
        """
        count = self.count(budget, 2, 1000) // 2 * 2 + 1
        method = replace(self, teachers=count, epochs=30, batch_size=2, lr=0.1, l2=0.0)
        network, query = Network("linear", (1,), 2), torch.ones(1, 1)
        # The record comes first, where what fills up short batches may be taken from, and joins the last teacher's three.
        shards = torch.cat([torch.tensor([count - 1]), torch.arange(3 * count) % count])
        # A choice shows most where votes are even, a mean where all agree.
        labels = 1 - shards % 2 if self.answer == "label" else torch.ones_like(shards)
        there = Dataset("game", torch.ones(len(shards), 1), labels, Public((1,), ("0", "1")))

        def trained(first: float, present: torch.Tensor) -> TeachersRelease:
            there.features[0] = first
            records = crowded(there.take(present), 0, canaries if len(present) == len(shards) else 1)
            return method.fit(network, records, budget, rng=FixedShards(shards[present], count))

        everyone = torch.arange(len(shards))
        others = everyone[1:] if budget.neighbours == "add-or-remove" else everyone
        # No weights are left that could be learned from an infinite number: without them a teacher says 0, and said 1.
        releases = (trained(1.0, others), trained(math.inf, everyone))
        return self._answers_game(f"one of {count} teachers is turned round", releases, query, budget, canaries)

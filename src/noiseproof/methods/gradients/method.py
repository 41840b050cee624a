"""What all methods at the gradients share: their common settings and one fit."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Unpack

from annotated_types import Ge
from torch import nn

from noiseproof.engine.batch_gradients import BatchGradients, Sampling
from noiseproof.engine.ranks import ALONE, Ranks
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.methods.common import BelowOne, Count, Positive, Share, Supervised, initial_seed
from noiseproof.methods.gradients.descent import (
    AfterStep,
    Augmentations,
    LrSchedule,
    OptimizerName,
    average_weights,
    descend,
    make_optimizer,
    schedule_lr,
    take_average,
)
from noiseproof.methods.gradients.preconditioner import Preconditioner
from noiseproof.privacy.card import Place
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.data import Dataset, Public
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card, Randomness
    from noiseproof.run.checkpoints import Checkpoints


_NUMERIC_LR = 0.5
"""For a numeric target: the best of five on Friedman's function and on the ages of Adult, where no result is reported."""

_NUMERIC_STEPS = 60
"""For a numeric target, at least so many steps: on 330 records of Friedman's function R2 at epsilon 3 is 0.67, not 0.53."""

_ENOUGH = 8
"""Records for each feature from which on that holds: with 3, on 330 of Adult, the noise of more steps is worse than 30."""


@dataclass(frozen=True)
class Sampled:
    """What a training samples from, of which only `count` is public."""

    dataset: Dataset
    count: int
    """How many records, or persons, are sampled from."""
    batching: Mapping[str, Any] = field(default_factory=dict)
    """What `BatchGradients.batches` is told of persons."""
    group_size: int = 1
    """How many of the records may be one person's, where records are sampled."""


@dataclass(frozen=True)
class GradientMethod(Supervised):
    """Descent on noised gradients. A method says what it does to a batch's gradients, and what its card may claim."""

    place: ClassVar[Place] = "gradients"

    epochs: Positive = 30.0
    """Expected passes over the data; the number of steps is epochs * records / batch."""
    batch_size: Count = 512
    """Expected size of a Poisson batch; the sampling rate is batch / records, at most 1."""
    lr: Positive = 4.0
    """Learning rate at the first step. The default is for gradients clipped to 0.1; with a larger norm take a smaller one."""
    optimizer: OptimizerName = "sgd"
    """The optimizer of `torch.optim`, with torch's defaults but for `lr` and `momentum`."""
    momentum: BelowOne = 0.9
    """Of `sgd`."""
    lr_schedule: LrSchedule = "constant"
    """Whether the learning rate stays as it is, or falls to 0 over the steps: `linear` or `cosine`."""
    averaging: Share = 0.0
    """The share of the steps, at the end, whose weights are averaged (free: post-processing); 0 keeps the last."""
    augmentations: Count = 1
    """Random changes of a record's picture whose losses are averaged: augmentation multiplicity."""
    shift: Annotated[int, Ge(0)] = 0
    """The most pixels that an augmentation moves a picture by."""
    flip: bool = False
    """Whether an augmentation flips a picture by a coin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._augmentations()
        if self.optimizer != "sgd" and self.momentum != type(self).momentum:
            raise SettingError(f"{self.name}'s setting momentum is for the optimizer sgd, not for {self.optimizer}.")

    def for_records(self, records: int, public: Public) -> Self:
        """Fewer epochs for more records, and larger batches where there is a proof.

        The noise of a step does not grow with its batch, so that a large one is worth its sampling rate.
        """
        suited = super().for_records(records, public)
        if public.task != "classification" and suited.lr == type(self).lr:
            # The squared error's curvature is some four times that of cross-entropy, and its mean is what is wanted.
            suited = replace(suited, lr=_NUMERIC_LR, averaging=0.5)
            if records >= _ENOUGH * math.prod(public.shape):
                suited = replace(suited, epochs=max(suited.epochs, _NUMERIC_STEPS * suited.rate(records)))
        if not self.proves:
            return suited
        return replace(suited, batch_size=int(min(4096, max(512, 2 ** round(math.log2(max(1, records / 24)))))))

    def rate(self, records: int) -> float:
        """The sampling rate for so many records."""
        return min(1.0, self.batch_size / records)

    def steps(self, records: int) -> int:
        """The number of steps for so many records."""
        return max(1, math.ceil(self.epochs / self.rate(records)))

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        after_step: AfterStep | None = None,
        ranks: Ranks = ALONE,
        checkpoints: Checkpoints | None = None,
    ) -> ModelRelease:
        """Train a network on noised gradients; see the class for what is guaranteed.

        Args:
            network: The `Network` to train.
            dataset: The private records.
            budget: What may be spent on them.
            rng: Where samples, noise and initial weights come from.
            progress: Where to report steps.
            after_step: Called after every step with the number of steps taken and the batch's mean loss, a private value.
            ranks: Processes that share the training, each calling this with the same arguments.
            checkpoints: Where to save states, so that the training can be interrupted.

        Returns:
            The trained network, with its card.
        """
        objective = self.objective(dataset.public)
        module = network.build(initial_seed(rng)).to(default_device())
        sampled = self._sampled(dataset, rng)
        if sampled.group_size > 1 and ranks is not ALONE:
            raise UnsupportedError("several ranks sample persons, not records; leave person_sampling at persons.")
        records = ranks.records(sampled.count)
        rate, steps = self.rate(records), self.steps(records)
        sampling: Sampling = {"sample_rate": rate, "rng": rng}
        if sampled.group_size > 1:
            sampling["group_size"] = sampled.group_size
        gradients = self.gradients(module, steps=steps, budget=budget, **sampling)
        gradients.expected_batch = gradients.share * records
        optimizer = make_optimizer(self.optimizer, gradients.parameters, self.lr, self.momentum)
        schedule_lr(optimizer, self.lr_schedule, steps)
        average_weights(optimizer, self.averaging, steps)
        if ranks is not ALONE:
            gradients.join(ranks)
        try:
            preconditioner = self._preconditioner(module, gradients, sampled.dataset, budget, checkpoints is not None)
            before = len(gradients.events)
            descend(
                module,
                gradients,
                optimizer,
                sampled.dataset if preconditioner is None else preconditioner.applied(sampled.dataset),
                steps,
                batching=sampled.batching,
                rng=rng,
                objective=objective,
                micro_batch_size=getattr(self, "micro_batch_size", None),
                progress=progress,
                description=self.name,
                after_step=after_step,
                augmentations=self._augmentations(),
                checkpoints=checkpoints,
            )
        finally:
            gradients.close()
        take_average(optimizer)
        if preconditioner is not None:
            preconditioner.fold(module)
        # A crash loses steps that were charged for, so that fewer were taken than are accounted.
        lost = len(gradients.events) - before - gradients.steps
        ran = {
            "steps": gradients.steps,
            "sample_rate": rate,
            "sampler": "poisson",
            "parameters": gradients.coordinates,
            **({} if ranks is ALONE else {"ranks": ranks.size, f"{dataset.unit}s": records}),
            **({"lost steps": lost} if lost > 0 else {}),
        }
        card = self._card(gradients, dataset, budget, rng, ran)
        release = ModelRelease(module.cpu(), network, card, dataset.public, self.settings())
        return release.logged(gradients.events.runs)

    def _sampled(self, dataset: Dataset, rng: Randomness) -> Sampled:
        """What is sampled from: records, unless a method knows persons."""
        return Sampled(dataset, len(dataset))

    def _preconditioner(
        self, module: nn.Module, gradients: BatchGradients, dataset: Dataset, budget: Budget, interruptible: bool
    ) -> Preconditioner | None:
        """What the features go through before the descent, if anything; its events are in the gradients' log."""
        return None

    def _augmentations(self) -> Augmentations:
        return Augmentations(self.augmentations, self.shift, self.flip)

    @abstractmethod
    def gradients(
        self, module: nn.Module, *, steps: int, budget: Budget, **sampling: Unpack[Sampling]
    ) -> BatchGradients:
        """What this method does to gradients, set up for a training of `steps` steps within `budget`."""

    @abstractmethod
    def _card(
        self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness, ran: dict[str, Any]
    ) -> Card:
        """The card of the steps that were taken, of which `ran` says how many and how."""

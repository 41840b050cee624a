"""What all methods at the gradients share: their common settings, one fit, one kind of game."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from noiseproof.engine.private_gradients import BatchGradients
from noiseproof.engine.ranks import ALONE, Ranks
from noiseproof.methods import Method
from noiseproof.methods.common import BelowOne, Count, Positive, Share
from noiseproof.methods.gradients.descent import (
    Fall,
    OptimizerName,
    Views,
    Watch,
    average,
    descend,
    optimizer,
    schedule,
    take_average,
)
from noiseproof.methods.gradients.preconditioner import Preconditioner
from noiseproof.privacy.card import Place
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card, Randomness
    from noiseproof.run.checkpoints import Checkpoints


@dataclass(frozen=True)
class GradientMethod(Method):
    """Descent on noised gradients. A method says what it does to a batch's gradients, and what its card may claim."""

    place: ClassVar[Place] = "gradients"

    epochs: Positive = 30.0
    """Expected passes over the data; the number of steps is epochs * records / batch."""
    batch_size: Count = 512
    """Expected size of a Poisson batch; the sampling rate is batch / records, at most 1."""
    max_grad_norm: Positive = 0.1
    lr: Positive = 4.0
    optimizer: OptimizerName = "sgd"
    momentum: BelowOne = 0.9
    lr_schedule: Fall = "constant"
    averaging: Share = 0.0
    """The share of the steps, at the end, whose weights are averaged (free: post-processing); 0 keeps the last."""
    views: int = 1
    """Random views of a record's picture whose losses are averaged: augmentation multiplicity."""
    shift: int = 0
    """The most pixels that a view is moved by."""
    mirror: bool = False
    """Whether views are mirrored by a coin."""
    micro_batch_size: Count = 512
    """Records whose gradients are in memory at once; changes nothing but memory."""

    def for_records(self, records: int, public: Public) -> Self:
        """Fewer epochs for more records, and larger batches where there is a proof.

        The noise of a step does not grow with its batch, so that a large one is worth its sampling rate.
        """
        suited = super().for_records(records, public)
        if not self.proves:
            return suited
        return replace(suited, batch_size=int(min(4096, max(512, 2 ** round(math.log2(max(1, records / 24)))))))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._views()

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
        watch: Watch | None = None,
        ranks: Ranks = ALONE,
        checkpoints: Checkpoints | None = None,
    ) -> ModelRelease:
        """Train a network on noised gradients; see the class for what is guaranteed.

        `ranks` share the training, each calling this with the same arguments; `checkpoints` let it be interrupted.
        """
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        module = network.build(seed)
        if torch.cuda.is_available():
            module.cuda()
        records = ranks.records(len(dataset))
        rate, steps = self.rate(records), self.steps(records)
        gradients = self.gradients(module, sample_rate=rate, steps=steps, budget=budget, rng=rng)
        descent = optimizer(self.optimizer, gradients.parameters, self.lr, self.momentum)
        schedule(descent, self.lr_schedule, steps)
        average(descent, self.averaging, steps)
        if ranks is not ALONE:
            gradients.join(ranks)
        try:
            preconditioner = self._preconditioner(module, gradients, dataset, budget, checkpoints)
            descend(
                module,
                gradients,
                descent,
                dataset if preconditioner is None else preconditioner.applied(dataset),
                steps,
                seed=seed,
                micro_batch_size=self._micro_batch(),
                progress=progress,
                description=self.name,
                watch=watch,
                views=self._views(),
                checkpoints=checkpoints,
            )
        finally:
            gradients.close()
        take_average(descent)
        if preconditioner is not None:
            preconditioner.fold(module)
        return ModelRelease(
            module.cpu(), network, self._card(gradients, dataset, budget, rng), dataset.public, self.settings()
        )

    def _preconditioner(
        self,
        module: nn.Module,
        gradients: BatchGradients,
        dataset: Dataset,
        budget: Budget,
        checkpoints: Checkpoints | None,
    ) -> Preconditioner | None:
        """What the features go through before the descent, if anything; its events are in the gradients' log."""
        return None

    def _views(self) -> Views:
        return Views(self.views, self.shift, self.mirror)

    def _before(self) -> int:
        """Releases before the first step."""
        return 0

    def _micro_batch(self) -> int | None:
        return self.micro_batch_size

    def _ran(self, gradients: BatchGradients) -> dict[str, Any]:
        return {
            "steps": gradients.steps,
            "sample_rate": gradients.sample_rate,
            "sampler": "poisson",
            "parameters": sum(parameter.numel() for parameter in gradients.parameters),
            **(_together(gradients) if gradients.ranks is not ALONE else {}),
            # A crash loses steps that were charged for, so that fewer were taken than are accounted.
            **({"lost steps": lost} if (lost := len(gradients.events) - self._before() - gradients.steps) > 0 else {}),
        }

    @abstractmethod
    def gradients(
        self, module: nn.Module, *, sample_rate: float, steps: int, budget: Budget, rng: Randomness
    ) -> BatchGradients:
        """What this method does to gradients, set up for a training of `steps` steps within `budget`."""

    @abstractmethod
    def _card(self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness) -> Card:
        """The card of the steps that were taken."""


def _together(gradients: BatchGradients) -> dict[str, Any]:
    """The ranks of a shared training, and the records of all of them."""
    return {"ranks": gradients.ranks.size, "records": round(gradients.expected_batch / gradients.sample_rate)}

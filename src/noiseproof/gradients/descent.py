"""Descent: the training loop that all methods at the gradients share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.training_state import TrainingState
from noiseproof.gradients.views import Views
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.scale.checkpoints import Checkpoints

Watch = Callable[[int, float], None]
"""Called after every step with the number of steps taken and the batch's mean loss (a private value: keep it inside)."""

_ONE = Views()


def descend(
    module: nn.Module,
    gradients: BatchGradients,
    optimiser: torch.optim.Optimizer,
    dataset: Dataset,
    steps: int,
    *,
    seed: int,
    micro_batch: int | None = None,
    progress: Progress = SILENT,
    description: str = "training",
    watch: Watch | None = None,
    views: Views = _ONE,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Take `steps` steps of cross-entropy descent with these gradients. `seed` is for dropout and `views`.

    With `checkpoints` a training that was begun there goes on; steps that a crash lost have been charged for and are
    not taken again.
    """
    device = next(module.parameters()).device
    views.check(dataset.public.shape)

    def loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(features), labels, reduction="none")

    module.train()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        progress.task(description, steps) as task,
        checkpoints.watching(gradients.ranks.rank) if checkpoints is not None else nullcontext(),
    ):
        torch.manual_seed(seed + gradients.ranks.rank)
        charged = 0
        if checkpoints is not None:
            checkpoints.begin(TrainingState(module, optimiser, gradients))
            charged = min(len(gradients.events), steps)
            task.advance(charged)
        total, records = 0.0, 0
        batches = gradients.batches(
            dataset.features.to(device), dataset.labels.to(device), steps=steps - charged, micro_batch=micro_batch
        )
        for features, labels in batches:
            losses = None
            if len(labels):
                losses = views.losses(loss, features, labels)
                total, records = total + float(losses.detach().sum()), records + len(labels)
            if gradients.backward(losses):
                optimiser.step()
                mean = total / records if records else float("nan")
                task.advance(loss=mean)
                if watch is not None:
                    watch(gradients.steps, mean)
                total, records = 0.0, 0
                if checkpoints is not None:
                    checkpoints.after_step()
        if checkpoints is not None:
            checkpoints.save()
        gradients.ranks.agree("what was spent", gradients.events.runs)
    module.eval()

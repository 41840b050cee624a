"""Metrics of a training: convergence, and curves of loss and accuracy. TPVD is `noiseproof.networks.tpvd`.

All of them are computed from private records or from weights trained on them without noise: none is a release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.releases.release import logits

if TYPE_CHECKING:
    from noiseproof.data.dataset import Dataset


def convergence(module: nn.Module, dataset: Dataset) -> float:
    """The mean cross-entropy over `dataset` in evaluation mode: the paper's "convergence" if it is the training set."""
    return float(functional.cross_entropy(logits(module, dataset.features).double(), dataset.labels))


def accuracy(module: nn.Module, dataset: Dataset) -> float:
    """Share of `dataset` that the network labels right."""
    return float((logits(module, dataset.features).argmax(dim=1) == dataset.labels).double().mean())


@dataclass
class Curves:
    """Loss on `train` and accuracy on `test` as training goes on: call it after every step, it looks at some."""

    module: nn.Module = field(repr=False)
    train: Dataset
    test: Dataset
    every: int
    """Steps between two looks; the start (step 0) is looked at too."""
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SettingError(f"curves need a look every 1 step or more, not every {self.every}.")
        self.look(0)

    def __call__(self, step: int, loss: float) -> None:
        """Note the state after `step`, if it is one to look at (`loss`, the batch's own, is too rough to plot)."""
        if step % self.every == 0:
            self.look(step)

    def look(self, step: int) -> None:
        """Note the state after `step`; a step that was looked at is not looked at again."""
        if self.steps and self.steps[-1] == step:
            return
        self.steps.append(step)
        self.losses.append(convergence(self.module, self.train))
        self.accuracies.append(accuracy(self.module, self.test))

"""Metrics of a training: TPVD (how far noise moved the weights), convergence, and curves of loss and accuracy.

All of them are computed from private records or from weights trained on them without noise: none is a release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.releases.release import logits

if TYPE_CHECKING:
    from noiseproof.data.dataset import Dataset


Weights: TypeAlias = nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]


def tpvd(reference: Weights, noisy: Weights) -> float:
    """Total Parameters Value Difference: the mean over weight tensors of ||W - W'||_F / ||W||_F (Lin et al. 2020).

    `reference` was trained without noise, `noisy` with it, from the same initial weights. Of modules and of named
    tensors, those with two dimensions or more count (the paper's "matrices of weights": no biases); of bare tensors
    all do. A tensor that is zero in the reference has no relative difference and is left out.

    It measures how far the noise moved the weights. That is no privacy: a large TPVD promises nothing.
    """
    first, second = _tensors(reference), _tensors(noisy)
    if [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        raise SettingError(
            "TPVD compares the weights of two networks of one architecture; these differ in their shapes."
        )
    differences = [
        (_norm(before - after) / norm)
        for before, after in zip(first, second, strict=True)
        if (norm := _norm(before)) > 0
    ]
    if not differences:
        raise SettingError("TPVD needs a reference with at least one weight tensor that is not zero.")
    return float(torch.stack(differences).mean())


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


def _tensors(weights: Weights) -> list[torch.Tensor]:
    if isinstance(weights, nn.Module):
        weights = {name: parameter.detach() for name, parameter in weights.named_parameters()}
    if isinstance(weights, Mapping):
        # By name, so that two state dicts compare whatever their order.
        return [weights[name].detach().double() for name in sorted(weights) if weights[name].dim() >= 2]
    return [tensor.detach().double() for tensor in weights]


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().sum().sqrt()

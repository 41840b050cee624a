"""The paper's judge: a perceptron of three layers whose nodes, but for the inputs, are sigmoids."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from noiseproof.tensors import seeded

if TYPE_CHECKING:
    from noiseproof.data import Dataset

_HIDDEN, _EPOCHS, _BATCH, _LR = 128, 20, 128, 5e-3


def sigmoid_accuracy(taught_by: Dataset, asked: Dataset, *, seed: int = 0) -> float:
    """Share of the asked records that get their own label from the perceptron that the others taught.

    The paper states its layers and activation; the number of hidden nodes, the epochs and the rate are ours.

    Args:
        taught_by: Records that teach.
        asked: Records that are labelled.
        seed: Of initial weights and shuffles.
    """
    network = _taught(taught_by, seed)
    with torch.no_grad():
        return float((network(asked.features.flatten(1)).argmax(1) == asked.labels).double().mean())


@lru_cache(maxsize=4)
def _taught(taught_by: Dataset, seed: int) -> nn.Module:
    """The perceptron, which judges many cells."""
    features, labels = taught_by.features.flatten(1), taught_by.labels
    with seeded(seed):
        network = nn.Sequential(
            nn.Linear(features.shape[1], _HIDDEN), nn.Sigmoid(), nn.Linear(_HIDDEN, taught_by.classes)
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=_LR)
        wanted = functional.one_hot(labels, taught_by.classes).float()
        for _ in range(_EPOCHS):
            for index in torch.randperm(len(labels)).split(_BATCH):
                # The output's sigmoid is part of this loss.
                loss = functional.binary_cross_entropy_with_logits(network(features[index]), wanted[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
    return network

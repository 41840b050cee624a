"""Optimisers by name: any of torch's works on noised gradients, since what it does is post-processing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

OptimiserName = Literal["sgd", "adam", "adagrad", "adadelta"]


def optimiser(
    name: OptimiserName, parameters: Iterable[nn.Parameter], learning_rate: float, momentum: float = 0.0
) -> torch.optim.Optimizer:
    """The torch optimiser of that name; `momentum` is SGD's alone."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate)
    if name == "adagrad":
        return torch.optim.Adagrad(parameters, lr=learning_rate)
    return torch.optim.Adadelta(parameters, lr=learning_rate)

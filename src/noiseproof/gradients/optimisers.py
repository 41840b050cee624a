"""Optimisers by name: any of torch's works on noised gradients, since what it does is post-processing.

So are learning rates that fall and weights that are averaged: both depend on the noised gradients and on public numbers
alone, and cost no privacy. What they remember lies in the optimiser's own state, so that its `state_dict` is all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

OptimiserName = Literal["sgd", "adam", "adagrad", "adadelta"]
Fall = Literal["constant", "linear", "cosine"]
"""How a learning rate falls from its start towards 0 at the last step, if it does."""


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


def schedule(optimiser: torch.optim.Optimizer, fall: Fall, steps: int) -> None:
    """Let the learning rate fall over `steps` steps: the share of it that is left depends on the step alone."""
    if fall == "constant":
        return
    for group in optimiser.param_groups:
        group["start"], group["taken"] = group["lr"], 0

    def before(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimiser.param_groups:
            done = group["taken"] / steps
            left = 1 - done if fall == "linear" else (1 + math.cos(math.pi * done)) / 2
            group["lr"] = group["start"] * left
            group["taken"] += 1

    optimiser.register_step_pre_hook(before)


def average(optimiser: torch.optim.Optimizer, share: float, steps: int) -> None:
    """Keep the mean of the weights after each of the last `share` of `steps` steps, for `take_average`."""
    if share == 0:
        return
    first = steps - max(1, math.ceil(share * steps))
    for group in optimiser.param_groups:
        group["seen"] = 0

    def after(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimiser.param_groups:
            group["seen"] += 1
            if (count := group["seen"] - first) < 1:
                continue
            for parameter in group["params"]:
                state = optimiser.state[parameter]
                if "average" not in state:
                    state["average"] = torch.zeros_like(parameter)
                state["average"].lerp_(parameter.detach(), 1 / count)

    optimiser.register_step_post_hook(after)


def take_average(optimiser: torch.optim.Optimizer) -> None:
    """Put the averaged weights, where there are any, in the place of the last ones."""
    with torch.no_grad():
        for parameter, state in optimiser.state.items():
            if "average" in state:
                parameter.copy_(state["average"])

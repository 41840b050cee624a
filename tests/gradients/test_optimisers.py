"""Falling learning rates and averaged weights are what they say, whatever the optimiser, and survive its state_dict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from noiseproof.gradients.optimisers import average, optimiser, schedule, take_average

STEPS = 10


def weights(name="sgd", fall="constant", share=0.0, interrupted_at=None):
    """The weight after each of ten steps of gradient 1, and what is there at the end."""
    parameter = nn.Parameter(torch.zeros(1))

    def start():
        descent = optimiser(name, [parameter], 0.5)
        schedule(descent, fall, STEPS)
        average(descent, share, STEPS)
        return descent

    descent, seen = start(), []
    for step in range(STEPS):
        if step == interrupted_at:
            kept = descent.state_dict()
            descent = start()
            descent.load_state_dict(kept)
        parameter.grad = torch.ones(1)
        descent.step()
        seen.append(parameter.item())
    take_average(descent)
    return seen, parameter.item()


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad", "adadelta"])
@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_the_average_is_the_mean_of_the_last_steps(name, share, count):
    seen, end = weights(name, share=share)
    assert end == pytest.approx(sum(seen[-count:]) / count, rel=1e-5)


def test_without_averaging_the_last_weights_stay():
    seen, end = weights()
    assert end == seen[-1]


@pytest.mark.parametrize(
    ("fall", "left"),
    [
        ("constant", lambda done: 1.0),
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
    ],
)
def test_the_learning_rate_falls_as_its_schedule_says(fall, left):
    seen, _ = weights(fall=fall)
    moves = [before - after for before, after in zip([0.0, *seen], seen, strict=False)]
    assert moves == pytest.approx([0.5 * left(step / STEPS) for step in range(STEPS)], rel=1e-5)


@pytest.mark.parametrize("interrupted_at", [2, 8])
def test_an_optimiser_restored_from_its_state_goes_on_as_if_nothing_had_happened(interrupted_at):
    assert weights("adam", "cosine", 0.5, interrupted_at) == weights("adam", "cosine", 0.5)

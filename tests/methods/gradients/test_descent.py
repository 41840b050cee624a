"""Falling learning rates and averaged weights are what they say, whatever the optimizer, and survive its state_dict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import noiseproof as npf
from noiseproof.data import Dataset, Public
from noiseproof.engine import PerRecordGradients
from noiseproof.errors import SettingError
from noiseproof.methods.gradients.descent import Views, average, optimizer, schedule, take_average

STEPS = 10


def weights(name="sgd", fall="constant", share=0.0, interrupted_at=None):
    """The weight after each of ten steps of gradient 1, and what is there at the end."""
    parameter = nn.Parameter(torch.zeros(1))

    def start():
        descent = optimizer(name, [parameter], 0.5)
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
def test_the_lr_falls_as_its_schedule_says(fall, left):
    seen, _ = weights(fall=fall)
    moves = [before - after for before, after in zip([0.0, *seen], seen, strict=False)]
    assert moves == pytest.approx([0.5 * left(step / STEPS) for step in range(STEPS)], rel=1e-5)


@pytest.mark.parametrize("interrupted_at", [2, 8])
def test_an_optimizer_restored_from_its_state_goes_on_as_if_nothing_had_happened(interrupted_at):
    assert weights("adam", "cosine", 0.5, interrupted_at) == weights("adam", "cosine", 0.5)


# Views are shifted and mirrored pictures of each record alone, and a record's gradient is the mean over its views.


def pictures(records=6, side=5):
    return 0.1 + torch.rand(records, 2, side, side, generator=torch.Generator().manual_seed(0))


def test_a_view_is_the_picture_moved_by_at_most_the_shift():
    torch.manual_seed(0)
    originals = pictures(200)
    padded = functional.pad(originals, [1] * 4)
    moved = torch.stack([padded[:, :, y : y + 5, x : x + 5] for y in range(3) for x in range(3)])
    found = (Views(shift=1).view(originals) == moved).all(dim=(2, 3, 4))
    assert (found.sum(0) == 1).all()
    # Each of the nine is drawn: the chance that 200 draws miss one is below 1e-9.
    assert found.any(1).all()


def test_a_view_is_mirrored_or_not_by_a_coin_for_each_record():
    torch.manual_seed(0)
    originals = pictures(64)
    view = Views(mirror=True).view(originals)
    same = (view == originals).all(dim=(1, 2, 3))
    turned = (view == originals.flip(-1)).all(dim=(1, 2, 3))
    assert (same ^ turned).all()
    assert 0 < int(same.sum()) < 64  # fails once in 2^63


def test_a_records_gradient_is_that_of_its_mean_loss_over_views():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))
    engine = PerRecordGradients(module)
    features, labels = pictures(), torch.tensor([0, 1, 0, 1, 1, 0])

    def loss(x, y):
        return functional.cross_entropy(module(x), y, reduction="none")

    torch.manual_seed(3)
    losses = Views(4, shift=1, mirror=True).losses(loss, features, labels)
    norms = engine.backward(losses).squared_norms()
    torch.manual_seed(3)
    with engine.paused():
        again = Views(4, shift=1, mirror=True).losses(loss, features, labels)
        for record in range(6):
            parts = torch.autograd.grad(again[record], list(module.parameters()), retain_graph=True)
            expected = sum(float(part.square().sum()) for part in parts)
            assert float(norms[record]) == pytest.approx(expected, rel=1e-4)
    engine.close()


def test_a_training_with_views_stays_within_its_budget_and_learns():
    labels = torch.arange(300) % 2
    features = 0.2 * torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    features[labels == 1, :, 2:6, 2:6] += 0.6
    dataset = Dataset("squares", features, labels, Public((1, 8, 8), ("no", "yes"), kind="image"))
    release = npf.train(
        "dp-sgd", dataset, epsilon=4, seed=0, epochs=8, batch_size=60, network="linear", views=3, shift=1, mirror=True
    )
    assert release.card.proven.epsilon <= 4
    assert npf.accuracy(release, dataset) > 0.9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"views": 0}, "1 or more"),
        ({"shift": -1}, "0 or more"),
        ({"views": 3}, "all the same"),
        ({"mirror": True}, "records of shape"),
    ],
)
def test_views_that_make_no_sense_are_refused(settings, says):
    dataset = Dataset("flat", torch.rand(8, 4), torch.arange(8) % 2, Public((4,), ("a", "b")))
    with pytest.raises(SettingError, match=says):
        npf.train("dp-sgd", dataset, seed=0, network="linear", **settings)

"""Decaying learning rates and averaged weights are what they say, whatever the optimizer, and survive its state_dict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import noiseproof as npf
from noiseproof.data import Dataset, Public
from noiseproof.engine import PerRecordGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.errors import SettingError
from noiseproof.methods.gradients import DpSgd
from noiseproof.methods.gradients import method as method_module
from noiseproof.methods.gradients.descent import (
    Augmentations,
    average_weights,
    make_optimizer,
    schedule_lr,
    take_average,
)
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible

STEPS = 10


def weights(name="sgd", decay="constant", share=0.0, interrupted_at=None):
    """The weight after each of ten steps of gradient 1, and what is there at the end."""
    parameter = nn.Parameter(torch.zeros(1))

    def start():
        descent = make_optimizer(name, [parameter], 0.5)
        schedule_lr(descent, decay, STEPS)
        average_weights(descent, share, STEPS)
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
    ("decay", "left"),
    [
        ("constant", lambda done: 1.0),
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
    ],
)
def test_the_lr_decays_as_its_schedule_says(decay, left):
    seen, _ = weights(decay=decay)
    moves = [before - after for before, after in zip([0.0, *seen], seen, strict=False)]
    assert moves == pytest.approx([0.5 * left(step / STEPS) for step in range(STEPS)], rel=1e-5)


@pytest.mark.parametrize("interrupted_at", [2, 8])
def test_an_optimizer_restored_from_its_state_goes_on_as_if_nothing_had_happened(interrupted_at):
    assert weights("adam", "cosine", 0.5, interrupted_at) == weights("adam", "cosine", 0.5)


# Augmentations shift and flip each record's picture alone, and a record's gradient is the mean over them.


def pictures(records=6, side=5):
    return 0.1 + torch.rand(records, 2, side, side, generator=torch.Generator().manual_seed(0))


def words(records, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda count: torch.randint(2**32, (records, count), generator=generator)


def test_an_augmentation_moves_the_picture_by_at_most_the_shift():
    originals = pictures(200)
    padded = functional.pad(originals, [1] * 4)
    moved = torch.stack([padded[:, :, y : y + 5, x : x + 5] for y in range(3) for x in range(3)])
    found = (Augmentations(shift=1).augment(originals, words(200)(3)) == moved).all(dim=(2, 3, 4))
    assert (found.sum(0) == 1).all()
    # Each of the nine is drawn: the chance that 200 draws miss one is below 1e-9.
    assert found.any(1).all()


def test_an_augmentation_flips_the_picture_or_not_by_a_coin_for_each_record():
    originals = pictures(64)
    augmented = Augmentations(flip=True).augment(originals, words(64)(3))
    same = (augmented == originals).all(dim=(1, 2, 3))
    turned = (augmented == originals.flip(-1)).all(dim=(1, 2, 3))
    assert (same ^ turned).all()
    assert 0 < int(same.sum()) < 64  # fails once in 2^63


def test_a_records_gradient_is_that_of_its_mean_loss_over_augmentations():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))
    engine = PerRecordGradients(module)
    features, labels = pictures(), torch.tensor([0, 1, 0, 1, 1, 0])

    def loss(x, y):
        return functional.cross_entropy(module(x), y, reduction="none")

    losses = Augmentations(4, shift=1, flip=True).losses(loss, features, labels, words(6))
    norms = engine.backward(losses).squared_norms()
    with engine.paused():
        again = Augmentations(4, shift=1, flip=True).losses(loss, features, labels, words(6))
        for record in range(6):
            parts = torch.autograd.grad(again[record], list(module.parameters()), retain_graph=True)
            expected = sum(float(part.square().sum()) for part in parts)
            assert float(norms[record]) == pytest.approx(expected, rel=1e-4)
    engine.close()


def test_a_training_with_augmentations_stays_within_its_budget_and_learns():
    labels = torch.arange(300) % 2
    features = 0.2 * torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    features[labels == 1, :, 2:6, 2:6] += 0.6
    dataset = Dataset("squares", features, labels, Public((1, 8, 8), ("no", "yes"), kind="image"))
    settings = {"epochs": 8, "batch_size": 60, "augmentations": 3, "shift": 1, "flip": True}
    release = npf.train("dp-sgd", dataset, epsilon=4, seed=0, network="linear", **settings)
    assert release.card.proven.epsilon <= 4
    assert npf.accuracy(release, dataset) > 0.9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"augmentations": 0}, "greater than 0"),
        ({"shift": -1}, "greater than or equal to 0"),
        ({"augmentations": 3}, "all the same"),
        ({"flip": True}, "records of shape"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum is for the optimizer sgd"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    dataset = Dataset("flat", torch.rand(8, 4), torch.arange(8) % 2, Public((4,), ("a", "b")))
    with pytest.raises(SettingError, match=says):
        npf.train("dp-sgd", dataset, seed=0, network="linear", **settings)


# Dropout masks and augmentations are each record's own: whoever is in a batch, the others' losses stay as they are.


@pytest.fixture
def seen_losses(monkeypatch):
    """What the engine was handed in a training, by step: {record's first feature: loss}."""
    steps = []
    backward = PrivateGradients.backward

    def spy(self, losses):
        steps.append((self.steps, [] if losses is None else losses.detach().tolist()))
        return backward(self, losses)

    monkeypatch.setattr(PrivateGradients, "backward", spy)
    return steps


def train_with_dropout(records, micro_batch_size=512):
    torch.manual_seed(5)
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    features, labels = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(9) % 2
    dataset = Dataset("d", features[:records], labels[:records], Public((1, 8, 8), ("a", "b"), kind="image"))
    method = DpSgd(epochs=1, batch_size=9, shift=1, augmentations=2, micro_batch_size=micro_batch_size)
    network = Network.of(module, (1, 8, 8), 2)
    return method.fit(network, dataset, Budget(1.0, 1e-5), rng=Reproducible(3))


def test_a_records_masks_and_augmentations_do_not_depend_on_who_else_is_there(seen_losses):
    train_with_dropout(9)
    train_with_dropout(8)
    (_, nine), (_, eight) = seen_losses
    assert nine[:8] == pytest.approx(eight, rel=1e-6)


def test_micro_batches_change_no_mask(seen_losses):
    train_with_dropout(9)
    train_with_dropout(9, micro_batch_size=4)
    (_, whole), *parts = seen_losses
    assert [loss for _, part in parts for loss in part] == pytest.approx(whole, rel=1e-6)


def test_nothing_that_a_training_draws_follows_from_the_seed_of_its_initial_weights(seen_losses, monkeypatch):
    monkeypatch.setattr(method_module, "initial_seed", lambda rng: 7)
    for rng in (Reproducible(3), Reproducible(4)):
        dataset = Dataset("d", torch.ones(4, 6), torch.arange(4) % 2, Public((6,), ("a", "b")))
        network = Network.of(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), (6,), 2)
        DpSgd(epochs=1, batch_size=4).fit(network, dataset, Budget(1.0, 1e-5), rng=rng)
    (_, first), (_, second) = seen_losses
    assert first != second

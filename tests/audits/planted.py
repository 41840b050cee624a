"""Whole trainings on a file, one honest and the others with a leak of a kind that was once found in a private method.

Each publishes a sum of records, clipped to norm 1, with Gaussian noise, as the weights of a linear network.
"""

from __future__ import annotations

import torch

from noiseproof.data import load
from noiseproof.networks import Network
from noiseproof.privacy import Card
from noiseproof.privacy.card import Claim, Proof
from noiseproof.releases.release import ModelRelease

EPSILON, DELTA = 1.0, 1e-5
SIGMA = 3.7304
"""The exact Gaussian mechanism's noise for sensitivity 1 (Balle and Wang 2018)."""


def _records(source):
    return load(source.data, schema=source.schema).train


def _clipped(features, norm=1.0):
    flat = features.flatten(1).double()
    return flat * (norm / flat.norm(dim=1, keepdim=True).clamp(min=norm))


def _publish(total, dataset, out, *, generator=None, unit="record", **ran):
    noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
    network = Network("linear", dataset.public.shape, dataset.classes)
    module = network.build(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        first = next(module.parameters())
        first.view(-1)[: len(total)] = (total + SIGMA * noise).float()
    card = Card(
        method="planted",
        place="gradients",
        unit=unit,
        neighbours="add-or-remove",
        randomness="secure",
        claimed=Claim(epsilon=EPSILON, delta=DELTA, unit=unit, source="the test"),
        proven=Proof(epsilon=EPSILON, delta=DELTA, accountant="exact"),
        ran=ran,
    )
    ModelRelease(module, network, card, dataset.public, {}).save(out)


def honest(source, out):
    dataset = _records(source)
    _publish(_clipped(dataset.features).sum(0), dataset, out)


def by_person(source, out):
    """A person's mean record, clipped."""
    dataset = _records(source)
    means = torch.zeros(dataset.persons, dataset.features[0].numel(), dtype=torch.float64)
    means.index_add_(0, dataset.groups, dataset.weights[:, None] * dataset.features.flatten(1).double())
    _publish(_clipped(means).sum(0), dataset, out, unit="person")


def by_record(source, out):
    """Each record is clipped by itself, however many a person has; the card calls that a promise to persons."""
    dataset = _records(source)
    _publish(_clipped(dataset.features).sum(0), dataset, out, unit="person")


def seeded(source, out):
    """Noise that whoever knows the seed can take off."""
    dataset = _records(source)
    _publish(_clipped(dataset.features).sum(0), dataset, out, generator=torch.Generator().manual_seed(0))


def reshuffled(source, out):
    """Which records are trained on depends on how many there are."""
    split = load(source.data, schema=source.schema)
    features = torch.cat([split.train.features, split.test.features])
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(len(features)))
    directions = _clipped(100 * (features[order[: len(features) // 2]] - 0.1))
    _publish(directions.sum(0), split.train, out)


def mixing(source, out):
    """Each record is divided by the batch's largest value before it is clipped."""
    dataset = _records(source)
    _publish(_clipped(dataset.features / dataset.features.max()).sum(0), dataset, out)


def cancelled(source, out):
    """A norm that is computed too small lets a record contribute many times what it may."""
    dataset = _records(source)
    flat = dataset.features.flatten(1).double()
    norms = (flat - flat.mean(1, keepdim=True)).norm(dim=1, keepdim=True)
    _publish((flat / norms.clamp(min=1e-2) * flat.norm(dim=1, keepdim=True).clamp(max=1)).sum(0), dataset, out)


def guessed(source, out):
    """Records are masked by one generator whose seed can be tried out: with one record more everybody's mask is another.

    The audit does not try seeds; it plays against a seed that was found.
    """
    dataset = _records(source)
    kept = torch.rand(dataset.features.shape, generator=torch.Generator().manual_seed(7)) < 0.5
    _publish(_clipped(100 * (dataset.features - 0.1) * kept).sum(0), dataset, out)


def told(source, out):
    """An exact number on the card."""
    dataset = _records(source)
    total = _clipped(dataset.features).sum(0)
    _publish(total, dataset, out, gradient_norm=float(total.norm()))


def padded(source, out):
    """The shards' short batches are filled up with one and the same record."""
    dataset = _records(source)
    rows = _clipped(dataset.features)
    first = rows[rows.sum(1).argmax()]
    _publish(rows.sum(0) + 60 * first, dataset, out)


def failing(source, out):
    """A run that fails where a record is there."""
    dataset = _records(source)
    if bool((dataset.features > 0.99).any()):
        raise ValueError("the patient is 47")
    honest(source, out)

"""Canaries: records put in on purpose, whose presence a mechanism must hide and an audit looks for.

All lie within the public bounds: a record that the mechanism would refuse proves nothing. A pair of worlds around one
is made by `data.neighbours(dataset, relation=..., canary=...)`. They are made of private records, on the trusted side.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data.dataset import Dataset
from noiseproof.data.splits import Canary
from noiseproof.errors import SettingError


def mislabelled(dataset: Dataset, place: int = 0) -> Canary:
    """A record of the data set with the next class's label: only memory can label it so."""
    label = (int(dataset.labels[place]) + 1) % dataset.classes
    return dataset.features[place].clone(), label


def corner(dataset: Dataset) -> Canary:
    """The corner of the public bounds that is furthest from the mean record, in the rarest class."""
    features = (dataset.features.mean(0) < 0.5).to(dataset.features)
    label = int(torch.bincount(dataset.labels, minlength=dataset.classes).argmin())
    return features, label


def crafted(
    module: nn.Module, dataset: Dataset, *, steps: int = 50, generator: torch.Generator | None = None
) -> Canary:
    """A record whose loss gradient at `module` is as large as signed ascent within [0, 1] makes it.

    From a random start in every class; the best of the classes is kept. The module is left as it was.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise SettingError("the module has no parameter that is trained, so no record has a gradient.")
    labels = torch.arange(dataset.classes, device=dataset.labels.device)
    start = torch.rand((dataset.classes, *dataset.public.shape), generator=generator)
    features = best = start.to(dataset.features)
    longest = torch.full((dataset.classes,), -1.0, device=features.device)
    for step in range(steps + 1):
        features = features.detach().requires_grad_()
        norms = torch.stack(
            [_gradient_norm(module, trained, record, label) for record, label in zip(features, labels, strict=True)]
        )
        better = norms.detach() > longest
        longest = torch.where(better, norms.detach(), longest)
        best = torch.where(better.view(-1, *[1] * len(dataset.public.shape)), features.detach(), best)
        (direction,) = torch.autograd.grad(norms.sum(), features)
        # Long steps first, to cross the bounds; short ones last, to settle.
        length = 0.5 * (1 - step / (steps + 1))
        features = (features.detach() + length * direction.sign()).clamp(0, 1)
    chosen = int(longest.argmax())
    return best[chosen], chosen


def many_mislabelled(dataset: Dataset, count: int, generator: torch.Generator) -> Dataset:
    """Canaries for one-run auditing: `count` different records of the data set, each with a wrong label."""
    if not 0 < count <= len(dataset):
        raise SettingError(f"{count} canaries cannot be taken from {len(dataset)} records; take between 1 and that.")
    canaries = dataset.take(torch.randperm(len(dataset), generator=generator)[:count])
    shift = torch.randint(1, dataset.classes, (count,), generator=generator).to(canaries.labels)
    return replace(canaries, name=f"{dataset.name} canaries", labels=(canaries.labels + shift) % dataset.classes)


def insert(dataset: Dataset, canaries: Dataset, included: torch.Tensor) -> Dataset:
    """The data set with the included canaries at its end."""
    if included.shape != canaries.labels.shape or included.dtype != torch.bool:
        raise SettingError("one-run auditing needs one coin, True or False, for each canary.")
    chosen = canaries.take(included)
    return replace(
        dataset,
        features=torch.cat([dataset.features, chosen.features]),
        labels=torch.cat([dataset.labels, chosen.labels]),
    )


def _gradient_norm(
    module: nn.Module, trained: list[nn.Parameter], record: torch.Tensor, label: torch.Tensor
) -> torch.Tensor:
    loss = functional.cross_entropy(module(record[None]), label[None])
    gradients = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)
    parts = [gradient.square().sum() for gradient in gradients if gradient is not None]
    # At a gradient of exactly zero the root has no derivative.
    return (torch.stack(parts).sum() + 1e-12).sqrt()

"""Generators and discriminators, conditional on the label: dense and DCGAN-like pairs, and heads for tables.

Generators see no record, so that they may normalise over their batch; discriminators do, and do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

LATENT = 100
"""Width of the noise that a generator starts from (Ma et al.: 100)."""


class Generator(nn.Module):
    """Records from latent noise and a label: `layers` map (records, latent + classes) to what `finish` makes records of."""

    layers: nn.Module

    def __init__(self, classes: int, latent: int = LATENT) -> None:
        super().__init__()
        self.classes, self.latent = classes, latent

    def forward(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Generated records, coded as the discriminator takes them."""
        return self.finish(self.layers(_with_label(noise, labels, self.classes)))

    def finish(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs as coded records in [0, 1]."""
        return torch.sigmoid(outputs)


class DenseGenerator(Generator):
    """latent-256-256-features, a sigmoid at the end: the paper's 100-256-256-784 for MNIST."""

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int = LATENT, hidden: int = 256) -> None:
        super().__init__(classes, latent)
        self.layers = _dense([latent + classes, hidden, hidden, math.prod(shape)], norm=True)
        self.layers.append(nn.Unflatten(1, shape))


class ConvGenerator(Generator):
    """Three transposed convolutions after a dense layer, normalised over the batch; DCGAN for pictures of any size."""

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int = LATENT, channels: int = 16) -> None:
        super().__init__(classes, latent)
        self.shape = shape
        depth, height, width = shape
        start = (2 * channels, math.ceil(height / 4), math.ceil(width / 4))
        self.layers = nn.Sequential(
            nn.Linear(latent + classes, math.prod(start)),
            nn.BatchNorm1d(math.prod(start)),
            nn.ReLU(),
            nn.Unflatten(1, start),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(),
            nn.ConvTranspose2d(channels // 2, depth, 3, padding=1),
        )

    def finish(self, outputs: torch.Tensor) -> torch.Tensor:
        """The picture, cut to its size where that is no multiple of four."""
        return super().finish(outputs[:, :, : self.shape[1], : self.shape[2]])


class TableGenerator(Generator):
    """One softmax a column over its slots: categories, or bins of a number.

    With `temperature` a column is drawn by Gumbel-softmax, as a discriminator that looks at single records needs it;
    without, its probabilities are given, which is all that a critic of mean products needs.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        classes: int,
        latent: int = LATENT,
        hidden: int = 256,
        temperature: float | None = None,
    ) -> None:
        super().__init__(classes, latent)
        self.sizes = list(sizes)
        self.temperature = temperature
        self.layers = _dense([latent + classes, hidden, hidden, sum(sizes)], norm=True)

    def finish(self, outputs: torch.Tensor) -> torch.Tensor:
        """Each column's slots as probabilities, or as a relaxed draw from them."""
        if self.temperature is not None:
            uniform = torch.rand_like(outputs).clamp_(1e-6, 1 - 1e-6)
            outputs = (outputs - torch.log(-torch.log(uniform))) / self.temperature
        return torch.cat([functional.softmax(part, dim=1) for part in outputs.split(self.sizes, dim=1)], dim=1)


class DenseDiscriminator(nn.Module):
    """features-256-256-1, the label beside the features: one score a record, a sigmoid away from a probability."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 256) -> None:
        super().__init__()
        self.classes = classes
        self.layers = _dense([math.prod(shape) + classes, hidden, hidden, 1])

    def forward(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One score a record: the larger, the more real."""
        flat = records.flatten(1)
        # As loud as the features: a label that is one number among hundreds is ignored, and then by the generator too.
        return self.layers(_with_label(flat, labels, self.classes, math.sqrt(flat.shape[1] / self.classes))).squeeze(1)


class ConvDiscriminator(nn.Module):
    """Three convolutions, the label as planes beside the picture; a table's record is laid out as a square matrix."""

    def __init__(self, shape: tuple[int, ...], classes: int, channels: int = 16) -> None:
        super().__init__()
        self.classes = classes
        self.side = math.ceil(math.sqrt(shape[0])) if len(shape) == 1 else 0
        depth, height, width = (1, self.side, self.side) if self.side else shape
        self.layers = nn.Sequential(
            nn.Conv2d(depth + classes, channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * channels, 1, (max(height // 4, 1), max(width // 4, 1))),
            nn.Flatten(),
        )

    def forward(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One score a record: the larger, the more real."""
        if self.side:
            records = functional.pad(records, (0, self.side**2 - records.shape[1])).view(-1, 1, self.side, self.side)
        planes = functional.one_hot(labels, self.classes).to(records.dtype)[:, :, None, None]
        return self.layers(torch.cat([records, planes.expand(-1, -1, *records.shape[2:])], dim=1)).squeeze(1)


def _with_label(values: torch.Tensor, labels: torch.Tensor, classes: int, scale: float = 1.0) -> torch.Tensor:
    return torch.cat([values, scale * functional.one_hot(labels, classes).to(values.dtype)], dim=1)


def _dense(widths: Sequence[int], *, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers.append(nn.Linear(fan_in, fan_out))
        if norm:
            layers.append(nn.BatchNorm1d(fan_out))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))

"""Critics: discriminators that are linear in public features of norm 1, whose best response is known in closed form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.methods.losses.coding import Coding

MOST_PAIRS = 2_000_000
"""Pairs of slots that a critic has weights for."""


class Features(nn.Module, ABC):
    """A public map from coded records to `width` features, of norm at most 1 for every record."""

    width: int

    @abstractmethod
    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Features, (records, width)."""

    def means(self, records: torch.Tensor, onehot: torch.Tensor) -> torch.Tensor:
        """The mean of label x features, (classes, width): of generated records, so it may be differentiated."""
        return onehot.T @ self(records) / len(records)


class Fourier(Features):
    """Cosines and sines of random directions (Rahimi and Recht 2007): every record has norm exactly 1."""

    directions: torch.Tensor

    def __init__(self, inputs: int, pairs: int = 1000, length: float | None = None, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Pictures of n pixels in [0, 1] are some sqrt(n) / 4 apart.
        scale = length or math.sqrt(inputs) / 4.5
        self.register_buffer("directions", torch.randn(inputs, pairs, generator=generator) / scale)
        self.width = 2 * pairs

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Features of norm 1, whose inner products approach a Gaussian kernel."""
        angles = records.flatten(1) @ self.directions
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(self.width / 2)


class LowFrequencies(Features):
    """The lowest spatial frequencies of pictures with values in [0, 1]: few features, which hold what a digit looks like.

    A cosine transform of what differs from grey; every record has norm at most 1.
    """

    basis: torch.Tensor

    def __init__(self, shape: tuple[int, ...], reach: int = 7) -> None:
        super().__init__()
        channels, *sides = shape
        waves = [cosines(side) for side in sides]
        places = [(i, j) for i in range(sides[0]) for j in range(sides[1]) if i + j < reach]
        pictures = torch.stack([torch.outer(waves[0][i], waves[1][j]) for i, j in places])
        # Orthonormal pictures, and grey is at most half of the root of the pixels away.
        scale = 2 / math.sqrt(math.prod(shape))
        self.register_buffer("basis", scale * torch.block_diag(*[pictures.flatten(1)] * channels).T)
        self.width = channels * len(places)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """The frequencies' parts in each record."""
        return (records.flatten(1) - 0.5) @ self.basis


def cosines(side: int) -> torch.Tensor:
    """Orthonormal cosines, (frequencies, places)."""
    angles = torch.outer(torch.arange(side), torch.arange(side) + 0.5) * (math.pi / side)
    return functional.normalize(angles.cos(), dim=1)


class Marginals(Features):
    """One-way and two-way marginals of a table: which slots a record has, and which pairs of coarse slots.

    `weight` is how much a slot counts over a pair. With every column present a record has norm exactly 1.
    """

    first: torch.Tensor
    second: torch.Tensor
    coarse: torch.Tensor

    def __init__(self, coding: Coding, weight: float = 3.0, *, pairs: bool = True) -> None:
        super().__init__()
        columns = len(coding.sizes)
        slots = sum(coding.coarse_sizes)
        group = torch.repeat_interleave(torch.arange(columns), torch.tensor(coding.coarse_sizes))
        first, second = torch.triu_indices(slots, slots, 1)
        keep = (group[first] != group[second]) & torch.tensor(pairs)
        self.register_buffer("first", first[keep])
        self.register_buffer("second", second[keep])
        self.register_buffer("coarse", functional.one_hot(coding.coarse, slots).float())
        self.width = sum(coding.sizes) + int(keep.sum())
        norm = math.sqrt(columns * weight**2 + (columns * (columns - 1) / 2 if pairs else 0))
        self.single, self.pair = weight / norm, 1 / norm

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Slots, then products of coarse slots of different columns."""
        coarse = records @ self.coarse
        pairs = coarse[:, self.first] * coarse[:, self.second]
        return torch.cat([self.single * records, self.pair * pairs], dim=1)

    def means(self, records: torch.Tensor, onehot: torch.Tensor) -> torch.Tensor:
        """The same means by one product of matrices a class, without writing a record's pairs out."""
        count, coarse = len(records), records @ self.coarse
        singles = onehot.T @ records
        pairs = torch.stack(
            [((coarse * column[:, None]).T @ coarse)[self.first, self.second] for column in onehot.unbind(1)]
        )
        return torch.cat([self.single * singles, self.pair * pairs], dim=1) / count


def features_for(coding: Coding, *, pairs: bool = True, width: int = 1000) -> Features:
    """The features that suit the records: marginals of a table, random Fourier features of anything else."""
    if not coding.table:
        return Fourier(math.prod(coding.shape), width)
    total = sum(coding.coarse_sizes)
    count = (total**2 - sum(size**2 for size in coding.coarse_sizes)) // 2
    if pairs and count > MOST_PAIRS:
        raise SettingError(
            f"the table's columns make {count} pairs of categories and bins, more than a critic can hold; drop columns, or "
            "choose model=dense."
        )
    return Marginals(coding, pairs=pairs)


class LinearCritic(nn.Module):
    """score(x, y) = <w_y, features(x)>: the gradient of a real record's loss is minus its features, in row y.

    Under Wasserstein's loss with a quadratic penalty the best weights are the difference of two means, that of the real
    records' features and that of the generated ones'; only the first is private, and it does not change as the weights do.
    So every noised gradient ever paid for stays of use: they are averaged, weighted by how exact each is.
    """

    def __init__(self, features: Features, classes: int) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.weights = nn.Linear(features.width, classes, bias=False)
        nn.init.zeros_(self.weights.weight)

    def forward(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One score a record: the larger, the more real."""
        with torch.no_grad():
            mapped = self.features(records)
        return self.scores(mapped, labels)

    def scores(self, mapped: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The same of records whose features are known."""
        scores: torch.Tensor = self.weights(mapped).gather(1, labels[:, None]).squeeze(1)
        return scores

    def means(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean label x features of generated records."""
        return self.features.means(records, functional.one_hot(labels, self.classes).to(records.dtype))

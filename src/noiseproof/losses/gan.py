"""Gan: a generator conditional on the label, the labels' shares, and the randomness of what is generated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from noiseproof.data.dataset import Dataset
from noiseproof.losses.coding import Coding
from noiseproof.networks.generators import (
    ConvDiscriminator,
    ConvGenerator,
    DenseDiscriminator,
    DenseGenerator,
    Generator,
    TableGenerator,
)

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public

Model = Literal["auto", "features", "dense", "conv"]

_LEAST_SIDE = 16
_CHUNK = 1000


class Gan:
    """What generates: all of it is public or post-processing of what was paid for."""

    def __init__(self, public: Public, model: Model, *, latent: int, seed: int, relaxed: float | None = None) -> None:
        self.coding = Coding(public)
        self.public = public
        self.classes = len(public.classes)
        self.shares = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        """How often each label is generated."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._seed = seed
        self._random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.generator: Generator = self._build(model, latent, relaxed).to(self.device)

    def _build(self, model: Model, latent: int, relaxed: float | None) -> Generator:
        shape = self.coding.shape
        if self.coding.table:
            return TableGenerator(self.coding.sizes, self.classes, latent, temperature=relaxed)
        if model != "dense" and is_picture(shape):
            return ConvGenerator(shape, self.classes, latent)
        return DenseGenerator(shape, self.classes, latent)

    def discriminator(self, model: Model) -> nn.Module:
        """The network that judges records: convolutions or dense layers."""
        kind = ConvDiscriminator if model == "conv" else DenseDiscriminator
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + 1)
            return kind(self.coding.shape, self.classes).to(self.device)

    def labels(self, count: int) -> torch.Tensor:
        """Labels in their shares, as evenly as whole numbers allow."""
        start = torch.rand((), generator=self._random, dtype=torch.float64)
        places = (torch.arange(count, dtype=torch.float64) + start) / count
        return torch.searchsorted(self.shares.cumsum(0), places).clamp(max=self.classes - 1).to(self.device)

    def generate(self, labels: torch.Tensor) -> torch.Tensor:
        """Coded records of those labels, through which gradients flow."""
        noise = torch.randn(len(labels), self.generator.latent, generator=self._random).to(self.device)
        return self.generator(noise, labels)

    def sample(self, rows: int, name: str) -> Dataset:
        """Synthetic records in the code of the private ones, in random order."""
        self.generator.eval()
        labels = self.labels(rows)[torch.randperm(rows, generator=self._random).to(self.device)]
        with torch.no_grad(), self.seeded():
            parts = [self.coding.decode(self.generate(chunk).cpu(), self._random) for chunk in labels.split(_CHUNK)]
        self.generator.train()
        features = torch.cat(parts) if parts else torch.zeros(0, *self.public.shape)
        return Dataset(f"synthetic {name}", features.float(), labels.cpu(), self.public)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Draws of torch's own generator (Gumbel noise) come from this object's seed while it lasts."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=self._random)))
            yield


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether convolutions pay: pictures of at least 16 x 16."""
    return len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE


def cosine(optimiser: torch.optim.Optimizer, start: float, done: int, total: int) -> None:
    """Set the learning rate of an update that falls to zero along a cosine."""
    rate = start * 0.5 * (1 + math.cos(math.pi * min(1.0, done / total)))
    for group in optimiser.param_groups:
        group["lr"] = rate

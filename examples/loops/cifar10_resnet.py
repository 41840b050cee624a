"""CIFAR-10 by a residual network, as in Opacus' tutorial: batch norms are replaced, memory is bounded.

NOISEPROOF_DATA=folder python examples/loops/cifar10_resnet.py cifar10   (without it: made pictures)
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noiseproof as npf


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Conv2d(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return (self.second(self.first(x)) + self.shortcut(x)).relu()


def pictures(name: str) -> TensorDataset:
    """The private pictures and their labels."""
    if name != "made":
        data = npf.load(name).train
        return TensorDataset(data.features, data.labels)
    labels = torch.randint(10, (400,))
    centres = torch.rand(10, 3, 16, 16)
    return TensorDataset((centres[labels] + 0.2 * torch.randn(400, 3, 16, 16)).clamp(0, 1), labels)


def main(name: str = "made", epochs: int = 2) -> None:
    """Train within epsilon 3, 64 pictures in memory at once."""
    widths = [(3, 16, 1), (16, 32, 2), (32, 64, 2)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*(Residual(*each) for each in widths), *pooled)
    print("\n".join(npf.fix(model)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(pictures(name), batch_size=128, shuffle=True)
    terms = {"epsilon": 3, "delta": 1e-5, "epochs": epochs}
    engine = npf.make_private(model, optimizer, loader, **terms, max_physical_batch_size=64)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()  # takes a step when a whole sample has come
    print(engine.release(preprocessing="public").card.text)


if __name__ == "__main__":
    main(*sys.argv[1:2])

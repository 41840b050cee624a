"""MNIST by a small convolutional network, as in Opacus' tutorial; 8x8 digits where MNIST is not on this machine.

NOISEPROOF_DATA=folder python examples/loops/mnist.py mnist
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noiseproof as npf


class Net(nn.Module):
    """Two convolutions and two dense layers."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * (side // 2) ** 2, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.features(pictures))


def main(name: str = "digits", epochs: int = 3) -> None:
    """Train within epsilon 3."""
    data = npf.load(name)
    side = round(data.train.features[0].numel() ** 0.5)
    pictures = data.train.features.reshape(-1, 1, side, side)
    loader = DataLoader(TensorDataset(pictures, data.train.labels), batch_size=256, shuffle=True)
    model = Net(side)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    engine = npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=epochs, max_grad_norm=0.3)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    model.eval()
    right = model(data.test.features.reshape(-1, 1, side, side)).argmax(1) == data.test.labels
    print(engine.release(preprocessing="public").card.text)
    print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

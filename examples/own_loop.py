"""Your own network, loop and optimizer: three more lines, marked +."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noiseproof as npf  # +


def main() -> None:
    """Train a small network on digits within a budget."""
    data = npf.load("digits")
    train = TensorDataset(data.train.features, data.train.labels)
    loader = DataLoader(train, batch_size=256, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    engine = npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=20, max_grad_norm=0.1)  # +
    for _ in range(20):
        for features, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(features), labels)
            loss.backward()
            optimizer.step()
    print(engine.release(preprocessing="public").card.text)  # +

    model.eval()
    right = model(data.test.features).argmax(1) == data.test.labels
    print(f"accuracy {right.float().mean():.1%} after {engine.steps} steps")


if __name__ == "__main__":
    main()

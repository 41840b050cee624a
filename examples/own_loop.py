"""Your own network, loop and optimizer: private gradients in four more lines."""

from __future__ import annotations

import torch
from torch import nn

import noiseproof as npf
from noiseproof import PrivateGradients
from noiseproof.privacy import calibration

EPSILON, DELTA, RATE, STEPS = 3.0, 1e-5, 0.25, 80


def main() -> None:
    """Train a small network on digits within a budget."""
    torch.manual_seed(0)
    data = npf.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)

    sigma = calibration.sigma(EPSILON, DELTA, RATE, STEPS).sigma
    engine = PrivateGradients(model, max_grad_norm=0.1, noise_multiplier=sigma, sample_rate=RATE)
    for features, labels in engine.batches(data.train.features, data.train.labels, steps=STEPS):
        losses = nn.functional.cross_entropy(model(features), labels, reduction="none")  # one loss a record
        engine.backward(losses)  # clips each record's gradient, sums, adds noise once
        optimizer.step()
    engine.close()

    print(f"epsilon {engine.epsilon(DELTA):.2f} for the {engine.steps} steps that ran")
    with torch.no_grad():
        right = model(data.test.features).argmax(1) == data.test.labels
    print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()

"""How much faster are shadow models that are trained as one stacked network than in a plain loop with a DataLoader?

Both ways train the same networks (features - 128 tanh - classes) on the same records with the same batches, epochs and
optimizer. They take turns within one run, so that whatever else the machine does slows both; the ratio is what counts.
Where Location is absent, random bits of Location's shape stand in for its records.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from noiseproof.data import load
from noiseproof.errors import DataError
from noiseproof.networks import Network, Training, fit_stack


def location() -> tuple[str, torch.Tensor, torch.Tensor]:
    """Location's records, or bits of their shape."""
    try:
        split = load("location")
    except DataError:
        generator = torch.Generator().manual_seed(0)
        bits = torch.rand(5010, 446, generator=generator) < 0.1
        return "random bits", bits.float(), torch.randint(30, (5010,), generator=generator)
    both = (split.train, split.test)
    return "location", torch.cat([part.features for part in both]), torch.cat([part.labels for part in both])


def plain_loop(
    network: Network, features: torch.Tensor, labels: torch.Tensor, members: list[torch.Tensor], training: Training
) -> list[nn.Module]:
    """One network after the other, as in a tutorial."""
    modules = []
    for seed, indices in enumerate(members):
        torch.manual_seed(seed)
        module = network.build(seed)
        kernels = [value for value in module.parameters() if value.ndim > 1]
        biases = [value for value in module.parameters() if value.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": kernels, "weight_decay": 2 * training.l2}, {"params": biases}]
        optimizer = torch.optim.Adam(groups, lr=training.lr)
        loader = DataLoader(TensorDataset(features[indices], labels[indices]), training.batch_size, shuffle=True)
        for _ in range(training.epochs):
            for records, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(records), targets).backward()
                optimizer.step()
        modules.append(module)
    return modules


def rows(shadows: int = 20, records: int = 1200, epochs: int = 100, rounds: int = 5) -> list[dict[str, Any]]:
    """Seconds of both ways for `shadows` networks of `epochs` epochs, and their ratio."""
    source, features, labels = location()
    network = Network("lu-mlp", tuple(features.shape[1:]), 30)
    generator = torch.Generator().manual_seed(0)
    members = [torch.randperm(len(features), generator=generator)[:records] for _ in range(shadows)]
    training = Training(epochs=max(1, epochs // rounds), batch_size=100, lr=1e-3, l2=1e-3)
    fit_stack(network, features, labels, members, Training(epochs=1))
    ours, theirs = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        fit_stack(network, features, labels, members, training)
        between = time.perf_counter()
        plain_loop(network, features, labels, members, training)
        theirs.append(time.perf_counter() - between)
        ours.append(between - began)
    what = f"{shadows} shadows of {features.shape[1]}-128-30, {training.epochs * rounds} epochs ({source}) / plain loop"
    mine, others = sum(ours), sum(theirs)
    return [{"what": what, "ours": mine, "theirs": others, "ratio": mine / others, "unit": "s"}]

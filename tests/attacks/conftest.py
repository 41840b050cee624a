"""A small world in which networks can only memorise: random bits with random labels."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from noiseproof.attacks import AttackSplit, split_for_attack
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import BudgetError
from noiseproof.networks import Network, Training, fit_stack

TRAINING = Training(epochs=40, batch_size=25, lr=0.01)


@dataclass
class Target:
    """A module behind `predict`, as a release is, which can charge for answers."""

    module: nn.Module
    network: Network
    queries_left: int = 10**9
    asked: list[torch.Tensor] = field(default_factory=list)

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        if len(features) > self.queries_left:
            raise BudgetError("too many answers were asked for; nothing was answered and nothing spent.")
        self.queries_left -= len(features)
        self.asked.append(features)
        with torch.no_grad():
            return self.module(features).softmax(1)


def bits(records: int, seed: int, features: int = 30, classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    return Dataset(
        "bits",
        (torch.rand(records, features, generator=generator) < 0.5).float(),
        torch.randint(classes, (records,), generator=generator),
        Public((features,), tuple("abcdefgh"[:classes])),
    )


@pytest.fixture(scope="session")
def split() -> AttackSplit:
    return split_for_attack(bits(800, seed=1), seed=2)


@pytest.fixture(scope="session")
def network(split: AttackSplit) -> Network:
    return Network("mlp", split.members.public.shape, split.members.classes, {"hidden": 32})


@pytest.fixture(scope="session")
def memorised(split: AttackSplit, network: Network) -> nn.Module:
    everyone = torch.arange(len(split.members))
    stack = fit_stack(network, split.members.features, split.members.labels, [everyone], TRAINING, seeds=[99])
    return stack.module(0)


@pytest.fixture
def target(memorised: nn.Module, network: Network) -> Target:
    return Target(memorised, network)


@pytest.fixture
def stranger(network: Network) -> Target:
    """A network that has seen nobody."""
    return Target(network.build(5), network)

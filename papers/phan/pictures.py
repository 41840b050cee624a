"""Figures 1 and 3 of the paper: the relevances of single records, on average, and with noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noiseproof.methods.inputs import average, release_relevance, relevances
from noiseproof.privacy import Reproducible
from noiseproof.releases.release import ModelRelease
from papers.phan.cells import records
from papers.phan.plans import Setting

_EXAMPLES = 5


@dataclass(frozen=True, eq=False)
class Relevances:
    """Pictures: records and their relevances, and averages without and with noise by the epsilon of the whole budget."""

    data: str
    examples: torch.Tensor
    single: torch.Tensor
    plain: torch.Tensor
    private: dict[float, torch.Tensor]


def measure(
    setting: Setting, network: ModelRelease, share: float, epsilons: tuple[float, ...], seed: int
) -> Relevances:
    """The relevances of a trained network on its training records; a quarter of epsilon is epsilon_1, as in the program."""
    train, test = records(setting)
    shape = train.public.shape
    examples = test.features[:_EXAMPLES]
    plain = average(network.module, train.features)
    private = {
        epsilon: release_relevance(plain, len(train), share * epsilon, Reproducible(seed).spawn(number)).values
        for number, epsilon in enumerate(epsilons)
    }
    return Relevances(
        setting.data,
        examples,
        relevances(network.module, examples),
        plain.view(shape),
        {epsilon: value.view(shape) for epsilon, value in private.items()},
    )

"""Stacks: many networks of one shape trained as stacked networks, a few at a time, wherever there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from noiseproof.networks import StackedNetwork, Training, fit_stack
from noiseproof.progress import SILENT, Progress
from noiseproof.scale import tasks
from noiseproof.scale.placement import spread_out

if TYPE_CHECKING:
    from noiseproof.networks import Network

TOGETHER = 4
"""Networks in a stack where stacks are placed on processes or machines: always as many, so that sums do not depend."""


def fit_stacks(
    network: Network,
    features: torch.Tensor,
    labels: torch.Tensor,
    members: Sequence[torch.Tensor],
    training: Training | None = None,
    *,
    seeds: Sequence[int],
    progress: Progress = SILENT,
) -> StackedNetwork:
    """As `fit_stack`; within a `placed` block in stacks of four, on its processes or its cluster.

    Outside one, and within another task, all are trained as one in this process. What comes out of `placed` blocks does
    not depend on the number of processes or machines; from one stack of all it may differ by rounding.

    Formal guarantee
    ----------------
    None: training is without noise. Each network sees its own members' records alone.
    """
    if not spread_out():
        return fit_stack(network, features, labels, members, training, seeds=seeds, progress=progress)
    places = range(0, len(members), TOGETHER)
    work = [(list(members[start : start + TOGETHER]), list(seeds[start : start + TOGETHER])) for start in places]
    common = (network, features.cpu(), labels.cpu(), training or Training())
    parts = tasks.collect(_fit, work, common=common, progress=progress, description="stacks of networks")
    names = parts[0].keys()
    return StackedNetwork(network, {name: torch.cat([part[name] for part in parts]) for name in names})


def _fit(
    network: Network,
    features: torch.Tensor,
    labels: torch.Tensor,
    training: Training,
    task: tuple[list[torch.Tensor], list[int]],
) -> dict[str, torch.Tensor]:
    members, seeds = task
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = fit_stack(network, features.to(device), labels.to(device), members, training, seeds=seeds)
    return {name: value.detach().cpu() for name, value in trained.parameters.items()}

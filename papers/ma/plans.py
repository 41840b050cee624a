"""The plans of the two scales: sizes, iterations, networks and which decay rates are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.study import Scale

DATA = ("adult", "mnist")
EPSILONS = (0.5, 5.0)
TUNINGS = ("time", "step", "exp", "ant")


@dataclass(frozen=True)
class Plan:
    """Sizes of a scale; they decide the results, so that finished runs of another plan are not taken for this one's."""

    scale: Scale
    records: Mapping[str, int]
    test: int
    iterations: int
    looks: int
    """How many points a curve has."""
    decays: Mapping[str, tuple[float, ...]]
    """Figures 9 and 10: the decay rates of each schedule."""
    networks: Mapping[str, str]
    """The paper's pair for each data set: dense or conv."""
    lrs: Mapping[str, float]
    """Of that pair; the paper's 5e-5 learns nothing in so few iterations."""
    dp_gan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of dp-gan for each data set."""
    dp_gan_tuned: Mapping[str, Any] = field(default_factory=dict)
    """Settings of dp-gan where its noise changes: many steps, few updates each."""
    zero_gan: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        records={"adult": 20_000, "mnist": 20_000},
        test=5_000,
        iterations=300,
        looks=5,
        decays={"time": (0.01,), "step": (0.8,), "exp": (0.03,), "ant": (0.95,)},
        networks={"adult": "dense", "mnist": "dense"},
        lrs={"adult": 1e-3, "mnist": 2e-3},
        dp_gan={
            "adult": {"steps": 2, "generator_steps": 250},
            "mnist": {"steps": 1, "generator_steps": 400, "generated": 200, "latent": 10, "lr": 1e-2},
        },
        dp_gan_tuned={"steps": 20, "sample_rate": 0.1, "generator_steps": 10, "every": 4},
        zero_gan={"steps": 200, "generator_steps": 2, "generated": 200},
        notes=(
            "Scale small: 20,000 records, 300 iterations of the dense pair instead of 1,000 of the convolutional one.",
        ),
    ),
    "paper": Plan(
        scale="paper",
        records={"adult": 20_000, "mnist": 60_000},
        test=10_000,
        iterations=1_000,
        looks=20,
        decays={
            "time": (0.01, 0.02, 0.05, 0.1, 0.2),
            "step": (0.3, 0.5, 0.6, 0.7, 0.9),
            "exp": (0.001, 0.003, 0.01, 0.03, 0.1),
            "ant": (0.5, 0.6, 0.7, 0.8, 0.9),
        },
        networks={"adult": "conv", "mnist": "conv"},
        lrs={"adult": 1e-3, "mnist": 1e-3},
        dp_gan={
            "adult": {"generator_steps": 300},
            "mnist": {
                "steps": 2, "generator_steps": 1500, "generated": 400, "latent": 10, "lr": 1e-2, "width": 2000,
            },
        },
        dp_gan_tuned={"steps": 200, "sample_rate": 0.1, "generator_steps": 5, "every": 20},
        zero_gan={"steps": 2000, "generator_steps": 2},
    ),
}  # fmt: skip

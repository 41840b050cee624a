"""The plans of the two scales: sizes, steps, networks and learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from noiseproof.studies.lin.design import Plan
from noiseproof.studies.study import Scale

PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        records=10_000,
        test=2_000,
        steps=200,
        looks=20,
        watched=1_000,
        networks={"cnn": ("small-cnn", {}), "lstm": ("lstm", {"units": 32})},
        learning_rates={
            ("adam", "none"): 5e-3,
            ("sgd", "none"): 0.5,
        },
        notes=("scale small: small-cnn and an LSTM of 32 units stand in for the paper's larger networks.",),
    ),
    "paper": Plan(
        scale="paper",
        records=100_000,
        test=10_000,
        steps=2_000,
        looks=40,
        watched=10_000,
        networks={"cnn": ("lin-cnn", {}), "lstm": ("lin-lstm", {})},
        learning_rates={
            ("adam", "none"): 1e-3,
            ("sgd", "none"): 0.1,
        },
        notes=("The paper states neither steps nor learning rates: these are ours.",),
    ),
}

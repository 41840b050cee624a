"""The plans of the two scales: sizes, steps, networks and learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from noiseproof.studies.lin.design import Plan
from noiseproof.studies.study import Scale

# Without stated rates in the paper, each sequence has the one that did best on MNIST at C = 1.4 over both sigmas, in
# powers of two or so. AC needs larger ones with SGD: its clipping shrinks gradient and noise together, to norm C.
PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        records=10_000,
        test=2_000,
        steps=150,
        looks=15,
        networks={"cnn": ("small-cnn", {}), "lstm": ("lstm", {"units": 32})},
        learning_rates={
            ("cnn", "adam", "none"): 0.01,
            ("cnn", "sgd", "none"): 0.5,
            ("cnn", "sgd", "AC"): 5.0,
            ("cnn", "sgd", "CA"): 2.0,
            ("lstm", "adam", "none"): 0.02,
            ("lstm", "sgd", "none"): 1.0,
            ("lstm", "sgd", "AC"): 20.0,
            ("lstm", "sgd", "CA"): 2.0,
        },
        notes=(
            "Scale small: small-cnn and an LSTM of 32 units stand in for the paper's larger networks, with fewer records "
            "and steps than it must have used.",
        ),
    ),
    "paper": Plan(
        scale="paper",
        records=100_000,
        test=10_000,
        steps=2_000,
        looks=40,
        watched=2_000,
        networks={"cnn": ("lin-cnn", {}), "lstm": ("lin-lstm", {})},
        learning_rates={
            ("cnn", "adam", "none"): 0.001,
            ("cnn", "sgd", "none"): 0.1,
            ("lstm", "adam", "none"): 0.001,
            ("lstm", "sgd", "none"): 0.1,
        },
        notes=("The paper states neither steps nor learning rates: these are ours.",),
    ),
}

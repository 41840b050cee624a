"""The plans of the two scales: sizes, steps, networks and learning rates."""

from __future__ import annotations

from collections.abc import Mapping

from papers.lin.design import Plan
from papers.study import Scale

_OURS = "The paper states neither steps nor learning rates: these are ours, with SGD one rate for each sequence."

# The paper states no learning rates. With Adam, which does not mind the gradient's scale, all sequences of a model share
# one; with SGD each has the one that did best in a pilot on MNIST at C = 1.4, over both sigmas. AC's is the largest: it
# shrinks the gradient by 1 / (sigma sqrt(parameters)), which is what clipping the noise to norm C comes to.
PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        records=10_000,
        test=2_000,
        steps=200,
        looks=20,
        networks={"cnn": ("small-cnn", {}), "lstm": ("lstm", {"units": 32})},
        lrs={
            ("cnn", "adam", "none"): 0.002,
            ("cnn", "sgd", "none"): 0.1,
            ("cnn", "sgd", "AC"): 5.0,
            ("cnn", "sgd", "CA"): 2.0,
            ("lstm", "adam", "none"): 0.02,
            ("lstm", "sgd", "none"): 4.0,
            ("lstm", "sgd", "AC"): 20.0,
            ("lstm", "sgd", "CA"): 8.0,
        },
        notes=("Scale small: small-cnn and an LSTM of 32 units stand in for the paper's networks.", _OURS),
    ),
    "paper": Plan(
        scale="paper",
        records=100_000,
        test=10_000,
        steps=2_000,
        looks=40,
        watched=2_000,
        networks={"cnn": ("lin-cnn", {}), "lstm": ("lin-lstm", {})},
        lrs={
            ("cnn", "adam", "none"): 0.001,
            ("cnn", "sgd", "none"): 0.1,
            ("cnn", "sgd", "AC"): 10.0,
            ("cnn", "sgd", "CA"): 0.5,
            ("lstm", "adam", "none"): 0.002,
            ("lstm", "sgd", "none"): 0.5,
            ("lstm", "sgd", "AC"): 20.0,
            ("lstm", "sgd", "CA"): 2.0,
        },
        notes=(_OURS,),
    ),
}

"""What the paper prints: accuracies on MNIST and CIFAR-10. It has no table; these are the numbers of its text."""

from __future__ import annotations

from noiseproof.methods.inputs.adlm import PAPER

__all__ = ["AVERAGES", "PAPER", "accuracy"]

_ACCURACIES = {
    ("mnist", 0.25): {"adlm": 0.902, "ilm": 0.8846, "dp-sgd": 0.8209},
    ("mnist", 0.5): {"adlm": 0.9366, "ilm": 0.9239, "dp-sgd": 0.8859},
}

AVERAGES = (
    "Theirs on MNIST, on average over epsilon from .2 to .5: AdLM .9162, pSGD .8393. On CIFAR-10, on average over epsilon: "
    "AdLM .77, pSGD .711. Their pSGD clips the mean of a batch, which is not DP-SGD; ours is."
)


def accuracy(data: str, epsilon: float, method: str) -> float | None:
    """The accuracy that the paper states, if it does; `dp-sgd` stands for its pSGD."""
    return _ACCURACIES.get((data, epsilon), {}).get(method)

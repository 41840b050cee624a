"""The plans of the two scales, and the accuracies that the text of the paper states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noiseproof.networks import Network
from papers.study import Scale


@dataclass(frozen=True)
class Setting:
    """What is run on one data set."""

    data: str
    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = None
    """At most so many; all of them if None."""
    sensitivity: float | None = None
    """D_h; None counts it from the network."""
    batch_size: int = 1800
    epochs: float = 30.0
    lr: float = 1e-2
    relevance_epochs: int = 3
    epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 8.0)
    over_epochs: tuple[float, ...] = (0.5, 2.0)
    """Epsilons whose accuracy is also shown against epochs."""
    dp_sgd_epochs: tuple[float, ...] = (2.0, 5.0, 10.0)
    """Lengths of DP-SGD trainings, each with the noise for its length; the longest is compared."""
    dp_sgd_batch: int = 2048
    maps: tuple[str, ...] = ("raw",)
    """Feature maps of `functional`."""

    def recipe(self, shape: tuple[int, ...], classes: int) -> Network:
        """The network for records of that shape."""
        return Network(self.network, shape, classes, dict(self.options))


@dataclass(frozen=True)
class Plan:
    """What one scale runs."""

    scale: Scale
    settings: tuple[Setting, ...]
    repeats: int = 1
    """Of the authors' program, whose accuracies vary most; all else runs once."""
    delta: float = 1e-5
    points: int = 10
    """Places of a training at which its accuracy is noted."""
    lemma_records: int = 12_000
    notes: tuple[str, ...] = ()


PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        "small",
        (
            Setting(
                "mnist",
                "mlp",
                {"hidden": [128, 25], "activation": "relu"},
                sensitivity=9800.0,
                epochs=12.0,
                lr=4e-2,
                epsilons=(0.25, 0.5, 2.0),
                dp_sgd_epochs=(2.0, 5.0),
                maps=("raw", "fourier"),
            ),
            Setting(
                "cifar10",
                "mlp",
                {"hidden": [128, 30], "activation": "relu"},
                sensitivity=13_824.0,
                batch_size=2880,
                epochs=10.0,
                lr=4e-2,
                epsilons=(2.0, 8.0),
                over_epochs=(),
                dp_sgd_epochs=(5.0,),
                maps=("fourier",),
            ),
        ),
        repeats=2,
        notes=(
            "scale small: a dense network with 128 and 25 (CIFAR-10: 30) hidden units in place of the convolutions, with the "
            "sensitivity D_h of the paper's network, and 12 epochs (CIFAR-10: 10) where the paper has 500 and its program "
            "2,400; all 60,000 records of MNIST and 20,000 of CIFAR-10.",
        ),
    ),
    "paper": Plan(
        "paper",
        (
            Setting(
                "mnist",
                "phan-mnist",
                epochs=500.0,
                lr=3e-4,
                relevance_epochs=12,
                epsilons=(0.2, 0.25, 0.3, 0.4, 0.5, 1.0, 2.0, 4.0, 8.0),
                dp_sgd_epochs=(5.0, 20.0, 50.0, 100.0),
                maps=("raw", "scattering"),
            ),
            Setting(
                "cifar10",
                "phan-cifar",
                batch_size=7200,
                epochs=800.0,
                lr=3e-4,
                relevance_epochs=50,
                epsilons=(1.0, 2.0, 2.5, 4.0, 8.0),
                over_epochs=(2.5, 8.0),
                dp_sgd_epochs=(5.0, 20.0, 50.0, 100.0),
            ),
        ),
        repeats=3,
    ),
}


_ACCURACIES = {
    ("mnist", 0.25): {"adlm": 0.902, "ilm": 0.8846, "dp-sgd": 0.8209},
    ("mnist", 0.5): {"adlm": 0.9366, "ilm": 0.9239, "dp-sgd": 0.8859},
}

AVERAGES = (
    "Theirs on MNIST, on average over epsilon from .2 to .5: AdLM .9162, pSGD .8393. On CIFAR-10, on average over epsilon: "
    "AdLM .77, pSGD .711. Their pSGD clips the mean of a batch, which is not DP-SGD; ours is."
)


def printed_accuracy(data: str, epsilon: float, method: str) -> float | None:
    """The accuracy that the paper states, if it does; `dp-sgd` stands for its pSGD."""
    return _ACCURACIES.get((data, epsilon), {}).get(method)

"""The plans of the three scales, and what the text says of its figures, whose curves are not printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from noiseproof.networks import Training
from papers.study import Scale

PAPER = (
    "Mao, Zhu, Hong, Zhu, Zhang, Zhong: Private deep neural network models publishing for machine learning as a "
    "service. IEEE/ACM IWQoS, 2020"
)

PARAMETERS: Mapping[str, int] = {"mnist-net": 1_199_882, "cifar-net": 1_250_858}
MODELS = 50

QUALITY: Mapping[str, Mapping[float, str]] = {
    "mnist": {0.1: "affected", 1.0: "near the baseline", 5.0: "at the baseline or above"},
    "cifar10": {0.1: "far below", 1.0: "below", 2.0: "near the baseline", 5.0: "near the baseline"},
}
"""Figures 4 to 7 in the text's words, by data set and epsilon."""

DP_SGD: Mapping[str, str] = {
    "mnist": "Theirs: DP-SGD's epsilon may exceed 8, and its test accuracy will not exceed 96%.",
    "cifar10": "Theirs: DP-SGD's epsilon may exceed 3 after 50 epochs, and it is not better than DP-PG at 1.",
}
"""What the text says of DP-SGD in figures 4 and 5."""

SWEEPS: Mapping[str, str] = {
    "draw": "no significant trend",
    "cluster": "commensurate from 2 on",
    "shift": "acceptable from 1.5 on",
}
"""Figures 8 to 10 for MNIST, in the text's words."""

ATTACK: Mapping[str, str] = {
    "none": "almost 90% on class 3",
    "dp-pg": "around 57% on all classes",
    "dp-pgp": "at most 70% on any class",
    "dp-sgd": "almost 70% on two classes (at test accuracy 60.7%)",
}
"""Figure 12 in the text's words: how often membership is guessed right."""

TEST_ACCURACY: Mapping[str, str] = {"none": "—", "dp-pg": "above 55%", "dp-pgp": "about 50%", "dp-sgd": "45 to 60.7%"}
"""Of the over-fitted networks that were attacked."""


Precision: TypeAlias = Literal["float32", "bfloat16"]
"""Of products and convolutions while networks are trained; weights are float32 in both."""


@dataclass(frozen=True)
class QualityPlan:
    """How well what is published from one data set's collection still classifies, by epoch and by epsilon."""

    data: str
    network: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    models: int = MODELS
    records: int | None = None
    """To train on; None takes all."""
    tested: int | None = None
    """To measure test accuracy with; None takes all."""
    measured: int | None = None
    """Training records to measure train accuracy with; None takes all."""
    stages: tuple[int, ...] = (1, 5, 10, 20, 30, 40, 50, 60)
    """Epochs after which a network is published."""
    batch_size: int = 128
    lr: float = 1e-3
    momentum: float = 0.9
    """The paper says SGD and 1e-3, with which 60 epochs reach its 99% only with momentum."""
    epsilons: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0)
    by_epoch: tuple[float, ...] = (0.1, 1.0, 5.0)
    sweep: tuple[float, ...] = (0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
    """Values of each of DP-PGP's three epsilons, the other two being `fixed`, in the order draw, cluster, shift."""
    fixed: tuple[float, float, float] = (5.0, 5.0, 5.0)
    bandwidth: Literal["scott", "sheather-jones"] = "sheather-jones"
    """The paper's density estimate is Sheather and Jones's, its reference 22."""
    beside: tuple[float, ...] = ()
    """Epsilons at which those are taken beside another bandwidth; with few networks they make long grids."""
    precision: Precision = "float32"
    dp_sgd: bool = True
    """Whether DP-SGD is trained beside it."""
    repeats: int = 3
    """Draws whose accuracies are averaged."""
    resolution: int = 4
    """Points of the grid in a window."""

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"quality-{self.data}"

    def training(self, epochs: int) -> Training:
        """So many more epochs of training."""
        return Training(epochs=epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd", momentum=self.momentum)


@dataclass(frozen=True)
class AttackPlan:
    """How well membership is guessed of over-fitted networks."""

    data: str
    network: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    models: int = MODELS
    members: int = 10_000
    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-2
    momentum: float = 0.9
    attack: Literal["loss", "shadow"] = "shadow"
    shadows: int = 10
    records: int | None = None
    """From which members, as many others and the attackers' records are drawn; None takes all."""
    precision: Precision = "float32"

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"attack-{self.data}"

    def training(self) -> Training:
        """Long enough for every member to be learned by heart."""
        return Training(
            epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd", momentum=self.momentum
        )


@dataclass(frozen=True)
class AveragingPlan:
    """Collections at several rates: how far apart may networks drift for their mixture to be better than one of them?"""

    data: str
    network: str
    runs: tuple[tuple[float, int], ...]
    """Learning rate and epochs of each collection."""
    models: int = 4
    records: int | None = None
    """To train on; None takes all."""
    tested: int | None = None
    batch_size: int = 128
    momentum: float = 0.9
    precision: Precision = "bfloat16"

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"averaging-{self.data}"

    def training(self, lr: float, epochs: int) -> Training:
        """As the networks of `QualityPlan` are trained."""
        return Training(epochs=epochs, batch_size=self.batch_size, lr=lr, optimizer="sgd", momentum=self.momentum)


Part: TypeAlias = QualityPlan | AttackPlan | AveragingPlan


@dataclass(frozen=True)
class Plan:
    """What one scale runs."""

    scale: Scale
    quality: tuple[QualityPlan, ...]
    attack: AttackPlan | None
    averaging: tuple[AveragingPlan, ...] = ()
    apart: bool = False
    """Whether each network is trained by itself and kept in a file of its own, so that a collection can grow."""
    sigma: float = 1.1
    """Noise multiplier of DP-SGD."""
    delta: float = 1e-5
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All that is run."""
        return (*self.quality, *(() if self.attack is None else (self.attack,)), *self.averaging)


_NO_DROPOUT = {"dropout": 0.0, "dense_dropout": 0.0}

PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        quality=(
            QualityPlan(
                "mnist",
                "mnist-net",
                models=10,
                records=600,
                tested=500,
                stages=(1, 2, 4),
                batch_size=20,
                lr=0.02,
                epsilons=(0.01, 0.03, 0.1, 0.3, 1.0, 5.0),
                sweep=(0.5, 1.5, 5.0),
                bandwidth="scott",
                repeats=1,
                resolution=2,
            ),
            QualityPlan(
                "cifar10",
                "small-cnn",
                models=10,
                records=1000,
                tested=1000,
                stages=(2, 5, 10),
                batch_size=50,
                lr=0.02,
                epsilons=(0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0),
                sweep=(0.5, 1.0, 2.0, 5.0),
                bandwidth="scott",
                repeats=2,
            ),
        ),
        attack=AttackPlan(
            "cifar10",
            "small-cnn",
            models=10,
            members=500,
            epochs=30,
            batch_size=50,
            lr=0.05,
            attack="loss",
        ),
        notes=(
            "scale small: 10 MNIST-Nets on 600 records, 10 small CNNs in CIFAR-Net's place on 1,000, and 10 over-fitted "
            "ones on 500; the fewer networks, the larger the paper's du = 1 / (M (M - 1)), and the flatter the draws at "
            "the same epsilon.",
        ),
    ),
    "effect": Plan(
        scale="effect",
        quality=(
            QualityPlan(
                "mnist",
                "mnist-net",
                measured=10_000,
                stages=(1,),
                lr=0.05,
                epsilons=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0),
                sweep=(0.1, 0.5, 1.5, 5.0),
                bandwidth="scott",
                precision="bfloat16",
                repeats=1,
            ),
            QualityPlan(
                "cifar10",
                "cifar-net",
                models=6,
                measured=500,
                tested=2000,
                stages=(1, 3, 6),
                lr=0.004,
                epsilons=(0.1, 0.3, 1.0, 2.0, 5.0),
                sweep=(1.0, 3.0),
                fixed=(5.0, 1.0, 5.0),
                bandwidth="scott",
                beside=(0.1, 0.3, 1.0),
                precision="bfloat16",
                repeats=1,
            ),
        ),
        attack=AttackPlan(
            "cifar10",
            "cifar-net",
            _NO_DROPOUT,
            models=6,
            members=1_000,
            epochs=25,
            batch_size=32,
            shadows=3,
            records=4_000,
            precision="bfloat16",
        ),
        averaging=(
            AveragingPlan(
                "mnist",
                "mnist-net",
                ((0.05, 1), (0.02, 1), (0.01, 1)),
                models=2,
            ),
            AveragingPlan("cifar10", "cifar-net", ((0.03, 6), (0.03, 3), (0.01, 3), (0.004, 3)), models=2, tested=2000),
        ),
        apart=True,
        notes=(
            "Scale effect, MNIST: 50 MNIST-Nets, each trained for one epoch on all of MNIST at a rate of .05 with a momentum of "
            ".9 (the paper: 60 epochs at .001, and no word on momentum) in bfloat16, which is enough for 98%; Scott's "
            "bandwidths; one draw a point. Rates are compared with two networks each.",
            "Scale effect, CIFAR-10: 6 CIFAR-Nets (the paper: 50), each trained for six epochs (60) at a rate of .004 with a "
            "momentum of .9 on the records that are there, in bfloat16; Scott's bandwidths, Sheather and Jones's beside; one "
            "draw a point, measured on 2,000 test records. Attacked are 6 CIFAR-Nets without dropout on 1,000 members, with "
            "three shadow models on as many (the paper: 10,000 members and 100 epochs).",
        ),
    ),
    "paper": Plan(
        scale="paper",
        quality=(
            QualityPlan("mnist", "mnist-net"),
            QualityPlan("cifar10", "cifar-net", lr=1e-2, fixed=(5.0, 1.0, 5.0)),
        ),
        attack=AttackPlan("cifar10", "cifar-net", _NO_DROPOUT),
        apart=True,
    ),
}

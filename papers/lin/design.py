"""The design of the experiment: its cells and the plans of the two scales."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from noiseproof.methods.gradients.quantile import LayerShare
from noiseproof.networks.network import Start
from papers.lin.statistics import FACTORS
from papers.study import Scale

Sequence = Literal["AC", "CA", "quantile-flat", "quantile-layer", "none"]
"""What is done to a batch's gradients.

`AC` adds noise to each record's gradient, then clips it (noisy-gradient); `CA` clips each, then adds noise to their sum
(dp-sgd); the quantiles are the paper's algorithm 2; `none` is ordinary training.
"""

SWEEP = (0.001, 0.04, 1.4, 10.0, 100.0)
"""The clipping norms of Table 12."""


@dataclass(frozen=True)
class Cell:
    """One training: a level of each factor. Quantile clipping has no clipping norm, `none` no noise either."""

    data: str
    model: str
    optimizer: str
    sequence: Sequence
    sigma: float | None = None
    clip: float | None = None
    start: Start | None = None
    """Initial weights; None is the network's own."""
    repeat: int = 0
    share: LayerShare | None = None
    """The reading of a layer's part in `quantile-layer`; None is the method's own."""
    steps: int | None = None
    """Steps, where they are not the plan's."""
    lr: float | None = None
    """The learning rate, where it is not the plan's."""

    @property
    def key(self) -> str:
        """A name for files."""
        numbers = [f"{value:g}" for value in (self.sigma, self.clip) if value is not None]
        again = [f"{value:g}{name}" for value, name in ((self.steps, "steps"), (self.lr, "lr")) if value]
        again += [f"run{self.repeat}"] if self.repeat else []
        sequence = [self.sequence, self.share or ""]
        words = [self.data, self.model, self.optimizer, *sequence, *numbers, self.start or "", *again]
        return "-".join(word for word in words if word)

    @property
    def reference(self) -> Cell:
        """The same training without noise, which TPVD is measured from."""
        return replace(self, sequence="none", sigma=None, clip=None, share=None, lr=None)

    def as_sequence(self, sequence: Sequence) -> Cell:
        """The same cell with another sequence."""
        return replace(self, sequence=sequence)

    def seed(self, root: int) -> int:
        """The cell's own seed: what comes out does not depend on what ran before it."""
        return _seed(root, self.key)

    def initial_seed(self, root: int) -> int:
        """The seed of the initial weights: one for all trainings of a model on a data set, as TPVD asks for."""
        return _seed(root, f"{self.data}-{self.model}" + (f"-run{self.repeat}" if self.repeat else ""))


@dataclass(frozen=True)
class Plan:
    """How large the trainings of a scale are. The paper states neither steps nor learning rates: these are ours."""

    scale: Scale
    records: int
    """Training records of each set at most; the paper's sets are 60,000, 50,000 and 100,000."""
    test: int
    """Records at most that the final accuracy is measured on, and as many training records for the final loss."""
    steps: int
    looks: int
    """How often in a training the curves look."""
    networks: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Each model's network by name, with its options."""
    lrs: Mapping[tuple[str, str, str], float]
    """By model, optimizer and sequence; every sequence that is not named takes the one of `none`."""
    batch_size: int = 128
    watched: int = 500
    """Records at most that the curves look at, training records for the loss and test records for the accuracy."""
    delta: float = 1e-5
    repeats: int = 0
    """Seeds of every cell of the comparison of initial weights; at 0 the factorial experiment is run instead."""
    notes: tuple[str, ...] = field(default=())

    def steps_of(self, cell: Cell) -> int:
        """The steps of a cell."""
        return cell.steps or self.steps

    def lr(self, cell: Cell) -> float:
        """The learning rate of a cell."""
        if cell.lr:
            return cell.lr
        rates, chosen = self.lrs, (cell.model, cell.optimizer)
        return rates.get((*chosen, cell.sequence), rates[*chosen, "none"])


def factorial() -> tuple[Cell, ...]:
    """The 96 cells of Tables 3-5."""
    return tuple(
        Cell(data, model, optimizer, sequence, sigma, clip)
        for data, model, optimizer, sigma, clip, sequence in itertools.product(*FACTORS.values())
    )


def baselines() -> tuple[Cell, ...]:
    """The twelve trainings without noise."""
    return tuple(dict.fromkeys(cell.reference for cell in factorial()))


def sweep() -> tuple[Cell, ...]:
    """Table 12: clipping norms over five orders of magnitude on MNIST, sigma 0.5, Adam."""
    return tuple(
        Cell("mnist", model, "adam", sequence, 0.5, clip)
        for model, sequence, clip in itertools.product(FACTORS["model"], FACTORS["sequence"], SWEEP)
    )


def comparison() -> tuple[Cell, ...]:
    """Table 7: the CNN with Adam by both quantile clippings, by AC at two clipping norms and without noise."""
    columns: tuple[tuple[Sequence, float | None, float | None], ...] = (
        ("quantile-layer", 0.5, None),
        ("quantile-flat", 0.5, None),
        ("AC", 0.5, 0.04),
        ("AC", 0.5, 1.4),
        ("none", None, None),
    )
    return tuple(Cell(data, "cnn", "adam", *column) for data in FACTORS["data"] for column in columns)


def every_cell() -> tuple[Cell, ...]:
    """Every training of the study once, those that others are measured from first."""
    return tuple(dict.fromkeys((*baselines(), *factorial(), *sweep(), *comparison())))


STARTS: tuple[Start, ...] = ("truncated-normal", "glorot")
"""Initial weights that TensorFlow's users of the paper's time had: its tutorials' own, and Keras's."""


QUANTILES: tuple[tuple[Sequence, LayerShare | None], ...] = (
    ("quantile-flat", None),
    *(("quantile-layer", share) for share in get_args(LayerShare)),
)
"""Algorithm 2, flat and by layer in every reading of a layer's part."""


def quantiles(repeats: int) -> tuple[Cell, ...]:
    """Table 7's quantile clippings on MNIST, over seeds."""
    return tuple(
        Cell("mnist", "cnn", "adam", sequence, 0.5, None, STARTS[0], repeat, share)
        for repeat in range(repeats)
        for sequence, share in QUANTILES
    )


def sequences(repeats: int) -> tuple[Cell, ...]:
    """Both sequences with the paper's networks at sigma 0.5, each with its training without noise: what an author asks first.

    On MNIST over seeds, with Adam from both starts, with SGD at two rates; then one seed each: the other sets, and the CNN
    for as many steps as scale paper has.
    """
    seeds, both, normal, glorot = range(repeats), STARTS, STARTS[:1], STARTS[1:]
    parts = (
        _both("mnist", "cnn", "adam", (1.4, 0.04), both, seeds),
        _both("mnist", "lstm", "adam", (1.4, 0.04), both, seeds, 300),
        *(_both("mnist", "cnn", "sgd", (1.4,), normal, seeds, lr=lr) for lr in (2.0, 8.0)),
        *(
            _both(data, model, optimizer, clips, normal, range(1), 300, lr)
            for model, optimizer, clips, lr in (
                ("cnn", "adam", (1.4, 0.04), None),
                ("lstm", "adam", (1.4, 0.04), None),
                ("cnn", "sgd", (1.4,), 2.0),
                ("cnn", "sgd", (1.4,), 8.0),
            )
            for data in ("cifar10", "svhn")
        ),
        _both("mnist", "cnn", "adam", (1.4, 0.04), glorot, range(1), 2_000),
    )
    cells = tuple(itertools.chain(*parts))
    return tuple(dict.fromkeys((*(cell.reference for cell in cells), *cells)))


def _both(
    data: str,
    model: str,
    optimizer: str,
    clips: Iterable[float],
    starts: Iterable[Start],
    seeds: Iterable[int],
    steps: int | None = None,
    lr: float | None = None,
) -> tuple[Cell, ...]:
    return tuple(
        Cell(data, model, optimizer, sequence, 0.5, clip, start, repeat, steps=steps, lr=lr)
        for clip, start, repeat, sequence in itertools.product(clips, starts, seeds, FACTORS["sequence"])
    )


def _seed(root: int, text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{root}:{text}".encode()).digest()[:7])


_OURS = "The paper states neither steps nor learning rates: these are ours, the same for both sequences. SGD has no momentum."

# With SGD the rate of both sequences is CA's best in a pilot on MNIST at C = 1.4, over both sigmas. AC alone would want more:
# it shrinks the gradient by 1 / (sigma sqrt(parameters)), which is what clipping the noise to norm C comes to.
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
            ("cnn", "sgd", "AC"): 2.0,
            ("cnn", "sgd", "CA"): 2.0,
            ("lstm", "adam", "none"): 0.02,
            ("lstm", "sgd", "none"): 4.0,
            ("lstm", "sgd", "AC"): 8.0,
            ("lstm", "sgd", "CA"): 8.0,
        },
        notes=(
            "Scale small: small-cnn and an LSTM of 32 units stand in for the paper's networks, and one seed for several; "
            "left out: both initial weights of the paper's CNN (scale effect).",
            _OURS,
        ),
    ),
    "effect": Plan(
        scale="effect",
        records=100_000,
        test=10_000,
        steps=120,
        looks=6,
        networks={"cnn": ("lin-cnn", {}), "lstm": ("lin-lstm", {})},
        lrs={("cnn", "adam", "none"): 0.001, ("cnn", "sgd", "none"): 0.05, ("lstm", "adam", "none"): 0.002},
        repeats=3,
        notes=(
            "Scale effect: the paper's CNN (3,274,634 parameters) and LSTM on all records, batches of 128; left out: sigma .1, "
            "the norms other than 1.4 and .04, the LSTM with SGD. Quantile clipping from truncated normals.",
            _OURS,
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
        lrs={
            ("cnn", "adam", "none"): 0.001,
            ("cnn", "sgd", "none"): 0.1,
            ("cnn", "sgd", "AC"): 0.5,
            ("cnn", "sgd", "CA"): 0.5,
            ("lstm", "adam", "none"): 0.002,
            ("lstm", "sgd", "none"): 0.5,
            ("lstm", "sgd", "AC"): 2.0,
            ("lstm", "sgd", "CA"): 2.0,
        },
        notes=(_OURS,),
    ),
}

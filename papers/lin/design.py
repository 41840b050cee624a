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
    test: int | None = None
    """Records that it is measured on, where they are not as many as the plan has."""

    @property
    def key(self) -> str:
        """A name for files."""
        numbers = [f"{value:g}" for value in (self.sigma, self.clip) if value is not None]
        own = ((self.steps, "steps"), (self.lr, "lr"), (self.test, "test"))
        again = [f"{value:g}{name}" for value, name in own if value]
        again += [f"run{self.repeat}"] if self.repeat else []
        sequence = [self.sequence, self.share or ""]
        words = [self.data, self.model, self.optimizer, *sequence, *numbers, self.start or "", *again]
        return "-".join(word for word in words if word)

    @property
    def reference(self) -> Cell:
        """The same training without noise, which TPVD is measured from."""
        return replace(self, sequence="none", sigma=None, clip=None, share=None, lr=None, test=None)

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

    def test_of(self, cell: Cell) -> int:
        """Records at most that a cell is measured on."""
        return cell.test or self.test

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


NORMAL, GLOROT = STARTS
CNN_STEPS, LSTM_STEPS = 120, 300
"""Steps of the paper's networks: a step of the LSTM costs half as much as one of the CNN."""
SGD_RATES: Mapping[str, tuple[float, ...]] = {"cnn": (0.1, 0.5, 2.0, 8.0, 32.0), "lstm": (0.5, 2.0, 8.0, 32.0)}
"""Rates of SGD that were tried on MNIST at sigma 0.5 and C = 1.4, the same for both sequences."""
SGD_RATE: Mapping[str, float] = {"cnn": 8.0, "lstm": 8.0}
"""Those with the best mean accuracy of both sequences, taken for all other cells."""


def steps_of(model: str) -> int | None:
    """Steps of a cell where they are not the plan's."""
    return None if model == "cnn" else LSTM_STEPS


def rates() -> tuple[Cell, ...]:
    """SGD on MNIST at every rate, both sequences."""
    return tuple(
        itertools.chain(
            *(
                _both("mnist", model, "sgd", (1.4,), (NORMAL,), range(1), steps_of(model), lr)
                for model, grid in SGD_RATES.items()
                for lr in grid
            )
        )
    )


def experiment() -> Mapping[Cell, Cell]:
    """The cells of the factorial experiment, each by the training with the paper's network that stands for it.

    From truncated normals, one seed; SGD with one rate for both sequences. The CNN is measured on fewer records, which
    would cost as much as its training.
    """
    found: dict[Cell, Cell] = {}
    for cell in (*baselines(), *factorial()):
        own = replace(cell, start=NORMAL, steps=steps_of(cell.model))
        if cell.sequence != "none":
            lr = SGD_RATE[cell.model] if cell.optimizer == "sgd" else None
            own = replace(own, lr=lr, test=2_000 if cell.model == "cnn" else None)
        found[cell] = own
    return found


def norms(repeats: int) -> tuple[Cell, ...]:
    """Table 12 with the paper's networks: the LSTM and the CNN at five clipping norms."""
    return tuple(
        itertools.chain(
            *(
                _both("mnist", model, "adam", SWEEP, (NORMAL,), range(repeats), steps_of(model))
                for model in FACTORS["model"]
            )
        )
    )


def sequences(repeats: int) -> tuple[Cell, ...]:
    """Both sequences with the paper's networks at sigma 0.5: what an author asks first.

    On MNIST over seeds, with Adam from both starts and at the norms of Table 6, with SGD; then one seed each: the other sets
    for more steps, and the CNN for many.
    """
    seeds, few = range(repeats), (1.4, 0.04)
    parts = (
        _both("mnist", "cnn", "adam", few, STARTS, seeds),
        _both("mnist", "lstm", "adam", few, STARTS, seeds, LSTM_STEPS),
        *(
            _both("mnist", model, "sgd", (1.4,), (NORMAL,), seeds, steps_of(model), SGD_RATE[model])
            for model in FACTORS["model"]
        ),
        *(
            _both(data, model, "adam", few, (NORMAL,), range(1), 300)
            for model in FACTORS["model"]
            for data in ("cifar10", "svhn")
        ),
        _both("mnist", "cnn", "adam", (1.4,), (GLOROT,), range(1), 1_000),
    )
    return tuple(itertools.chain(*parts))


def compared(repeats: int) -> tuple[Cell, ...]:
    """Every training of scale effect once, those that others are measured from first."""
    cells = (
        *sequences(repeats),
        *rates(),
        *experiment().values(),
        *norms(1),
        *quantiles(repeats),
    )
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
        lrs={
            ("cnn", "adam", "none"): 0.001,
            ("cnn", "sgd", "none"): 0.05,
            ("lstm", "adam", "none"): 0.002,
            ("lstm", "sgd", "none"): 0.5,
        },
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

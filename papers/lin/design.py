"""The design of the experiment: its cells and the plans of the two scales."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from noiseproof.methods.gradients.quantile import LayerShare
from noiseproof.networks.network import Start
from papers.lin.statistics import FACTORS
from papers.study import Scale

Sequence = Literal["AC", "CA", "quantile-flat", "quantile-layer", "none"]
"""What is done to a batch's gradients.

`AC` adds noise to each record's gradient, then clips it (noisy-gradient); `CA` clips each, then adds noise to their sum
(dp-sgd); the quantiles are the paper's algorithm 2; `none` is ordinary training.
"""

R = TypeVar("R")

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

    def test_of(self, cell: Cell) -> int:
        """Records at most that a cell is measured on."""
        return cell.test or self.test

    def watched_of(self, cell: Cell) -> int:
        """Records at most that a cell's curves look at."""
        return self.watched if cell.test is None else cell.test // 10

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
START: Mapping[str, Start] = {"cnn": "truncated-normal", "lstm": "normal"}
"""Those that are likeliest the paper's: its CNN is that of TensorFlow's tutorial of the time; its LSTM, down to batches of 128
and to accuracies that are multiples of 1/128, is that of the "TensorFlow examples", whose output weights are standard normals."""
DRAWN: Mapping[str, tuple[str, float, float]] = {
    "1": ("mnist", 0.5, 1.4),
    "2": ("cifar10", 0.1, 0.8),
    "3": ("svhn", 0.1, 1.4),
}
"""Data set, sigma and clipping norm of the paper's figures 1 to 3, all of the CNN with Adam."""
SHORT, LONG = 60, 480
"""Steps of the factorial experiment, whose cells are many, and of the trainings that say what more steps change."""
LEARNING: Mapping[tuple[str, str], int] = {
    **dict.fromkeys(itertools.product(FACTORS["data"][1:], ("cnn",)), 240),
    **dict.fromkeys(itertools.product(FACTORS["data"][1:], ("lstm",)), LONG),
}
"""Steps on the sets where those of the factorial experiment teach next to nothing without noise: after 240 the CNN has .62 on
SVHN, as in the paper's Table 5."""
FEW = 1_000
"""Records that cells are measured on where there are many, since measuring the CNN on 10,000 costs as much as training it."""
SGD_RATES: Mapping[str, tuple[float, ...]] = {"cnn": (0.1, 0.5, 2.0, 8.0), "lstm": (0.5, 2.0, 8.0, 32.0)}
"""Rates of SGD that were tried on MNIST at sigma 0.5 and C = 1.4, the same for both sequences."""
RATE_STEPS: Mapping[str, int] = {"cnn": SHORT, "lstm": 120}
SGD_RATE: Mapping[str, float] = {"cnn": 2.0, "lstm": 8.0}
"""Those with the best mean accuracy of both sequences, taken for all other cells."""
QUANTILES: tuple[tuple[Sequence, LayerShare | None], ...] = (
    ("quantile-flat", None),
    *(("quantile-layer", share) for share in get_args(LayerShare)),
)
"""Algorithm 2, flat and by layer in every reading of a layer's part."""


def quantiles(repeats: int) -> tuple[Cell, ...]:
    """Table 7's quantile clippings over seeds: on MNIST in every reading, on CIFAR-10 as printed and after more steps."""
    mnist = tuple(
        Cell("mnist", "cnn", "adam", sequence, 0.5, None, START["cnn"], repeat, share)
        for sequence, share in QUANTILES
        for repeat in range(repeats)
    )
    cifar = tuple(
        Cell("cifar10", "cnn", "adam", sequence, 0.5, None, START["cnn"], repeat, share, LEARNING["cifar10", "cnn"])
        for repeat in range(repeats)
        for sequence, share in QUANTILES
        if share in (None, "printed")
    )
    return (*mnist, *cifar)


def others(repeats: int = 1) -> tuple[Cell, ...]:
    """Table 7 on the other sets, as far as the factorial experiment has not got it: AC at C = 0.04, and quantile clipping."""
    columns: tuple[tuple[Sequence, float | None, LayerShare | None], ...] = (
        ("AC", 0.04, None),
        ("quantile-flat", None, None),
        ("quantile-layer", None, "printed"),
    )
    return tuple(
        Cell(data, "cnn", "adam", sequence, 0.5, clip, START["cnn"], repeat, share, SHORT, test=FEW)
        for repeat in range(repeats)
        for data in FACTORS["data"][1:]
        for sequence, clip, share in columns
    )


def rates(repeats: int = 1) -> tuple[Cell, ...]:
    """SGD on MNIST at every rate, both sequences, over seeds."""
    return tuple(
        Cell("mnist", model, "sgd", sequence, 0.5, 1.4, START[model], repeat, None, RATE_STEPS[model], lr, 2 * FEW)
        for repeat in range(repeats)
        for model, grid in SGD_RATES.items()
        for lr, sequence in itertools.product(grid, FACTORS["sequence"])
    )


def experiment(repeat: int = 0) -> Mapping[Cell, Cell]:
    """The cells of the factorial experiment and its baselines, each with the training of the paper's network for it.

    One seed of several; SGD with one rate for both sequences.
    """
    found: dict[Cell, Cell] = {}
    for cell in (*baselines(), *factorial()):
        noised = cell.sequence != "none"
        found[cell] = replace(
            cell,
            start=START[cell.model],
            repeat=repeat,
            steps=SHORT,
            lr=SGD_RATE[cell.model] if noised and cell.optimizer == "sgd" else None,
            test=FEW,
        )
    return found


def own(results: Mapping[Cell, R]) -> dict[Cell, R]:
    """What was found with the paper's networks and the first seed, by the cells of the factorial experiment."""
    return {cell: results[training] for cell, training in experiment().items() if training in results}


def norms(repeats: int = 1) -> tuple[Cell, ...]:
    """Table 12 with the paper's networks: both at five clipping norms, over seeds."""
    return tuple(
        cell
        for model in FACTORS["model"]
        for cell in _both("mnist", model, "adam", SWEEP, (START[model],), range(repeats))
    )


def sequences(repeats: int) -> tuple[Cell, ...]:
    """Both sequences with the paper's networks on MNIST at sigma 0.5, over seeds and starts: what an author asks first."""
    seeds, few = range(repeats), (1.4, 0.04)
    parts = (
        _both("mnist", "cnn", "adam", few, STARTS, seeds),
        _both("mnist", "lstm", "adam", few, (START["lstm"],), seeds),
        _both("mnist", "lstm", "adam", (1.4,), STARTS, seeds),
        _both("mnist", "cnn", "sgd", (1.4,), (START["cnn"],), seeds, lr=SGD_RATE["cnn"]),
        _both("mnist", "lstm", "sgd", (1.4,), (START["lstm"],), seeds, lr=SGD_RATE["lstm"]),
    )
    return tuple(itertools.chain(*parts))


def longer(repeats: int) -> tuple[Cell, ...]:
    """Both sequences on CIFAR-10 and SVHN for as many steps as it takes to learn something without noise.

    Over seeds; the CNN at C = 0.04, too, where there is next to no noise in AC, with one.
    """
    parts = (
        _both(data, model, "adam", (clip,), (START[model],), range(repeats if clip > 1 else 1), steps)
        for (data, model), steps in LEARNING.items()
        for clip in ((1.4, 0.04) if model == "cnn" else (1.4,))
    )
    return tuple(itertools.chain(*parts))


def compared(repeats: int) -> tuple[Cell, ...]:
    """Every training of scale effect once, those that others are measured from first."""
    cells = (
        *sequences(repeats),
        *longer(repeats),
        *rates(repeats),
        *experiment().values(),
        *norms(repeats),
        *quantiles(repeats),
        *others(repeats),
        *itertools.chain(*(experiment(repeat).values() for repeat in range(1, repeats))),
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
            ("lstm", "sgd", "none"): 0.1,
        },
        repeats=3,
        notes=(
            "Scale effect: the paper's CNN (3,274,634 parameters) and LSTM, batches of 128. Tables 3 to 5 after 60 steps, on "
            "1,000 test records, one seed, the CNN from truncated and the LSTM from standard normals; SGD by table rates.",
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

"""Training of cells on the paper's images, those first that others are measured from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data import load
from noiseproof.data.dataset import Dataset
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.errors import DataError
from noiseproof.methods.gradients.descent import OptimizerName, descend, make_optimizer
from noiseproof.methods.gradients.noisy_gradient import NoisyGradients
from noiseproof.methods.gradients.quantile import QuantileGradients
from noiseproof.networks import Network, tpvd
from noiseproof.parallel import tasks
from noiseproof.privacy import Reproducible
from papers.lin.design import Cell, Plan
from papers.lin.metrics import Curves, accuracy, convergence
from papers.lin.results import CellResult, References, Weights
from papers.study import Setup

if TYPE_CHECKING:
    from noiseproof.engine.batch_gradients import BatchGradients
    from noiseproof.privacy import Randomness

SIDE = 28
_LUMINANCE = (0.299, 0.587, 0.114)


def grey28(dataset: Dataset) -> Dataset:
    """The images cropped to their middle 28x28 and turned grey by luminance (ITU-R BT.601).

    The paper says "image cropping and grayscale processing" of CIFAR-10 and SVHN, and no more; MNIST is as it is.
    """
    shape = dataset.public.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SIDE:
        raise DataError(f"{dataset.name}: grey or colour images of at least {SIDE}x{SIDE} are needed, not {shape}.")
    if shape == (1, SIDE, SIDE):
        return dataset
    top, left = ((length - SIDE) // 2 for length in shape[1:])
    images = dataset.features[:, :, top : top + SIDE, left : left + SIDE]
    if shape[0] == 3:
        images = torch.einsum("nchw,c->nhw", images, images.new_tensor(_LUMINANCE))[:, None]
    note = f"{dataset.name}: the middle {SIDE}x{SIDE} of each image, grey by luminance"
    public = replace(dataset.public, shape=(1, SIDE, SIDE), notes=(*dataset.public.notes, note))
    # Luminance weights sum to 1 only up to rounding; features must stay in [0, 1].
    return replace(dataset, features=images.clamp(0, 1).contiguous(), public=public)


_WHY = {
    "none": "trained without noise",
    "AC": "nothing proven: a record's gradient is unbounded when the noise is added",
    "quantile-flat": "nothing proven: the clipping norm is read off the records without noise",
    "quantile-layer": "nothing proven: the clipping norm is read off the records without noise",
}


def train_cell(cell: Cell, plan: Plan, seed: int, reference: Weights | None) -> tuple[CellResult, Weights]:
    """Train one cell and measure it; `reference` are the weights that its TPVD is measured from.

    Formal guarantee
    ----------------
    For the sequence CA the result says what is proven of the *weights*, as `PrivateGradients` states it; for the others
    nothing is. Accuracies, losses and TPVD are measured on the records themselves and are covered by nothing: a study
    is run on public data.
    """
    started = time.process_time()
    train, test = records(source(cell.data, plan), plan.records, plan.test_of(cell))
    rng = Reproducible(cell.seed(seed))
    name, options = plan.networks[cell.model]
    chosen = options if cell.start is None else {**options, "start": cell.start}
    module = Network(name, train.public.shape, train.classes, chosen).build(cell.initial_seed(seed))
    steps = plan.steps_of(cell)
    every = max(1, steps // plan.looks)
    watched = plan.watched_of(cell)
    curves = Curves(module, _first(train, watched), _first(test, watched), every=every)
    rate = min(1.0, plan.batch_size / len(train))
    if cell.sequence == "none":
        parameters = list(module.parameters())
        step = make_optimizer(_optimizer(cell), parameters, plan.lr(cell))
        descend_plainly(module, step, train, sample_rate=rate, steps=steps, rng=rng, watch=curves)
        epsilon = None
    else:
        gradients = _gradients(cell, module, sample_rate=rate, rng=rng)
        parameters = list(gradients.parameters)
        step = make_optimizer(_optimizer(cell), parameters, plan.lr(cell))
        try:
            descend(module, gradients, step, train, steps, rng=rng, after_step=curves)
        finally:
            gradients.close()
        epsilon = gradients.epsilon(plan.delta) if isinstance(gradients, PrivateGradients) else None
    curves.look(steps)
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    result = CellResult(
        cell=cell,
        accuracy=accuracy(module, test),
        convergence=_ranked(convergence(module, _first(train, plan.test_of(cell)))),
        tpvd=None if reference is None else _ranked(tpvd(reference, weights)),
        epsilon=epsilon,
        delta=plan.delta,
        why=_WHY.get(cell.sequence),
        steps=tuple(curves.steps),
        losses=tuple(_ranked(loss) for loss in curves.losses),
        accuracies=tuple(curves.accuracies),
        ran={
            "records": len(train),
            "test": len(test),
            "rate": rate,
            "steps": steps,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "network": name,
            "lr": plan.lr(cell),
        },
        seconds=time.process_time() - started,
        tpvd_with_biases=None if reference is None else _ranked(_of_all(reference, weights)),
    )
    return result, weights


def descend_plainly(
    module: nn.Module,
    step: torch.optim.Optimizer,
    dataset: Dataset,
    *,
    sample_rate: float,
    steps: int,
    rng: Randomness,
    watch: Curves,
) -> None:
    """Ordinary descent on the same Poisson batches that the noised trainings see, so that only the noise differs."""
    module.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=rng.generator)))
        for number in range(1, steps + 1):
            index = rng.poisson_sample(len(dataset), sample_rate)
            if len(index):
                loss = functional.cross_entropy(module(dataset.features[index]), dataset.labels[index])
                step.zero_grad(set_to_none=True)
                loss.backward()
                step.step()
            watch(number, math.nan)
    module.eval()


def source(data: str, plan: Plan) -> str:
    """The named set of the paper's: SVHN at the paper's size with its extra part, where that is there.

    The paper's 100,000 training records are more than SVHN's own part has.
    """
    whole = "svhn-extra"
    with_extra = data == "svhn" and plan.scale == "paper" and find(named_sets()[whole]) is not None
    return whole if with_extra else data


@lru_cache(maxsize=4)
def records(name: str, most: int, test: int) -> tuple[Dataset, Dataset]:
    """The training and test records of a set as 28x28 grey images, at most so many of each."""
    found = load(name)
    return grey28(_first(found.train, most)), grey28(_first(found.test, test))


def _of_all(reference: Weights, weights: Weights) -> float:
    """TPVD with biases: of tensors without names all count."""
    return tpvd(*([each[name] for name in sorted(reference)] for each in (reference, weights)))


def _first(dataset: Dataset, most: int) -> Dataset:
    return dataset.take(torch.arange(min(most, len(dataset))))


def _gradients(cell: Cell, module: nn.Module, *, sample_rate: float, rng: Randomness) -> BatchGradients:
    assert cell.sigma is not None
    if cell.sequence in ("quantile-flat", "quantile-layer"):
        by: Literal["all", "layer"] = "all" if cell.sequence == "quantile-flat" else "layer"
        reading: dict[str, Any] = {} if cell.share is None else {"share": cell.share}
        return QuantileGradients(
            module, noise_multiplier=cell.sigma, sample_rate=sample_rate, rng=rng, by=by, **reading
        )
    assert cell.clip is not None
    if cell.sequence == "AC":
        return NoisyGradients(
            module, max_grad_norm=cell.clip, noise_multiplier=cell.sigma, sample_rate=sample_rate, rng=rng
        )
    return PrivateGradients(
        module, max_grad_norm=cell.clip, noise_multiplier=cell.sigma, sample_rate=sample_rate, rng=rng
    )


def _optimizer(cell: Cell) -> OptimizerName:
    return "adam" if cell.optimizer == "adam" else "sgd"


def _ranked(value: float) -> float:
    # A training that diverged ends in NaN; as the worst of all losses it still has its place in a ranking.
    return math.inf if math.isnan(value) else value


Train: TypeAlias = Callable[[Cell, Plan, int, Weights | None], tuple[CellResult, Weights]]
"""Trains one cell with a seed; the last argument are the weights that its TPVD is measured from."""


def train_cells(cells: Sequence[Cell], setup: Setup[Plan]) -> Iterator[tuple[Cell, CellResult]]:
    """Train every cell; trainings without noise go first, and leave the weights that the others are measured from.

    Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
    cores.
    """
    references, train = References(setup.out), setup.runner or train_cell
    plain = dict.fromkeys(cell.reference for cell in cells)
    for wave in (
        # Weights are not kept where results are: a training that others are measured from is run again where it must be.
        [cell for cell in plain if cell in cells or not references.file(cell).exists()],
        [cell for cell in cells if cell.sequence != "none"],
    ):
        todo, common = _Todo(wave, references), (setup.plan, setup.seed, train)
        for _, (result, weights) in tasks.run(_work, todo, common=common, jobs=setup.workers):
            if weights is not None:
                references.save(result.cell, weights)
            if result.cell in cells:
                yield result.cell, result


class _Todo(Sequence[tuple[Cell, "Weights | None"]]):
    """Cells with the weights that each is measured from, which are read when a worker is about to get them."""

    def __init__(self, cells: Sequence[Cell], references: References) -> None:
        self._cells, self._references = cells, references

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, place: Any) -> Any:
        cell = self._cells[place]
        return cell, None if cell.sequence == "none" else self._references.load(cell)


def _work(plan: Plan, seed: int, train: Train, task: tuple[Cell, Weights | None]) -> tuple[CellResult, Weights | None]:
    cell, reference = task
    result, weights = train(cell, plan, seed, reference)
    return result, weights if cell.sequence == "none" else None

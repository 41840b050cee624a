"""The training of one cell."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data import load
from noiseproof.data.dataset import Dataset
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.gradients.descent import OptimizerName, descend, make_optimizer
from noiseproof.methods.gradients.noisy_gradient import NoisyGradients
from noiseproof.methods.gradients.quantile import QuantileGradients
from noiseproof.networks import Network
from noiseproof.privacy import Reproducible
from papers.lin.design import Cell, Plan
from papers.lin.images import grey28
from papers.lin.metrics import Curves, accuracy, convergence, tpvd
from papers.lin.results import CellResult, Weights

if TYPE_CHECKING:
    from noiseproof.engine.private_gradients import BatchGradients
    from noiseproof.privacy import Randomness


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
    started = time.perf_counter()
    train, test = records(cell.data, plan.records, plan.test)
    rng = Reproducible(cell.seed(seed))
    name, options = plan.networks[cell.model]
    module = Network(name, train.public.shape, train.classes, options).build(cell.initial_seed(seed))
    every = max(1, plan.steps // plan.looks)
    curves = Curves(module, _first(train, plan.watched), _first(test, plan.watched), every=every)
    rate = min(1.0, plan.batch_size / len(train))
    if cell.sequence == "none":
        parameters = list(module.parameters())
        step = make_optimizer(_optimizer(cell), parameters, plan.lr(cell))
        descend_plainly(module, step, train, sample_rate=rate, steps=plan.steps, rng=rng, watch=curves)
        epsilon = None
    else:
        gradients = _gradients(cell, module, sample_rate=rate, rng=rng)
        parameters = list(gradients.parameters)
        step = make_optimizer(_optimizer(cell), parameters, plan.lr(cell))
        try:
            descend(module, gradients, step, train, plan.steps, rng=rng, after_step=curves)
        finally:
            gradients.close()
        epsilon = gradients.epsilon(plan.delta) if isinstance(gradients, PrivateGradients) else None
    curves.look(plan.steps)
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    result = CellResult(
        cell=cell,
        accuracy=accuracy(module, test),
        convergence=_ranked(convergence(module, _first(train, plan.test))),
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
            "steps": plan.steps,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "network": name,
            "lr": plan.lr(cell),
        },
        seconds=time.perf_counter() - started,
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


@lru_cache(maxsize=3)
def records(name: str, most: int, test: int) -> tuple[Dataset, Dataset]:
    """The training and test records of a set as 28x28 grey images, at most so many of each."""
    found = load(name)
    return grey28(_first(found.train, most)), grey28(_first(found.test, test))


def _first(dataset: Dataset, most: int) -> Dataset:
    return dataset.take(torch.arange(min(most, len(dataset))))


def _gradients(cell: Cell, module: nn.Module, *, sample_rate: float, rng: Randomness) -> BatchGradients:
    assert cell.sigma is not None
    if cell.sequence in ("quantile-flat", "quantile-layer"):
        by = "all" if cell.sequence == "quantile-flat" else "layer"
        return QuantileGradients(module, noise_multiplier=cell.sigma, sample_rate=sample_rate, rng=rng, by=by)  # type: ignore[arg-type]
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

"""How long does publishing a network take: all of MNIST-Net's parameters from 50 networks, against a loop of scipy's KDE?

The loop does what the method does, a parameter at a time: `gaussian_kde`, its integral over the window around every point
of the grid, and one draw. It is timed on a sample of parameters before and after ours, in the same run, and scaled up.
A second row lets the loop take the density at the points instead of the window's integral, which is another score.
Wall-clock seconds: ours may use all cores, the loop has one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench import memory
from noiseproof.methods.parameters import Collection, DpPg, published_sensitivity
from noiseproof.methods.parameters.collection import ParameterLayout
from noiseproof.privacy import Budget, Reproducible

PARAMETERS, MODELS = 1_199_882, 50
SAMPLE = 300
_EPSILON = 1.0

Scores = Callable[[Any, npt.NDArray[np.float64], float], npt.NDArray[np.float64]]


def rows(parameters: int = PARAMETERS, models: int = MODELS, sample: int = SAMPLE) -> list[dict[str, Any]]:
    """Seconds of ours and of scipy's loop, by both scores; then megabytes beside the collection's."""
    values = _values(parameters, models)
    method = DpPg(models=models)
    chosen = torch.randperm(parameters, generator=torch.Generator().manual_seed(1))[:sample]
    slices = values[:, chosen].T.double().numpy()
    _publish(values[:, :1000])
    before = [_seconds(partial(_loop, slices, method, score)) for score in (_integral, _density)]
    ours = _seconds(lambda: _publish(values))
    after = [_seconds(partial(_loop, slices, method, score)) for score in (_integral, _density)]
    what = f"publishing {parameters:,} parameters of {models} networks"
    found = []
    for name, pair in zip(("window integrals", "densities"), zip(before, after, strict=True), strict=True):
        theirs = statistics.median(pair) / sample * parameters
        label = f"{what} / a loop of scipy's gaussian_kde ({name})"
        found.append({"what": label, "ours": ours, "theirs": theirs, "ratio": ours / theirs, "unit": "s"})
    size = values.numel() * values.element_size() / 2**20
    grown = memory.alone(_grown, parameters, models)
    return [
        *found,
        {"what": f"{what}: memory / the networks", "ours": grown, "theirs": size, "ratio": grown / size, "unit": "MB"},
    ]


def _loop(slices: npt.NDArray[np.float64], method: DpPg, score: Scores) -> npt.NDArray[np.float64]:
    """What the method does, one parameter after another."""
    from scipy.special import softmax
    from scipy.stats import gaussian_kde

    rng = np.random.default_rng(0)
    drawn = np.empty(len(slices))
    scale = _EPSILON / (2 * published_sensitivity(slices.shape[1]))
    for place, values in enumerate(slices):
        estimate = gaussian_kde(values)
        width = float(np.sqrt(estimate.covariance[0, 0]))
        step = width * method.window / method.resolution
        points = np.arange(values.min() - method.tail * width, values.max() + method.tail * width, step)
        drawn[place] = rng.choice(points, p=softmax(scale * score(estimate, points, width * method.window)))
    return drawn


def _integral(estimate: Any, points: npt.NDArray[np.float64], window: float) -> npt.NDArray[np.float64]:
    return np.array([estimate.integrate_box_1d(point - window / 2, point + window / 2) for point in points])


def _density(estimate: Any, points: npt.NDArray[np.float64], window: float) -> npt.NDArray[np.float64]:
    return np.asarray(estimate(points) * window)


def _values(parameters: int, models: int) -> torch.Tensor:
    return torch.empty(models, parameters).normal_(generator=torch.Generator().manual_seed(0)).mul_(0.02)


def _publish(values: torch.Tensor) -> None:
    models, parameters = values.shape
    collection = Collection(values, ParameterLayout((("0.weight", (parameters,)),)))
    DpPg(models=models).publish(collection, Budget(_EPSILON), rng=Reproducible(0))


def _grown(parameters: int, models: int) -> float:
    """Megabytes that publishing adds, in a process of its own."""
    values = _values(parameters, models)
    _publish(values[:, :1000])
    return memory.added(lambda: _publish(values))


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

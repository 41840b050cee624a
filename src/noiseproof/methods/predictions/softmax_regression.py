"""Softmax regression solved to a stated gradient norm: how far its minimiser can be from what is returned is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress

_ROUNDS = 60
_ITERATIONS = 30
_ENTRIES = 1 << 26
"""Mapped features that are kept in memory (half a gigabyte); beyond that they are mapped again for every step."""


@dataclass(frozen=True)
class Solution:
    """Weights (features, classes), and the norm of the objective's gradient there."""

    weights: torch.Tensor
    gradient: float
    steps: int


def solve(
    features: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    *,
    regularisation: float,
    gradient: float,
    feature_map: Callable[[torch.Tensor], torch.Tensor],
    progress: Progress = SILENT,
) -> Solution:
    """Minimise `sum of cross-entropies + regularisation / 2 * ||W||^2` until the gradient's norm is below `gradient`.

    The objective is `regularisation`-strongly convex, so the solution is within `gradient / regularisation` of the
    minimiser. If the norm is not reached there is no such bound and nothing is returned. In float64, by L-BFGS.

    Formal guarantee
    ----------------
    None by itself: the weights are exact. A sum, not a mean, so that the objective of neighbours differs in one term
    whatever the number of records is.
    """
    if not (math.isfinite(regularisation) and regularisation > 0):
        raise SettingError(f"regularisation must be a finite number greater than 0, not {regularisation}.")
    objective = _Objective(features, labels, regularisation, feature_map)
    weights = torch.zeros(objective.width, classes, dtype=torch.float64, device=features.device)
    with progress.task("softmax regression", _ROUNDS) as task:
        found = Solution(weights, float(torch.linalg.vector_norm(objective.at(weights)[1])), 0)
        for _ in range(_ROUNDS):
            if found.gradient <= gradient:
                return found
            improved = _quasi_newton(objective, found)
            # Line searches compare values, whose last digits say nothing more about the gradient at some point.
            before, found = found, improved if improved.gradient < found.gradient / 2 else _newton(objective, found)
            task.advance(gradient=found.gradient)
            if found is before:
                break  # no step makes the gradient smaller: that is as far as float64 goes
    raise NoiseproofError(
        f"the regression did not come to a gradient below {gradient:.3g}, so nothing is proven of it and nothing is "
        "released; raise the regularisation or the tolerance."
    )


def _quasi_newton(objective: _Objective, start: Solution) -> Solution:
    """Some steps of L-BFGS."""
    weights = start.weights.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=_ITERATIONS,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        history_size=_ITERATIONS,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        value, weights.grad = objective.at(weights.detach())
        return value

    optimizer.step(closure)
    end = weights.detach()
    return Solution(end, float(torch.linalg.vector_norm(objective.at(end)[1])), start.steps + _ITERATIONS)


def _newton(objective: _Objective, start: Solution) -> Solution:
    """One Newton step by conjugate gradients, as long as makes the gradient smaller: for the last digits."""
    _, slope = objective.at(start.weights)
    direction, residual = torch.zeros_like(slope), -slope
    search, square = residual, residual.square().sum()
    enough = 1e-6 * square
    for _ in range(4 * _ITERATIONS):
        if square <= enough:
            break
        image = objective.curvature(start.weights, search)
        length = square / (search * image).sum()
        direction, residual = direction + length * search, residual - length * image
        before, square = square, residual.square().sum()
        search = residual + square / before * search
    for halvings in range(20):
        end = start.weights + direction / 2**halvings
        norm = float(torch.linalg.vector_norm(objective.at(end)[1]))
        if norm < start.gradient:
            return Solution(end, norm, start.steps + 1)
    return start


class _Objective:
    """The objective and its gradient, in bounded memory."""

    def __init__(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        regularisation: float,
        feature_map: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._map, self._regularisation = feature_map, regularisation
        self.width = feature_map(features[:1]).shape[1]
        rows = max(1, min(_ENTRIES // self.width, 1 << 14))
        self._parts = list(zip(features.split(rows), labels.split(rows), strict=True))
        self._kept: list[torch.Tensor] | None = None
        if len(features) * self.width <= _ENTRIES:
            self._kept = [feature_map(part) for part, _ in self._parts]

    def _mapped(self, index: int) -> torch.Tensor:
        return self._map(self._parts[index][0]) if self._kept is None else self._kept[index]

    def at(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The value and the gradient at `weights`."""
        value = self._regularisation / 2 * weights.square().sum()
        slope = self._regularisation * weights
        for index, (_, labels) in enumerate(self._parts):
            mapped = self._mapped(index)
            logs = torch.log_softmax(mapped @ weights, dim=1)
            value = value - logs.gather(1, labels[:, None]).sum()
            errors = logs.exp_()
            errors.scatter_add_(1, labels[:, None], torch.full_like(errors[:, :1], -1).expand(len(labels), 1))
            slope = slope.addmm(mapped.T, errors)
        return value, slope

    def curvature(self, weights: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """The second derivative at `weights`, applied to a direction."""
        image = self._regularisation * direction
        for index in range(len(self._parts)):
            mapped = self._mapped(index)
            shares = torch.softmax(mapped @ weights, dim=1)
            moved = shares * (mapped @ direction)
            image = image.addmm(mapped.T, moved - shares * moved.sum(1, keepdim=True))
        return image

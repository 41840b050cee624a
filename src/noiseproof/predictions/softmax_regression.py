"""Softmax regression solved to a stated gradient norm: how far its minimiser can be from what is returned is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress

_ROUNDS = 40
_ITERATIONS = 25
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
    weights = torch.zeros(objective.width, classes, dtype=torch.float64, device=features.device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=_ITERATIONS,
        max_eval=2 * _ITERATIONS,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        history_size=30,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        value, slope = objective.at(weights.detach())
        weights.grad = slope
        return value

    with progress.task("softmax regression", _ROUNDS) as task:
        for turn in range(_ROUNDS):
            norm = float(torch.linalg.vector_norm(objective.at(weights.detach())[1]))
            if norm <= gradient:
                return Solution(weights.detach(), norm, turn * _ITERATIONS)
            optimiser.step(closure)
            task.advance(gradient=norm)
    raise NoiseproofError(
        f"the regression did not come to a gradient below {gradient:.3g} in {_ROUNDS * _ITERATIONS} steps, so nothing is "
        "proven of it and nothing is released; raise the regularisation or the tolerance."
    )


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

    def at(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The value and the gradient at `weights`."""
        value = self._regularisation / 2 * weights.square().sum()
        slope = self._regularisation * weights
        for index, (part, labels) in enumerate(self._parts):
            mapped = self._map(part) if self._kept is None else self._kept[index]
            logits = mapped @ weights
            logs = torch.log_softmax(logits, dim=1)
            value = value - logs.gather(1, labels[:, None]).sum()
            errors = logs.exp_()
            errors.scatter_add_(1, labels[:, None], torch.full_like(errors[:, :1], -1).expand(len(labels), 1))
            slope = slope.addmm(mapped.T, errors)
        return value, slope

"""logits: softmax regression on public features, with noise on every class's logit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.predictions.answers import Answer, Moves, least_noise
from noiseproof.methods.predictions.games import logits_game
from noiseproof.methods.predictions.scores import BoundedMap, MapName, ScoreMethod, ScoreRelease
from noiseproof.methods.predictions.softmax_regression import solve
from noiseproof.progress import SILENT, Progress
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Game, Randomness
    from noiseproof.privacy.budget import Neighbours
    from noiseproof.releases.release import Saved


_LENGTH = 1 + 1e-9
"""The mapped features' norm, with room for the rounding of their normalisation."""


@register
@dataclass(frozen=True)
class Logits(ScoreMethod):
    """Softmax regression on a public feature map; a record's pull on a logit is bounded, and every logit gets noise.

    The network is not used: what is trained is one linear layer on `features`. The regularisation follows from the
    budget: it is what makes the noise on a logit `noise` large.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for all of the budget's queries together, which may be chosen adaptively; pure epsilon for a
    single one that is answered by a label. Unit: record. Neighbours: add-or-remove or replace-one, as the budget says.

    The objective is F(W) = sum of cross-entropies + (L/2) ||W||^2, L-strongly convex. A record's gradient is
    (p - e_y) phi^T, of norm at most sqrt(2) ||phi||, and ||phi|| <= 1. So adding or removing a record moves the
    minimiser by at most sqrt(2) / L, replacing one by at most 2 sqrt(2) / L, and what is returned, where the gradient's
    norm is at most g, by 2 g / L more (Chaudhuri, Monteleoni and Sarwate 2011). A query's logits W^T phi(x) move by as much
    in L2 norm, hence any two of them apart by at most sqrt(2) times it. Noise on *all* logits then is the Gaussian or
    Laplace mechanism, and choosing a label the exponential mechanism (`answers`). The sum, not the mean, keeps the
    number of records out of the objective; with L = lambda n, replace-one is the usual 2 sqrt(2) / (lambda n).
    """

    name: ClassVar[str] = "logits"
    takes_network: ClassVar[bool] = False
    assumptions: ClassVar[tuple[str, ...]] = (
        "the regression was solved to the stated gradient norm, which was checked in float64",
        "the feature map and the regularisation were not chosen by looking at the private records",
    )

    features: MapName = "auto"
    noise: float = 0.25
    """The noise's standard deviation on a logit; it sets the regularisation, unless that is given."""
    regularisation: float | None = None
    """L of the objective; None derives it from `noise` and the budget, at least 0.1."""
    tolerance: float = 1e-3
    """The gradient's norm at which the solution is taken, in units of one record's largest gradient."""
    width: int = 1000
    length: float = 0.6
    """Number of random Fourier features and their kernel's length scale, for `features="fourier"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise", "tolerance", "regularisation"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingError(f"logits's setting {name} must be a finite number greater than 0, not {value}.")

    def moves(self, regularisation: float, neighbours: Neighbours, classes: int) -> Moves:
        """How far one record moves a query's logits."""
        records = 2 if neighbours == "replace-one" else 1
        l2 = math.sqrt(2) * _LENGTH**2 * (records + 2 * self.tolerance) / regularisation
        return Moves(l1=math.sqrt(classes) * l2, l2=l2, span=math.sqrt(2) * l2, neighbours=neighbours)

    def planned(self, budget: Budget, classes: int) -> tuple[float, Answer]:
        """The regularisation and the answers' noise, from public numbers alone."""
        if self.regularisation is not None:
            chosen = self.regularisation
        else:
            # Noise is in inverse proportion to the regularisation: one look at any of them is enough.
            unit = least_noise(self.moves(1.0, budget.neighbours, classes), self.answer, budget)
            chosen = max(unit.spread / self.noise, 0.1)
        return chosen, least_noise(self.moves(chosen, budget.neighbours, classes), self.answer, budget)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> LogitsRelease:
        """Solve the regression; refuse to release it if the solver did not come close enough to the minimiser."""
        feature_map = BoundedMap(self.features, dataset.public.shape, self.width, self.length)
        regularisation, answer = self.planned(budget, dataset.classes)
        device = default_device()
        solution = solve(
            dataset.features.to(device),
            dataset.labels.to(device),
            dataset.classes,
            regularisation=regularisation,
            gradient=math.sqrt(2) * self.tolerance,
            feature_map=feature_map,
            progress=progress,
        )
        card = self.score_card(
            dataset,
            budget,
            rng,
            answer,
            {
                "standard deviation on a logit": answer.spread,
                "regularisation": regularisation,
                "gradient norm": solution.gradient,
                "gradient norm allowed": math.sqrt(2) * self.tolerance,
                "features": feature_map.chosen,
            },
        )
        return LogitsRelease(
            Regression(solution.weights.cpu(), feature_map),
            answer,
            card,
            dataset.public,
            self.settings(),
            queries=budget.queries,
            rng=rng,
        )

    def game(self, budget: Budget) -> Game:
        """One more record whose gradient is as large as a gradient can be, and its own answer."""
        return logits_game(self, budget)


@dataclass(frozen=True)
class Regression:
    """A solved regression: its weights, (features, classes), and the map before it."""

    weights: torch.Tensor
    feature_map: BoundedMap


class LogitsRelease(ScoreRelease[Regression]):
    """Answers of a secret softmax regression."""

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        return self._secret.feature_map(features) @ self._secret.weights

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        return torch.softmax(noised, dim=1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The secret weights: the bundle stays on the trusted side."""
        return {"weights": self._secret.weights}

    def description(self) -> dict[str, Any]:
        """The queries that are gone, the noise, and the feature map."""
        chosen = self._secret.feature_map
        return {
            **super().description(),
            "map": {"name": chosen.name, "width": chosen.width, "length": chosen.length},
        }

    @classmethod
    def _restored(cls, saved: Saved) -> Regression:
        chosen = saved.description["map"]
        feature_map = BoundedMap(chosen["name"], saved.public.shape, chosen["width"], chosen["length"])
        return Regression(saved.tensors["weights"], feature_map)

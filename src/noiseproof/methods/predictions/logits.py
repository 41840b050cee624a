"""logits: a linear layer on public features, solved to a stated gradient norm, with noise on every class's logit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import nn

from noiseproof.data import Dataset, Public
from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive
from noiseproof.methods.predictions.answers import Answer, ScoreChange, least_noise
from noiseproof.methods.predictions.scores import ScoreMethod, ScoreRelease
from noiseproof.methods.predictions.votes import unit
from noiseproof.privacy import Budget, Game, Neighbours, Randomness
from noiseproof.progress import SILENT, Progress
from noiseproof.tensors import default_device

_LENGTH = 1 + 1e-9
"""The mapped features' norm, with room for the rounding of their normalisation."""

_FEW, _SHORT = 10_000, 0.4
"""Below so many records random Fourier features get this length scale."""

_HEARD = 100
"""Fewer records of each class than this times an answer's noise, in records, are heard better by the tangent."""

MapName = Literal["auto", "raw", "centred", "fourier", "scattering"]
"""`raw`: the features themselves. `centred`: less their own mean. `fourier`: random Fourier features. `scattering`: wavelets,
for pictures."""

LossName = Literal["auto", "softmax", "tangent"]
"""`softmax`: cross-entropy. `tangent`: its tangent at 0."""


@dataclass(frozen=True)
class BoundedMap:
    """A named map, float64, no longer than 1: longer vectors are shortened to length 1.

    `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `fourier` for up to 128 features
    and `raw` for more (random Fourier features of many sparse bits need to be very many): the shape, which is public,
    decides.

    Formal guarantee
    ----------------
    None is needed: a record's features depend on that record and on public numbers alone.
    """

    name: MapName
    shape: tuple[int, ...]
    width: int = 1000
    length: float = 0.6
    """Of `fourier`: number of features, and the kernel's length scale between records of norm 1."""

    def __post_init__(self) -> None:
        if self.name not in get_args(MapName) or self.width < 1 or not self.length > 0:
            raise SettingError(f"there is no feature map {self.name!r} of width {self.width} and length {self.length}.")
        self._map().shape(self.shape)  # refuses shapes that the map cannot take

    @property
    def chosen(self) -> MapName:
        """The map that `auto` stands for."""
        if self.name != "auto":
            return self.name
        picture = len(self.shape) == 3 and min(self.shape[1:]) >= 16 and not any(side % 4 for side in self.shape[1:])
        if picture:
            return "scattering"
        return "fourier" if math.prod(self.shape) <= 128 else "raw"

    def _map(self) -> FeatureMap:
        if self.chosen in ("raw", "centred"):
            return UnitNormMap()
        if self.chosen == "fourier":
            return Chain((UnitNormMap(), RandomFourierMap(self.width, self.length)))
        return Chain((ScatteringMap(), GroupNormMap(), UnitNormMap()))

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """The mapped records, (records, width) in float64."""
        mapped = unit(features, centred=True) if self.chosen == "centred" else self._map()(features.float())
        mapped = mapped.double()
        norms = torch.linalg.vector_norm(mapped, dim=1, keepdim=True)
        # What is not finite counts as nothing: one record must not keep the regression from being solved.
        return (mapped / norms.clamp(min=1.0)).nan_to_num_(0.0, 0.0, 0.0)


class LogitsRelease(ScoreRelease):
    """Answers of a secret softmax regression."""

    @cached_property
    def _map(self) -> BoundedMap:
        return BoundedMap(shape=self.public.shape, **self._facts["map"])

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        return self._map(features) @ self._tensors["weights"]

    def _probabilities(self, noised: torch.Tensor) -> torch.Tensor:
        return super()._probabilities(noised) if self.public.task == "classification" else (noised + 0.5).clamp(0, 1)


@register
@dataclass(frozen=True)
class Logits(ScoreMethod):
    """Softmax regression on a public feature map; a record's pull on a logit is bounded, and every logit gets noise.

    The network is not used: what is trained is one linear layer on `features`. The regularisation follows from the
    budget: it is what makes the noise on a logit `noise` large.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for all of the budget's queries together, which may be chosen adaptively; pure epsilon for a
    single one that is answered by a label. Unit: record, or person. Neighbours: add-or-remove or replace-one, as the budget says.

    The objective is F(W) = sum of cross-entropies + (L/2) ||W||^2, L-strongly convex. A record's gradient is
    (p - e_y) phi^T, of norm at most sqrt(2) ||phi||, and ||phi|| <= 1. So adding or removing a record moves the
    minimiser by at most sqrt(2) / L, replacing one by at most 2 sqrt(2) / L, and what is returned, where the gradient's
    norm is at most g, by 2 g / L more (Chaudhuri, Monteleoni and Sarwate 2011). A query's logits W^T phi(x) move by as much
    in L2 norm, hence any two of them apart by at most sqrt(2) times it. With `loss="tangent"` the cross-entropy is replaced
    by its tangent at 0, so that a record's gradient is (1/c - e_y) phi^T wherever W is, for c classes: it moves a query's
    logits by at most sqrt(1 - 1/c) / L, and any two of them apart by 1 / L, half as far. Noise on *all* logits then is the
    Gaussian or Laplace mechanism, and choosing a label the exponential mechanism (`answers`). Where records have persons, a
    person's terms are weighted to count for one in all, so that all of this holds of a person. The sum, not the mean, keeps the
    number of records out of the objective; with L = lambda n, replace-one is the usual 2 sqrt(2) / (lambda n).

    Of a number, coded to [0, 1], the losses are Huber's of w^T phi + 1/2 - y, linear from 1 on, so that a record's gradient
    has norm at most ||phi||; one number is answered, which a record moves by 1 / L (2 / L where one is replaced), and
    by 2 g / L more.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("logits", records, epsilon=3, queries=10, answer="probabilities")
        >>> release.card.verdict
        'proven'
        >>> release.predict(torch.rand(3, 4)).shape, release.queries_left
        (torch.Size([3, 2]), 7)
    """

    name: ClassVar[str] = "logits"
    takes_network: ClassVar[bool] = False
    release: ClassVar[type[ScoreRelease]] = LogitsRelease
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    assumptions: ClassVar[tuple[str, ...]] = (
        "the regression was solved to the stated gradient norm, which was checked in float64",
        "that it can be solved so far, without which nothing is released, does not hang on one record",
        "the feature map and the regularisation were not chosen by looking at the private records",
        "the number of records, which the card states, is public",
    )

    features: MapName = "auto"
    """The public map of records: `raw`, `centred` (less their own mean), `fourier` (random Fourier features) or `scattering`
    (wavelets, for pictures). `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `raw` for
    more than 128 features, else `fourier`, or `centred` where the loss is the tangent and records are no pictures."""
    loss: LossName = "auto"
    """`softmax`: cross-entropy. `tangent`: its tangent at 0, whose minimiser are sums of records, and which a record moves half
    as far. `auto`: the tangent for three classes and more with few records, fewer of each than 100 times an answer's noise."""
    noise: Positive = 0.25
    """The noise's standard deviation on a logit; it sets the regularisation, unless that is given. On a number, coded to
    [0, 1], it is a fifth of that."""
    regularisation: Positive | None = None
    """L of the objective; None derives it from `noise` and the budget, at least 0.1."""
    tolerance: Positive = 1e-3
    """The gradient's norm at which the solution is taken, in units of one record's largest gradient."""
    width: Count = 1000
    """Number of random Fourier features, for `features="fourier"`."""
    length: Positive = 0.6
    """Length scale of their Gaussian kernel, between records of norm 1."""

    def for_records(self, records: int, public: Public) -> Self:
        """A shorter kernel for few records: L is large for them, and what is left are the classes' means, apart in it."""
        suited = super().for_records(records, public)
        return replace(suited, length=_SHORT) if records < _FEW and public.task == "classification" else suited

    def suited(self, budget: Budget, public: Public, records: int) -> Self:
        """With loss and features in place of `auto`, by public numbers alone.

        Two classes keep the softmax: sums of records answer the larger class wherever the other is much smaller.
        """
        if public.task != "classification":
            return self
        noise = least_noise(ScoreChange(1.0, 1.0, 1.0, budget.neighbours), "label", budget).spread
        few = records < _HEARD * noise * len(public.classes)
        loss, features = self.loss, self.features
        if loss == "auto":
            loss = "tangent" if few and len(public.classes) > 2 else "softmax"
        if features == "auto":
            chosen = BoundedMap("auto", public.shape).chosen
            features = "centred" if loss == "tangent" and chosen == "fourier" and public.kind != "image" else chosen
        return replace(self, loss=loss, features=features)

    def score_change(
        self, regularisation: float, neighbours: Neighbours, classes: int, *, numeric: bool = False
    ) -> ScoreChange:
        """How far one record moves a query's logits, or its number."""
        records = 2 if neighbours == "replace-one" else 1
        each = _LENGTH**2 / regularisation
        steepest = self._steepest(classes, numeric=numeric)
        l2 = steepest * records * each
        l1, span = math.sqrt(classes) * l2, math.sqrt(2) * l2
        if numeric:
            l1 = span = l2
        elif self.loss == "tangent":
            l1, span = 2 * (1 - 1 / classes) * records * each, records * each
        # Each of two solutions is so far from its minimiser, in any direction.
        left = 2 * self.tolerance * steepest * each
        more = (1.0, 1.0) if numeric else (math.sqrt(classes), math.sqrt(2))
        return ScoreChange(l1=l1 + more[0] * left, l2=l2 + left, span=span + more[1] * left, neighbours=neighbours)

    def _steepest(self, classes: int, *, numeric: bool = False) -> float:
        """The largest norm of a loss's gradient in the outputs: of cross-entropy, its tangent, or Huber's loss."""
        if numeric:
            return 1.0
        return math.sqrt(1 - 1 / classes) if self.loss == "tangent" else math.sqrt(2)

    def planned(self, budget: Budget, classes: int, *, numeric: bool = False) -> tuple[float, Answer]:
        """The regularisation and the answers' noise, from public numbers alone."""

        def answer(regularisation: float) -> Answer:
            change = self.score_change(regularisation, budget.neighbours, classes, numeric=numeric)
            return least_noise(change, "probabilities" if numeric else self.answer, budget)

        chosen = self.regularisation
        if chosen is None:
            # Noise is in inverse proportion to the regularisation: one look at any of them is enough.
            chosen = max(answer(1.0).spread / (self.noise / 5 if numeric else self.noise), 0.1)
        return chosen, answer(chosen)

    def fit(
        self, network: object, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> LogitsRelease:
        """Solve the regression; refuse to release it if the solver did not come close enough to the minimiser."""
        made = self.suited(budget, dataset.public, dataset.persons)
        facts = {"name": made.features, "width": self.width, "length": self.length}
        feature_map = BoundedMap(shape=dataset.public.shape, **facts)  # type: ignore[arg-type]
        numeric = dataset.public.task != "classification"
        regularisation, answer = made.planned(budget, dataset.classes, numeric=numeric)
        gradient = made._steepest(dataset.classes, numeric=numeric) * self.tolerance
        device = default_device()
        solution = solve(
            dataset.features.to(device),
            dataset.labels.to(device),
            dataset.outputs,
            regularisation=regularisation,
            gradient=gradient,
            feature_map=feature_map,
            weights=dataset.weights,
            tangent=made.loss == "tangent",
            progress=progress,
        )
        ran = {
            "standard deviation on a logit": answer.spread,
            "regularisation": regularisation,
            "gradient norm at most": gradient,
            "features": feature_map.chosen,
            "loss": "huber" if numeric else made.loss,
        }
        weights = {"weights": solution.weights.cpu()}
        return self._release(weights, answer, dataset, budget, rng, ran, facts={"map": facts})

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A record of the other class, with features of norm 1 that one more record has, and an answer to them.

        Where the loss is left open, the tangent is played, which the record moves by all that is proven.
        """
        played = replace(self, loss="tangent") if self.loss == "auto" else self
        what = f"a record against another, {played.loss}"
        return played._record_game(what, torch.tensor([[1.0, 0.0]]), budget, canaries)


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
    weights: torch.Tensor | None = None,
    tangent: bool = False,
    progress: Progress = SILENT,
) -> Solution:
    """Minimise `sum of (weighted) cross-entropies + regularisation / 2 * ||W||^2` until the gradient's norm is below `gradient`.

    With `tangent`, of what the cross-entropies' tangents at 0 are in their place.

    The objective is `regularisation`-strongly convex, so the solution is within `gradient / regularisation` of the
    minimiser. If the norm is not reached there is no such bound and nothing is returned. In float64, by L-BFGS.

    Formal guarantee
    ----------------
    None by itself: the weights are exact. A sum, not a mean, so that the objective of neighbours differs in one term
    whatever the number of records is.
    """
    objective = _Objective(features, labels, regularisation, feature_map, weights, tangent)
    start = torch.zeros(objective.width, classes, dtype=torch.float64, device=features.device)
    with progress.task("softmax regression", _ROUNDS) as task:
        found = Solution(start, float(torch.linalg.vector_norm(objective.at(start)[1])), 0)
        for _ in range(_ROUNDS):
            if found.gradient <= gradient:
                return found
            improved = _quasi_newton(objective, found)
            # Line searches compare values, whose last digits say nothing more about the gradient at some point.
            before, found = found, improved if improved.gradient < found.gradient / 2 else _newton(objective, found)
            task.advance()
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
        weights: torch.Tensor | None = None,
        tangent: bool = False,
    ) -> None:
        self._map, self._regularisation, self._tangent = feature_map, regularisation, tangent
        self.width = feature_map(features[:1]).shape[1]
        rows = max(1, min(_ENTRIES // self.width, 1 << 14))
        self._parts = list(zip(features.split(rows), labels.split(rows), strict=True))
        self._weights = None if weights is None else weights.to(features.device)[:, None].split(rows)
        self._kept: list[torch.Tensor] | None = None
        if len(features) * self.width <= _ENTRIES:
            self._kept = [feature_map(part) for part, _ in self._parts]

    def _mapped(self, index: int) -> torch.Tensor:
        return self._map(self._parts[index][0]) if self._kept is None else self._kept[index]

    def _counted(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """The rows of a part's records, each times what the record counts for."""
        return rows if self._weights is None else rows * self._weights[index]

    def at(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The value and the gradient at `weights`."""
        value = self._regularisation / 2 * weights.square().sum()
        slope = self._regularisation * weights
        for index, (_, labels) in enumerate(self._parts):
            mapped = self._mapped(index)
            if labels.is_floating_point():
                residuals = (mapped @ weights + 0.5).sub(labels.double()[:, None])
                value = value + nn.functional.huber_loss(residuals, torch.zeros_like(residuals), reduction="sum")
                slope = slope.addmm(mapped.T, residuals.clamp(-1, 1))
                continue
            logits = mapped @ weights
            if self._tangent:
                errors = torch.full_like(logits, 1 / logits.shape[1])
                errors -= nn.functional.one_hot(labels, logits.shape[1])
                errors = self._counted(index, errors)
                value = value + (errors * logits).sum()
                slope = slope.addmm(mapped.T, errors)
                continue
            logs = torch.log_softmax(logits, dim=1)
            value = value - self._counted(index, logs.gather(1, labels[:, None])).sum()
            errors = logs.exp_()
            errors.scatter_add_(1, labels[:, None], torch.full_like(errors[:, :1], -1).expand(len(labels), 1))
            errors = self._counted(index, errors)
            slope = slope.addmm(mapped.T, errors)
        return value, slope

    def curvature(self, weights: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        """The second derivative at `weights`, applied to a direction."""
        image = self._regularisation * direction
        for index in range(0 if self._tangent else len(self._parts)):
            mapped = self._mapped(index)
            labels = self._parts[index][1]
            if labels.is_floating_point():
                bent = (mapped @ weights + 0.5).sub(labels.double()[:, None]).abs() <= 1
                image = image.addmm(mapped.T, bent * (mapped @ direction))
                continue
            shares = torch.softmax(mapped @ weights, dim=1)
            moved = self._counted(index, shares * (mapped @ direction))
            image = image.addmm(mapped.T, moved - shares * moved.sum(1, keepdim=True))
        return image

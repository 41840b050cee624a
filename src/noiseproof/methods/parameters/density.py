"""The score of a parameter's values: the mass that their kernel density estimate has in a window around them.

    u(t) = mean_i [Phi((t + w/2 - theta_i) / b) - Phi((t - w/2 - theta_i) / b)]

for bandwidth b and window w (Mao et al. 2020, eq. 4 and 5), on a grid whose step divides the window.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal
from weakref import WeakKeyDictionary

import torch
from annotated_types import Ge, MultipleOf

from noiseproof.errors import SettingError
from noiseproof.methods.parameters.collection import Collection
from noiseproof.privacy import Exponential, Randomness
from noiseproof.progress import SILENT, Progress
from noiseproof.settings import NonNegative, Positive, check_fields

Resolution = Annotated[int, Ge(2), MultipleOf(2)]
"""Points of the grid in a window; an even number."""

BandwidthRule = Literal["scott", "sheather-jones"]
"""How a bandwidth is read off values: a multiple of their spread, or the one that suits the density's roughness."""

_ENTRIES = 25_600
"""Values that are worked on together: few enough for a core's cache to hold what is made of them."""
_REACH = 8.0
"""Bandwidths beyond which a normal kernel, and frequencies beyond which its transform, is 0 to 1e-14."""
_MOST_POINTS = 1 << 14
_FEW_MODELS = 20
"""Whose pairs are summed one by one."""
_HALVINGS = 14
"""Of the interval in which a bandwidth is looked for: to .01% of its width."""
_FOUND: WeakKeyDictionary[Collection, torch.Tensor] = WeakKeyDictionary()
"""Sheather and Jones's bandwidths of collections that were drawn from."""
FAR = -1e300
"""The score of what is not on a grid: finite, as the mechanism asks for, and so low that it is never drawn."""


def published_sensitivity(models: int) -> float:
    """The paper's du, 1 / (M (M - 1)), which corollary 1 states for windows below the bandwidth. It is too small.

    Args:
        models: M, how many networks there are, at least 2.

    Returns:
        The sensitivity that the paper scales its draws by.

    Raises:
        SettingError: If there are fewer than 2 models.

    Examples:
        >>> round(published_sensitivity(50), 5)
        0.00041
        >>> round(true_sensitivity(50, window=1.0) / published_sensitivity(50), 1)  # so many times too small
        18.8
    """
    _check_models(models)
    return 1 / (models * (models - 1))


def true_sensitivity(models: int, window: float) -> float:
    """What du really is: the largest change of a score when one of `models` is left out, or is exchanged for another.

    One model's kernel has at most erf(w / (2 sqrt 2 b)) of its mass in a window, and at
    least 0. The mean over M values without one of them differs by 1 / M of what that one has less the others' mean;
    exchanging one changes it by 1 / M of the difference. Both are at most, and where the others are far away just,
    erf(w / (2 sqrt 2 b)) / M.

    Args:
        models: M, how many networks there are, at least 2.
        window: The score's window in bandwidths, w / b.

    Returns:
        The sensitivity of the score.

    Raises:
        SettingError: If there are fewer than 2 models.

    Examples:
        >>> round(true_sensitivity(50, window=1.0), 5)
        0.00766
    """
    _check_models(models)
    return math.erf(window / (2 * math.sqrt(2))) / models


@dataclass(frozen=True)
class Grid:
    """For every coordinate the points that may be published: `low + g * step`, for g below `points`."""

    low: torch.Tensor
    step: torch.Tensor
    points: torch.Tensor

    def at(self, index: torch.Tensor) -> torch.Tensor:
        """The points of these numbers, one a coordinate."""
        return self.low + index * self.step


@dataclass(frozen=True, kw_only=True)
class Density(ABC):
    """How a slice of parameters is smoothed, and between which points a draw may choose."""

    window: Positive = 1.0
    """Of the score, in bandwidths."""
    resolution: Resolution = 4
    """Points of the grid in a window; an even number."""

    def __post_init__(self) -> None:
        check_fields("density", self)

    @abstractmethod
    def grid(self, values: torch.Tensor, known: torch.Tensor | None = None) -> tuple[Grid, torch.Tensor]:
        """The grid and the bandwidth of each coordinate of values (coordinates, models); a bandwidth of 0 says that
        the coordinate is the same in all models. What is `known` of the bandwidths is not found again."""

    def known(self, collection: Collection) -> torch.Tensor | None:
        """Bandwidths of all coordinates, where finding them takes longer than drawing; None: `grid` finds them."""
        return None


@dataclass(frozen=True, kw_only=True)
class FittedDensity(Density):
    """The paper's: bandwidth and range are read off each coordinate's values.

    Formal guarantee
    ----------------
    None: grid and bandwidth depend on the networks, and draws from them tell of both.

    Examples:
        >>> import torch
        >>> values = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)  # one coordinate of four networks
        >>> grid, bandwidth = FittedDensity().grid(values)
        >>> round(float(bandwidth), 3), int(grid.points)
        (0.978, 37)
    """

    tail: NonNegative = 3.0
    """How far the grid reaches below the smallest and above the largest value, in bandwidths."""
    bandwidth: Positive | BandwidthRule = "scott"
    """A rule for each coordinate, `scott` (M^(-1/5) standard deviations) or `sheather-jones`, which the paper cites; or one
    number for all."""

    def known(self, collection: Collection) -> torch.Tensor | None:
        """Sheather and Jones's bandwidths, found once for all draws from a collection."""
        if self.bandwidth != "sheather-jones":
            return None
        if collection not in _FOUND:
            parts = collection.rows.split(_BLOCK, dim=1)
            _FOUND[collection] = torch.cat([sheather_jones(part.double().t().contiguous()) for part in parts])
        return _FOUND[collection]

    def grid(self, values: torch.Tensor, known: torch.Tensor | None = None) -> tuple[Grid, torch.Tensor]:
        """From the smallest to the largest value and a tail, in steps of window / resolution bandwidths."""
        low, high = values.amin(1), values.amax(1)
        width = torch.where(high > low, self._bandwidths(values) if known is None else known, 0.0)
        step = width * (self.window / self.resolution)
        low = low - self.tail * width
        count = torch.where(step > 0, (high + self.tail * width - low) / step, 0.0)
        if bool((count > _MOST_POINTS).any()):
            raise SettingError(
                f"a bandwidth of {self.bandwidth} is too small for the spread of these parameters; leave it out for "
                "Scott's rule, or choose a larger one."
            )
        # The last point is not beyond the tail: a hair is added for counts that rounding leaves just below a number.
        return Grid(low, step, (count + 1e-9).floor().long() + 1), width

    def _bandwidths(self, values: torch.Tensor) -> torch.Tensor:
        if self.bandwidth == "scott":
            return values.std(1) * values.shape[1] ** -0.2
        if self.bandwidth == "sheather-jones":
            return sheather_jones(values)
        return values.new_full(values.shape[:1], self.bandwidth)


def sheather_jones(values: torch.Tensor) -> torch.Tensor:
    """The bandwidth of Sheather and Jones (1991) for each row of values, by solving their equation.

    The equation asks for sums over all pairs of derivatives of a normal kernel, which a Fourier series gives where the pairs
    are many.

    Args:
        values: Samples of float64, (coordinates, models), at least 2 models.

    Returns:
        One bandwidth a coordinate, between a tenth of Scott's upper bound and that bound; 0 where all values are equal.

    >>> import torch
    >>> normal = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(50) + 0.5) / 50).double()
    >>> [round(float(b), 2) for b in sheather_jones(torch.stack([normal, 10 * normal]))]
    [0.51, 5.11]
    """
    models = values.shape[1]
    low, high = values.amin(1), values.amax(1)
    spread = high - low
    unit = torch.where(spread > 0, spread, 1.0)
    places = (values - low[:, None]) / unit[:, None]
    quartiles = torch.quantile(places, values.new_tensor([0.25, 0.75]), dim=1)
    deviation, inner = places.std(1), (quartiles[1] - quartiles[0]) / 1.349
    scale = torch.where(inner > 0, torch.minimum(deviation, inner), deviation).clamp_min(1e-3)
    # Small scales take many waves: coordinates of like scales are worked on together.
    order = scale.argsort()
    found = torch.empty_like(scale)
    for part in order.split(max(1, _ENTRIES // models)):
        found[part] = _solved(places[part], scale[part])
    return torch.where(spread > 0, found * unit, 0.0)


def _solved(places: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Sheather and Jones's bandwidths of values in [0, 1] of these scales, by halving."""
    models = places.shape[1]
    roughness = (_pairs if models <= _FEW_MODELS else _series)(places, scale)
    ratio = roughness(1.24 * scale * models ** (-1 / 7), 4) / roughness(1.23 * scale * models ** (-1 / 9), 6)
    pilot, constant = 1.357 * ratio ** (1 / 7), 1 / (2 * math.sqrt(math.pi) * models)
    above = 1.144 * scale * models**-0.2
    below = 0.1 * above
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        too_small = (constant / roughness(pilot * middle ** (5 / 7), 4)) ** 0.2 > middle
        below, above = torch.where(too_small, middle, below), torch.where(too_small, above, middle)
    return (below + above) / 2


_Roughness = Callable[[torch.Tensor, int], torch.Tensor]
"""Of a bandwidth and 4 or 6: the sum over pairs of the kernel's derivative of that order, without its sign, over M (M - 1)."""


def _pairs(places: torch.Tensor, scale: torch.Tensor) -> _Roughness:
    models = places.shape[1]
    first, second = torch.triu_indices(models, models, 1)
    apart = (places[:, first] - places[:, second]).square()

    def roughness(width: torch.Tensor, order: int) -> torch.Tensor:
        u = apart / width.square()[:, None]
        if order == 4:
            polynomial, alone = (u - 6).mul_(u).add_(3), 3
        else:
            polynomial, alone = (15 - u).mul_(u).sub_(45).mul_(u).add_(15), 15
        total = 2 * u.mul_(-0.5).exp_().mul_(polynomial).sum(1) + models * alone
        return total / (models * (models - 1) * math.sqrt(2 * math.pi) * width ** (order + 1))

    return roughness


def _series(places: torch.Tensor, scale: torch.Tensor) -> _Roughness:
    """By Fourier's series, whose terms are the squared absolute values of the sample's transform, for every bandwidth."""
    models = places.shape[1]
    # Pilot bandwidths are a few times smaller than the largest one at the least; waves beyond 9 of them are 0 to 1e-12.
    period = 1.0 + _REACH * float(scale.max())
    terms = math.ceil(9.0 * period / (2 * math.pi * 0.1 * float(scale.min())))
    waves = 2 * math.pi / period * torch.arange(1, terms + 1, dtype=places.dtype, device=places.device)[:, None]
    power = _sums(places * float(waves[0]), terms).reshape(terms, 2, -1).square().sum(1)
    minus_half, fourths = waves.square() / -2, power * waves**4

    def roughness(width: torch.Tensor, order: int) -> torch.Tensor:
        found = (minus_half * width.square()).exp_().mul_(fourths)
        if order == 6:
            found.mul_(waves.square())
        return found.sum(0) * (2 / (period * models * (models - 1)))

    return roughness


@dataclass(frozen=True)
class PublicDensity(Density):
    """A grid from -`radius` to `radius` and a bandwidth that are settings, and so tell nothing of any record.

    Formal guarantee
    ----------------
    None is needed: nothing of it depends on the networks, as long as its settings were not chosen by looking at them.

    Examples:
        >>> PublicDensity(radius=0.15, bandwidth=0.075, resolution=2).points
        9
    """

    radius: Positive
    """How far the grid reaches to both sides of 0, in units of a parameter."""
    bandwidth: Positive
    """The standard deviation of the normal kernels, in the same units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points > _MOST_POINTS:
            raise SettingError(f"a grid of {self.points} points is too fine; choose a larger bandwidth.")

    @property
    def points(self) -> int:
        """How many points the grid has: an odd number, with 0 in the middle."""
        return 2 * math.floor(self.radius / (self.bandwidth * self.window / self.resolution) + 1e-9) + 1

    def grid(self, values: torch.Tensor, known: torch.Tensor | None = None) -> tuple[Grid, torch.Tensor]:
        """The same for every coordinate, whatever the values."""
        shape = values.shape[:1]
        step = self.bandwidth * self.window / self.resolution
        return (
            Grid(
                values.new_full(shape, -(self.points // 2) * step),
                values.new_full(shape, step),
                torch.full(shape, self.points, device=values.device),
            ),
            values.new_full(shape, self.bandwidth),
        )


def scores(values: torch.Tensor, grid: Grid, width: torch.Tensor, density: Density) -> torch.Tensor:
    """u at every point of the grid, (coordinates, points), of float64 values (coordinates, models); `FAR` beyond its end.

    In bandwidths, a model's share of a score is a function of its distance from the point alone, and smooth: a Fourier
    series of some 40 terms over a period that no two of them are apart by has it to 1e-13. So the models are summed up
    in each term once, and the points come by one product of matrices, the same for all coordinates.
    """
    models, step = values.shape[1], density.window / density.resolution
    most = int(grid.points.max())
    last = (most - 1) * step
    far = _REACH + density.window / 2
    # A model that is too far from all points to count may stand nearer; else it would come round on the other side.
    places = (values - grid.low[:, None]) / torch.where(width > 0, width, 1.0)[:, None]
    places = torch.where((width > 0)[:, None], places, 0.0).clamp_(-far, last + far)
    period = max(last - float(places.min()), float(places.max())) + far
    terms = math.ceil(_REACH * period / (2 * math.pi))
    waves = 2 * math.pi / period * torch.arange(1, terms + 1, dtype=torch.float64, device=values.device)
    weights = 4 / (period * models) * torch.exp(-(waves**2) / 2) * torch.sin(waves * density.window / 2) / waves
    at = waves[:, None] * (step * torch.arange(most, dtype=torch.float64, device=values.device))
    table = (weights[:, None, None] * torch.stack([at.cos(), at.sin()], dim=1)).flatten(0, 1)
    found = torch.empty(len(values), most, dtype=torch.float64, device=values.device)
    rows = max(1, _ENTRIES // models)
    for part, out in zip(places.split(rows), found.split(rows), strict=True):
        torch.matmul(_sums(part * float(waves[0]), terms).T, table, out=out)
    found += density.window / period
    return found.masked_fill_(torch.arange(most, device=values.device) >= grid.points[:, None], FAR)


def _sums(angles: torch.Tensor, terms: int) -> torch.Tensor:
    """The sums over the models of cos(k a) and sin(k a) for k from 1 to `terms`, (2 terms, coordinates)."""
    angles = angles.t().contiguous()
    now = torch.stack([angles.cos(), angles.sin()])
    before = torch.stack([torch.ones_like(angles), torch.zeros_like(angles)])
    double = 2 * now[0]
    sums = torch.empty(terms, 2, angles.shape[1], dtype=angles.dtype, device=angles.device)
    torch.sum(now, 1, out=sums[0])
    for term in range(1, terms):
        # cos((k + 1) a) = 2 cos(a) cos(k a) - cos((k - 1) a), and the same for the sine.
        before.neg_().addcmul_(double, now)
        before, now = now, before
        torch.sum(now, 1, out=sums[term])
    return sums.flatten(0, 1)


def _check_models(models: int) -> None:
    if models < 2:
        raise SettingError(f"publishing needs at least 2 networks, not {models}.")


# The exponential mechanism's draw for every coordinate of a collection, in bounded memory.


_BLOCK = 1 << 11
"""Coordinates that are drawn together. Fixed: which random numbers a coordinate gets depends on it."""
_LEAST_EPSILON = 1e-6
"""Below it, what is beyond a grid's end would no longer be as good as impossible."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """One published value for each coordinate."""

    values: torch.Tensor
    fixed: int
    """How many coordinates are the same in all models, and so were published as they are."""
    points: int
    """How many points the longest grid had."""


def draw(
    collection: Collection,
    density: Density,
    mechanism: Exponential,
    rng: Randomness,
    *,
    columns: torch.Tensor | None = None,
    progress: Progress = SILENT,
) -> Drawn:
    """Draw every coordinate (or those at `columns`) with probability proportional to exp(epsilon u / 2 du).

    Formal guarantee
    ----------------
    One coordinate's draw is `mechanism.epsilon`-DP for one model if grid and bandwidth do not depend on the models
    (`PublicDensity`) and the mechanism's sensitivity is `true_sensitivity` at least; the draws of all coordinates are
    draws from the same models and compose. With a `FittedDensity` nothing is guaranteed: the models' range and spread
    decide what can be drawn. Scores are computed to some 1e-13 in float64, which is below the mechanism's own
    rounding. Neighbours: one model left out, or exchanged.
    """
    if mechanism.epsilon < _LEAST_EPSILON:
        raise SettingError(f"epsilon must be at least {_LEAST_EPSILON} to draw parameters by, not {mechanism.epsilon}.")
    count = collection.parameters if columns is None else len(columns)
    drawn = torch.empty(count, dtype=collection.rows.dtype, device=collection.rows.device)
    known = density.known(collection)
    if known is not None and columns is not None:
        known = known[columns]
    fixed = points = 0
    with progress.task("drawing parameters", count) as task:
        for start in range(0, count, _BLOCK):
            part = slice(start, min(start + _BLOCK, count))
            rows = collection.rows[:, part] if columns is None else collection.rows[:, columns[part]]
            values = rows.double().t().contiguous()
            grid, width = density.grid(values, None if known is None else known[part])
            chosen = mechanism.release(scores(values, grid, width, density), rng)
            drawn[part] = grid.at(chosen).to(drawn.dtype)
            fixed += int((width == 0).sum())
            points = max(points, int(grid.points.max()))
            task.advance(part.stop - part.start)
    return Drawn(drawn, fixed, points)

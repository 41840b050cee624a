"""Mechanisms: Gaussian, Laplace, exponential, noisy max and above-threshold. Each releases a value and says which event that was.

Where randomness rounds the value to a lattice, the scale of the noise is raised by as much as rounding adds to the
sensitivity (less than a millionth in most uses), so that the event is the same for every kind of randomness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy.budget import Neighbours, check_epsilon, check_neighbours
from noiseproof.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, PureDpEvent
from noiseproof.privacy.randomness import Randomness

_FINEST_EPSILON = 2.0**-30
_FAR = 1024.0


def _check_sensitivity(sensitivity: float) -> None:
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise SettingError(f"a sensitivity must be a finite number greater than 0, not {sensitivity}.")


def _scale(multiplier: float, sensitivity: float, rng: Randomness, coordinates: int, norm: Literal[1, 2]) -> float:
    """The least scale that is `multiplier` sensitivities, rounding to the lattice *of that scale* included."""
    scale = multiplier * sensitivity
    while True:
        needed = multiplier * (sensitivity + rng.rounding(scale, coordinates, norm))
        # A larger scale may have a coarser lattice; it doubles with the scale's exponent, so that this ends soon.
        if needed <= scale:
            return scale
        if needed > 2 * multiplier * sensitivity:
            raise SettingError(
                f"{coordinates} coordinates with noise of {multiplier} sensitivities are too many for the noise's "
                "lattice; release fewer at a time or add less noise."
            )
        scale = needed


@dataclass(frozen=True)
class Gaussian:
    """A vector plus normal noise of `sigma` sensitivities on every coordinate.

    Formal guarantee
    ----------------
    If neighbours' values differ by at most `sensitivity` in L2 norm, the release is the Gaussian mechanism with noise
    multiplier `sigma`: `event`, whose (epsilon, delta) an accountant gives; rho = 1 / 2 sigma^2 in zCDP. Unit and
    neighbours are those of the sensitivity. Assumptions: the randomness's. Reference: Dwork and Roth 2014, appendix A;
    Balle and Wang 2018.

    Raises:
        SettingError: If a setting is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Gaussian, Secure, accountants
        >>> mechanism = Gaussian(sensitivity=1.0, sigma=5.0)
        >>> noisy = mechanism.release(torch.tensor([120.0, 80.0]), Secure())  # counts; a record is in one of them
        >>> round(accountants.epsilon(mechanism.event, delta=1e-5).epsilon, 2)
        0.73
    """

    sensitivity: float
    """How far apart the values of two neighbours are at most, in L2 norm."""
    sigma: float
    """The noise's standard deviation in sensitivities: the noise multiplier."""

    def __post_init__(self) -> None:
        _check_sensitivity(self.sensitivity)
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise SettingError(f"sigma must be a finite number greater than 0, not {self.sigma}.")

    @property
    def event(self) -> DpEvent:
        """What one release is, for accountants."""
        return GaussianDpEvent(self.sigma)

    def scale(self, rng: Randomness, coordinates: int) -> float:
        """The noise's standard deviation for a vector of `coordinates`, perhaps released in several tensors."""
        return _scale(self.sigma, self.sensitivity, rng, coordinates, 2)

    def release(self, value: torch.Tensor, rng: Randomness, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The whole of `value` with noise, in `out` (which may be `value`) where that is given."""
        return rng.add_gaussian(value, self.scale(rng, value.numel()), out=out)


@dataclass(frozen=True)
class Laplace:
    """A vector plus Laplace noise that makes its release `epsilon`-DP.

    Formal guarantee
    ----------------
    If neighbours' values differ by at most `sensitivity` in L1 norm, the release is `epsilon`-DP, and the Laplace
    mechanism with noise multiplier 1 / epsilon: `event`. Unit and neighbours are those of the sensitivity.
    Assumptions: the randomness's. Reference: Dwork, McSherry, Nissim and Smith 2006.

    Raises:
        SettingError: If a setting is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Laplace, Secure
        >>> mechanism = Laplace(sensitivity=1.0, epsilon=0.5)
        >>> noisy = mechanism.release(torch.tensor([120.0, 80.0]), Secure())  # counts; a record is in one of them
        >>> noisy.shape
        torch.Size([2])
    """

    sensitivity: float
    """How far apart the values of two neighbours are at most, in L1 norm."""
    epsilon: float
    """What one release costs; the noise's scale is sensitivity / epsilon."""

    def __post_init__(self) -> None:
        _check_sensitivity(self.sensitivity)
        check_epsilon(self.epsilon)

    @property
    def event(self) -> DpEvent:
        """What one release is, for accountants."""
        return LaplaceDpEvent(1 / self.epsilon)

    def scale(self, rng: Randomness, coordinates: int) -> float:
        """The noise's scale for a vector of `coordinates`, perhaps released in several tensors."""
        return _scale(1 / self.epsilon, self.sensitivity, rng, coordinates, 1)

    def release(self, value: torch.Tensor, rng: Randomness, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The whole of `value` with noise, in `out` (which may be `value`) where that is given."""
        return rng.add_laplace(value, self.scale(rng, value.numel()), out=out)


@dataclass(frozen=True)
class _Selection:
    """What mechanisms share that choose one index a row by its score."""

    sensitivity: float
    """How far apart any one score of two neighbours is at most."""
    epsilon: float
    """What the choice of one row costs; at least 2^-30."""
    neighbours: Neighbours = "add-or-remove"
    """The neighbouring relation that the sensitivity is stated for."""
    monotone: bool = False
    """Whether one record more moves no score of a row down (or none up), as for counts: less noise is then enough.
    Not under replace-one."""
    _bounded_range: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_sensitivity(self.sensitivity)
        if check_epsilon(self.epsilon) < _FINEST_EPSILON:
            raise SettingError(f"epsilon must be at least 2^-30 to choose by, not {self.epsilon}.")
        if check_neighbours(self.neighbours) == "replace-one" and self.monotone:
            raise SettingError("scores are not monotone where one record is replaced; leave monotone off.")

    @property
    def event(self) -> DpEvent:
        """What the choice of one row is, for accountants."""
        return PureDpEvent(self.epsilon, self.neighbours, self._bounded_range)

    @property
    def _times(self) -> int:
        """How many sensitivities a neighbour may move two scores apart by."""
        return 1 if self.monotone else 2


@dataclass(frozen=True)
class Exponential(_Selection):
    """One index a row, the likelier the higher its score: with probability proportional to exp(epsilon u / 2 Du).

    Where scores are `monotone` the 2 is dropped.

    Formal guarantee
    ----------------
    If neighbours' scores differ by at most `sensitivity` in each entry, one row's choice is `epsilon`-DP and its
    privacy loss has a range no longer than epsilon, hence epsilon^2 / 8 in zCDP: `event`, once for every row. Scores
    are rounded to multiples of a power of two below 2^-30 sensitivities, which is added to the sensitivity; those
    that are e^-1024 times as likely as the best are raised to that; what float64 then leaves open is less than 2^-40,
    and taken off epsilon. So the guarantee holds for the numbers that are really computed. Unit: the sensitivity's.
    Assumptions: the randomness's. References: McSherry and Talwar 2007; Dong, Durfee and Rogers 2020.

    Raises:
        SettingError: If a setting is out of its range, or `monotone` is on under replace-one.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Exponential, Secure
        >>> votes = torch.tensor([[3.0, 900.0, 12.0]])
        >>> Exponential(sensitivity=1.0, epsilon=1.0, monotone=True).release(votes, Secure())
        tensor([1])
    """

    _bounded_range = True

    def release(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """One index for every row of the last dimension."""
        scores = _check_scores(scores)
        step = math.ldexp(1.0, math.frexp(self.sensitivity)[1] - 31)
        rounded = (scores / step).clamp(-(2.0**61), 2.0**61).round().long()
        best = rounded.amax(-1, keepdim=True)
        rate = (self.epsilon - 2.0**-40) / (self._times * (self.sensitivity / step + 1))
        return rng.choose(((rounded - best).double() * rate).clamp(min=-_FAR))


@dataclass(frozen=True)
class NoisyMax(_Selection):
    """The index of the highest score of a row after Laplace noise of 2 Du / epsilon on each (Du / epsilon if monotone).

    Formal guarantee
    ----------------
    If neighbours' scores differ by at most `sensitivity` in each entry, one row's index is `epsilon`-DP: `event`, once
    for every row; the noisy scores are not released. Ties on the noise's lattice go to an index that does not depend on
    scores, which the proof allows: with all other noises fixed, an index still wins exactly from some noise of its own
    upwards, and a neighbour moves that by at most two sensitivities (one if monotone). Unit: the sensitivity's.
    Assumptions: the randomness's. Reference: Dwork and Roth 2014, claim 3.9.

    Raises:
        SettingError: If a setting is out of its range, or `monotone` is on under replace-one.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import NoisyMax, Secure
        >>> votes = torch.tensor([[3.0, 900.0, 12.0]])
        >>> NoisyMax(sensitivity=1.0, epsilon=1.0, monotone=True).release(votes, Secure())
        tensor([1])
    """

    def release(self, scores: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """One index for every row of the last dimension."""
        scale = _scale(self._times / self.epsilon, self.sensitivity, rng, 1, 1)
        return rng.add_laplace(_check_scores(scores), scale).argmax(-1)


@dataclass(frozen=True)
class AboveThreshold(_Selection):
    """The first of a row of counts that reaches a threshold, both with Laplace noise: the sparse vector technique.

    Half of epsilon goes to the threshold's noise and half to that of the counts, which is independent for each.

    Formal guarantee
    ----------------
    If neighbours' counts differ by at most `sensitivity` in each entry, the index that is released is `epsilon`-DP:
    `event`, once for each row. The counts' noise has the scale 4 Du / epsilon; 2 Du / epsilon where they are `monotone`, a
    record more moving none down (or none up): then, of two neighbours, what is below a threshold with the higher counts is
    below it with the lower ones, and what is below with the lower is below one raised by Du with the higher. Ties on the
    noise's lattice count as reached, which the proof allows: rounding is monotone, and its step is added to the
    sensitivity. Unit: the sensitivity's. Assumptions: the randomness's. References: Dwork and Roth 2014, theorem 3.23; Lyu,
    Su and Li 2017, theorem 4.

    Raises:
        SettingError: If a setting is out of its range, or `monotone` is on under replace-one.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import AboveThreshold, Secure
        >>> records_below = torch.tensor([0.0, 4.0, 900.0, 950.0])  # cumulative counts
        >>> scan = AboveThreshold(sensitivity=1.0, epsilon=1.0, monotone=True)
        >>> scan.release(records_below, threshold=500.0, rng=Secure())
        tensor(2)
    """

    def release(self, counts: torch.Tensor, threshold: float, rng: Randomness) -> torch.Tensor:
        """For every row of the last dimension the first index that reaches the threshold; the row's length if none does."""
        counts = _check_scores(counts)
        scales = [_scale(times * 2 / self.epsilon, self.sensitivity, rng, 1, 1) for times in (1, self._times)]
        limits = rng.add_laplace(torch.full_like(counts[..., :1], threshold), scales[0])
        reached = rng.add_laplace(counts, scales[1]) >= limits
        none = torch.full_like(limits, counts.shape[-1], dtype=torch.int64)
        return torch.where(reached.any(-1, keepdim=True), reached.int().argmax(-1, keepdim=True), none).squeeze(-1)


def _check_scores(scores: torch.Tensor) -> torch.Tensor:
    """The scores in float64, if there are any and all are finite."""
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise NoiseproofError("there is nothing to choose from; give at least one score a row.")
    if not bool(torch.isfinite(scores).all()):
        raise NoiseproofError("a score is NaN or infinite; check what it was computed from.")
    return scores.detach().double()

"""Events: what was done to private data, in the words of dp-accounting, for accountants to read."""

from __future__ import annotations

import math
from functools import lru_cache

import attr
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from noiseproof.errors import SettingError
from noiseproof.guarantees.budget import Neighbours

__all__ = [
    "ComposedDpEvent",
    "DpEvent",
    "EventLog",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "PureDpEvent",
    "ReplaceOneDpEvent",
    "SelfComposedDpEvent",
    "sampled_gaussian",
]


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureDpEvent(DpEvent):
    """A mechanism that is epsilon-DP under `neighbours`, whatever its noise: exponential, noisy max, a vote.

    `bounded_range` says that the privacy loss also lies in an interval no longer than epsilon, as it does for the
    exponential mechanism (Dong, Durfee and Rogers 2020); then Renyi accountants may charge a quarter as much.
    """

    epsilon: float
    neighbours: Neighbours = "add-or-remove"
    bounded_range: bool = False


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ReplaceOneDpEvent(DpEvent):
    """Gaussian or Laplace noise whose multiplier is over what *exchanging* one record moves the value by.

    dp-accounting's own events are over what one record contributes, which is what adding or removing it moves a sum by;
    exchanging it may then move the sum by twice as much. Where the sensitivity was proven under replace-one, this says
    so: it counts as it is under replace-one, and says nothing under add-or-remove.
    """

    event: DpEvent


@lru_cache(maxsize=64)  # a training asks for the same event step after step
def sampled_gaussian(rate: float, sigma: float, steps: int = 1) -> DpEvent:
    """The event of `steps` Gaussian sums of noise multiplier `sigma` over Poisson samples of rate `rate`.

    `sigma` is the noise's standard deviation over the largest norm that one record adds to the sum.
    """
    if not 0 <= rate <= 1:
        raise SettingError(f"the sampling rate must lie in [0, 1], not {rate}.")
    if not (math.isfinite(sigma) and sigma >= 0):
        raise SettingError(f"sigma must be a finite number, 0 or more, not {sigma}.")
    if not (math.isfinite(steps) and steps >= 0 and steps == int(steps)):
        raise SettingError(f"steps must be a whole number, 0 or more, not {steps}.")
    if steps == 0:
        return NoOpDpEvent()
    step = GaussianDpEvent(float(sigma))
    event = step if rate == 1 else PoissonSampledDpEvent(float(rate), step)
    return event if steps == 1 else SelfComposedDpEvent(event, int(steps))


class EventLog:
    """The events of one release, in order; equal neighbours in a row are kept as one event with a count.

    Append *before* the result is visible: a crash may then over-count, never under-count.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[DpEvent, int]] = []

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` happened `count` times."""
        if count < 0:
            raise SettingError(f"an event cannot have happened {count} times.")
        if count == 0:
            return
        if self._runs and self._runs[-1][0] == event:
            self._runs[-1] = (event, self._runs[-1][1] + count)
        else:
            self._runs.append((event, count))

    def __len__(self) -> int:
        return sum(count for _, count in self._runs)

    @property
    def runs(self) -> tuple[tuple[DpEvent, int], ...]:
        """The events in order, each with how often it happened in a row."""
        return tuple(self._runs)

    @property
    def event(self) -> DpEvent:
        """Everything so far as one event."""
        composed = [event if count == 1 else SelfComposedDpEvent(event, count) for event, count in self._runs]
        if not composed:
            return NoOpDpEvent()
        return composed[0] if len(composed) == 1 else ComposedDpEvent(composed)

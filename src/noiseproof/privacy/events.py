"""Events: what was done to private data, in the words of dp-accounting, for accountants to read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

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

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy.budget import Neighbours, check_neighbours

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


# Step: one kind of noisy look at private data and how often it was taken, read off events for the accountants.


@dataclass(frozen=True)
class Step:
    """A noise law, the rate at which records are sampled before it, and how often it was applied.

    `scale` is sigma for `gaussian` and b for `laplace` (both over the largest change that the neighbouring relation
    allows), and epsilon for `pure`. `exchange` marks Gaussian sums of sampled records under replace-one: there the
    change cannot be folded into `scale`, because the record that leaves and the one that comes are sampled together.
    """

    law: Literal["gaussian", "laplace", "pure"]
    scale: float
    rate: float = 1.0
    count: int = 1
    exchange: bool = False
    bounded_range: bool = False

    @property
    def pure_epsilon(self) -> float:
        """The largest privacy loss of one application; infinite for Gaussian noise."""
        if self.law == "gaussian":
            return math.inf
        return amplified(self.scale if self.law == "pure" else 1 / self.scale, self.rate)


def amplified(epsilon: float, rate: float) -> float:
    """The epsilon of an epsilon-DP mechanism on a Poisson sample, add-or-remove: log(1 + rate (e^epsilon - 1))."""
    if rate == 1 or epsilon == 0:
        return epsilon
    if epsilon > 500:  # e^epsilon overflows; what is dropped is below the last digit
        return epsilon + math.log(rate)
    return math.log1p(rate * math.expm1(epsilon))


def read(event: DpEvent, neighbours: str) -> tuple[Step, ...] | None:
    """The steps of an event under a neighbouring relation, equal ones counted together; None if it protects nothing.

    dp-accounting defines an event's noise multiplier over the norm of *one record's contribution*. Exchanging a record
    moves a sum by twice that, so that under replace-one Gaussian and Laplace scales are halved; dp-accounting's own
    RDP accountant does not do so. A mechanism that is epsilon-DP under add-or-remove is 2 epsilon-DP under replace-one,
    because the neighbours are two additions or removals apart. What was proven under replace-one (a
    `ReplaceOneDpEvent`, or a `PureDpEvent` that says so) counts as it is there, and is refused under add-or-remove.
    """
    relation = check_neighbours(neighbours)
    counts: Counter[Step] = Counter()
    for leaf, count in _leaves(event, 1):
        step = _step(leaf, relation)
        if step is None:
            return None
        if step.rate > 0 and not (step.law == "pure" and step.scale == 0):
            counts[step] += count
    return tuple(
        Step(step.law, step.scale, step.rate, count, step.exchange, step.bounded_range)
        for step, count in counts.items()
        if count
    )


def condense(steps: Sequence[Step], most: int) -> tuple[Step, ...]:
    """About `most` kinds of steps that leak at least as much: near scales and rates count as the worst among them.

    Less noise is never better, and neither is a higher rate (a sample of a sample mixes in laws that do not differ), so
    that what holds for the condensed steps holds for the steps.
    """
    if len(steps) <= most:
        return tuple(steps)
    width = 2.0**-12
    while True:
        cells: dict[tuple[str, int, int, bool, bool], list[Step]] = {}
        for s in steps:
            near = (math.floor(math.log(s.scale) / width), math.floor(math.log(s.rate) / width))
            cells.setdefault((s.law, *near, s.exchange, s.bounded_range), []).append(s)
        if len(cells) <= most or width > 1:
            break
        width *= 2
    return tuple(
        Step(
            cell[0].law,
            max(s.scale for s in cell) if cell[0].law == "pure" else min(s.scale for s in cell),
            max(s.rate for s in cell),
            sum(s.count for s in cell),
            cell[0].exchange,
            cell[0].bounded_range,
        )
        for cell in cells.values()
    )


def merge_gaussians(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps with all unsampled Gaussians as the one Gaussian that they exactly add up to."""
    whole = [step for step in steps if step.law == "gaussian" and step.rate == 1]
    if len(whole) <= 1 and all(step.count == 1 for step in whole):
        return tuple(steps)
    sigma = 1 / math.sqrt(math.fsum(step.count / step.scale**2 for step in whole))
    return (*(step for step in steps if step not in whole), Step("gaussian", sigma))


def _leaves(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    if isinstance(event, NoOpDpEvent):
        return
    if isinstance(event, SelfComposedDpEvent):
        if event.count < 0 or event.count != int(event.count):
            raise SettingError(f"an event cannot have happened {event.count} times.")
        yield from _leaves(event.event, count * int(event.count))
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    else:
        yield event, count


def _step(event: DpEvent, neighbours: Neighbours) -> Step | None:
    """The step of one look at the data, by one or several mechanisms; None if it protects nothing."""
    rate = 1.0
    while isinstance(event, PoissonSampledDpEvent):
        if not 0 <= event.sampling_probability <= 1:
            raise SettingError(f"the sampling rate must lie in [0, 1], not {event.sampling_probability}.")
        rate *= float(event.sampling_probability)
        event = event.event
    looks = [_look(part, count, neighbours) for part, count in _leaves(event, 1) if count]
    if rate == 0 or not looks:
        return Step("pure", 0.0)
    if any(look.scale == 0 and look.law != "pure" for look in looks):
        return None
    if all(look.law == "gaussian" for look in looks):
        return _gaussian_step(looks, rate, neighbours)
    if any(look.law == "gaussian" for look in looks):
        raise UnsupportedError(
            f"no accountant here knows Gaussian and other noise on one Poisson sample under {neighbours}; "
            "take a sample for each."
        )
    return _pure_step(looks, rate, neighbours)


@dataclass(frozen=True)
class _Look:
    """One mechanism's noise, and whether its scale is over what exchanging a record does, or adding and removing it."""

    law: Literal["gaussian", "laplace", "pure"]
    scale: float
    count: int
    exchange: bool
    bounded_range: bool = False

    @property
    def epsilon(self) -> float:
        return self.scale if self.law == "pure" else 1 / self.scale


def _gaussian_step(looks: list[_Look], rate: float, neighbours: Neighbours) -> Step:
    if neighbours == "add-or-remove":
        return Step("gaussian", _together(looks), rate)
    if rate < 1 and not any(look.exchange for look in looks):
        return Step("gaussian", _together(looks), rate, exchange=True)
    # A sample does not help what is known of exchanges only: without the record, the law may look like neither.
    return Step("gaussian", _together([replace(k, scale=k.scale if k.exchange else k.scale / 2) for k in looks]))


def _together(looks: list[_Look]) -> float:
    if len(looks) == 1 and looks[0].count == 1:
        return looks[0].scale
    return 1 / math.sqrt(math.fsum(look.count / look.scale**2 for look in looks))


def _pure_step(looks: list[_Look], rate: float, neighbours: Neighbours) -> Step:
    """The step of mechanisms whose loss is bounded; several of them on one sample are one, whose losses add up."""
    only = looks[0] if len(looks) == 1 and looks[0].count == 1 else None
    bounded_range = only is not None and only.bounded_range and rate == 1
    removed = math.fsum(look.count * look.epsilon for look in looks if not look.exchange)
    exchanged = math.fsum(look.count * look.epsilon for look in looks if look.exchange)
    if neighbours == "add-or-remove":
        if only is not None and only.law == "laplace":
            return Step("laplace", only.scale, rate)
        return Step("pure", removed, rate, bounded_range=bounded_range)
    if exchanged or rate == 1:
        if only is not None and only.law == "laplace":
            return Step("laplace", only.scale if only.exchange else only.scale / 2)
        return Step("pure", 2 * removed + exchanged, bounded_range=bounded_range)
    # With A, B, B' the laws without the record, with it, with the other: B/A and B'/A lie in [e^-removed, e^removed],
    # and the loss log(1 - rate + rate B/A) - log(1 - rate + rate B'/A) is largest at opposite ends.
    return Step("pure", amplified(removed, rate) - math.log1p(rate * math.expm1(-removed)))


def _look(event: DpEvent, count: int, neighbours: Neighbours) -> _Look:
    """The noise of one mechanism, if it is one that accountants here know, with settings that are possible."""
    name = type(event).__name__
    exchange = isinstance(event, ReplaceOneDpEvent)
    if isinstance(event, ReplaceOneDpEvent):
        event = event.event
        if not isinstance(event, GaussianDpEvent | LaplaceDpEvent):
            raise UnsupportedError(
                f"a ReplaceOneDpEvent holds Gaussian or Laplace noise, not a {type(event).__name__}."
            )
    if isinstance(event, NonPrivateDpEvent):
        return _Look("gaussian", 0.0, count, False)
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        look = _Look("gaussian", event.noise_multiplier, count, exchange)
        if isinstance(event, LaplaceDpEvent):
            look = replace(look, law="laplace")
    elif isinstance(event, PureDpEvent):
        exchange = check_neighbours(event.neighbours) == "replace-one"
        look = _Look("pure", event.epsilon, count, exchange, event.bounded_range)
    else:
        raise UnsupportedError(f"no accountant here knows a {name} under {neighbours}.")
    if not (math.isfinite(look.scale) and look.scale >= 0):
        raise SettingError(f"the noise multiplier or epsilon of a {name} must be finite, 0 or more, not {look.scale}.")
    if exchange and neighbours == "add-or-remove":
        raise UnsupportedError(
            f"a {name} that was proven under replace-one says nothing under add-or-remove; ask for replace-one."
        )
    return replace(look, scale=float(look.scale))

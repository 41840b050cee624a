"""Events: what was done to private data, in order.

Classes and fields are named as dp-accounting's, whose accountants are the oracle in the tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from noiseproof.errors import SettingError
from noiseproof.privacy.budget import Neighbours


@dataclass(frozen=True)
class DpEvent:
    """Something that was done to private data; its class and fields say what."""


@dataclass(frozen=True)
class NoOpDpEvent(DpEvent):
    """Nothing that depends on private data."""


@dataclass(frozen=True)
class NonPrivateDpEvent(DpEvent):
    """A release without any protection."""


@dataclass(frozen=True)
class GaussianDpEvent(DpEvent):
    """Gaussian noise of `noise_multiplier` times the largest L2 norm of one record's contribution."""

    noise_multiplier: float


@dataclass(frozen=True)
class LaplaceDpEvent(DpEvent):
    """Laplace noise of `noise_multiplier` times the largest L1 norm of one record's contribution."""

    noise_multiplier: float


@dataclass(frozen=True)
class PureDpEvent(DpEvent):
    """A mechanism that is epsilon-DP under `neighbours`, whatever its noise: exponential, noisy max, a vote.

    `bounded_range` says that the privacy loss also lies in an interval no longer than epsilon, as it does for the
    exponential mechanism (Dong, Durfee and Rogers 2020); then Renyi accountants may charge a quarter as much.
    """

    epsilon: float
    neighbours: Neighbours = "add-or-remove"
    bounded_range: bool = False


@dataclass(frozen=True)
class ReplaceOneDpEvent(DpEvent):
    """Gaussian or Laplace noise whose multiplier is over what *exchanging* one record moves the value by.

    Other events are over what one record contributes, which is what adding or removing it moves a sum by; exchanging it
    may then move the sum by twice as much. Where the sensitivity was proven under replace-one, this says so: it counts
    as it is under replace-one, and says nothing under add-or-remove.
    """

    event: DpEvent


@dataclass(frozen=True)
class PoissonSampledDpEvent(DpEvent):
    """`event` on a fresh sample in which each record is, independently, with `sampling_probability`."""

    sampling_probability: float
    event: DpEvent


@dataclass(frozen=True)
class GroupDpEvent(DpEvent):
    """`event`, which is stated for one record, as it is for a person who has at most `size` of them.

    Where `event` samples records, each of the person's is sampled by itself, so that their number in a sample is binomial.
    """

    event: DpEvent
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingError(f"a person has at least 1 record, not {self.size}.")


@dataclass(frozen=True)
class SelfComposedDpEvent(DpEvent):
    """`event`, `count` times."""

    event: DpEvent
    count: int


@dataclass(frozen=True)
class ComposedDpEvent(DpEvent):
    """All of `events`, one after the other."""

    events: Sequence[DpEvent]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))  # equal, and hashable, whatever sequence was given


Stopping = Literal["logarithmic", "geometric", "poisson"]
"""How the number of runs of a private selection is drawn."""


@dataclass(frozen=True)
class SelectionDpEvent(DpEvent):
    """The best by a private score of a random number of runs, each of a candidate chosen at random.

    `events` has what one run of each candidate costs, its score included; `runs` is the expected number of runs, and
    `stopping` the law of their number (`noiseproof.privacy.selection`).
    """

    events: Sequence[DpEvent]
    runs: float
    stopping: Stopping = "geometric"

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        if not self.events:
            raise SettingError("a selection needs at least one candidate.")
        if self.stopping not in get_args(Stopping):
            raise SettingError(f"stopping must be one of {', '.join(get_args(Stopping))}, not {self.stopping!r}.")
        if not 1 < self.runs <= 1000:
            raise SettingError(f"the expected number of runs must be above 1 and at most 1,000, not {self.runs}.")


@lru_cache(maxsize=64)  # a training asks for the same event step after step
def sampled_gaussian(rate: float, sigma: float, steps: int = 1, *, group_size: int = 1) -> DpEvent:
    """The event of `steps` Gaussian sums of noise multiplier `sigma` over Poisson samples of rate `rate`.

    Args:
        rate: The probability with which each record is in a sample.
        sigma: The noise's standard deviation over the largest norm that one record adds to the sum.
        steps: How many sums.
        group_size: How many records, each sampled and adding its share by itself, the unit has: a person's, if above 1.

    Returns:
        The event, for accountants.

    Raises:
        SettingError: If one of them is impossible.

    Examples:
        >>> sampled_gaussian(0.01, 1.1, 1000).count
        1000
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
    event: DpEvent = step if rate == 1 else PoissonSampledDpEvent(float(rate), step)
    if group_size != 1:
        event = GroupDpEvent(event, group_size)
    return event if steps == 1 else SelfComposedDpEvent(event, int(steps))


class EventLog:
    """The events of one release, in order; equal neighbours in a row are kept as one event with a count.

    Append *before* the result is visible: a crash may then over-count, never under-count.

    Args:
        runs: What happened already: events in order, each with how often it happened in a row.

    Examples:
        >>> from noiseproof.privacy import EventLog, accountants
        >>> from noiseproof.privacy.events import GaussianDpEvent
        >>> log = EventLog()
        >>> for step in range(10):
        ...     log.append(GaussianDpEvent(noise_multiplier=20.0))
        >>> log.runs
        ((GaussianDpEvent(noise_multiplier=20.0), 10),)
        >>> accountants.epsilon(log.event, delta=1e-5).epsilon < 1
        True
    """

    def __init__(self, runs: Iterable[tuple[DpEvent, int]] = ()) -> None:
        self._runs: list[tuple[DpEvent, int]] = []
        for event, count in runs:
            EventLog.append(self, event, count)

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that an event happened.

        Args:
            event: What was done to the private data.
            count: How often; 0 notes nothing.

        Raises:
            SettingError: If the count is negative.
        """
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


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """An event as JSON, for bundles and journals."""
    if type(event) not in DpEvent.__subclasses__():
        raise SettingError(f"a {type(event).__name__} cannot be written to a file.")

    def plain(value: Any) -> Any:
        if isinstance(value, DpEvent):
            return event_to_json(value)
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    values = {field.name: plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"kind": type(event).__name__, **values}


def event_from_json(document: Mapping[str, Any]) -> DpEvent:
    """The event that `event_to_json` wrote."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return event_from_json(value)
        return tuple(read(each) for each in value) if isinstance(value, list) else value

    known = {kind.__name__: kind for kind in DpEvent.__subclasses__()}
    return known[document["kind"]](**{name: read(value) for name, value in document.items() if name != "kind"})

"""Step: one kind of noisy look at private data and how often it was taken, read off events for the accountants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.guarantees.budget import Neighbours, check_neighbours
from noiseproof.guarantees.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
)


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
    RDP accountant does not do so. A mechanism that is epsilon-DP under add-or-remove is 2 epsilon-DP under
    replace-one, because the neighbours are two additions or removals apart; the reverse does not hold and is refused.
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
    parts = [(_checked(part, neighbours), count) for part, count in _leaves(event, 1) if count]
    if rate == 0 or not parts:
        return Step("pure", 0.0)
    if any(_bare(part) for part, _ in parts):
        return None
    gaussians = [(part.noise_multiplier, count) for part, count in parts if isinstance(part, GaussianDpEvent)]
    if not gaussians:
        return _pure_step(parts, rate, neighbours)
    if len(gaussians) < len(parts):
        raise UnsupportedError(
            f"no accountant here knows Gaussian and other noise on one Poisson sample under {neighbours}; "
            "take a sample for each."
        )
    sigma = gaussians[0][0]
    if len(gaussians) > 1 or gaussians[0][1] > 1:
        sigma = 1 / math.sqrt(math.fsum(count / scale**2 for scale, count in gaussians))
    if neighbours == "replace-one" and rate == 1:
        return Step("gaussian", sigma / 2)
    return Step("gaussian", float(sigma), rate, exchange=neighbours == "replace-one")


def _pure_step(parts: list[tuple[DpEvent, int]], rate: float, neighbours: Neighbours) -> Step:
    """The step of mechanisms whose loss is bounded; several of them on one sample are one, whose losses add up."""
    only = parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else None
    replace = neighbours == "replace-one"
    if isinstance(only, LaplaceDpEvent) and not (replace and rate < 1):
        return Step("laplace", only.noise_multiplier / 2 if replace else float(only.noise_multiplier), rate)
    bounded_range = isinstance(only, PureDpEvent) and only.bounded_range and rate == 1
    removed = math.fsum(
        count * (1 / part.noise_multiplier if isinstance(part, LaplaceDpEvent) else part.epsilon)
        for part, count in parts
        if isinstance(part, LaplaceDpEvent) or part.neighbours == "add-or-remove"
    )
    exchanged = math.fsum(
        count * part.epsilon
        for part, count in parts
        if isinstance(part, PureDpEvent) and part.neighbours == "replace-one"
    )
    if not replace:
        return Step("pure", removed, rate, bounded_range=bounded_range)
    if exchanged or rate == 1:
        # A sample does not help what is known of exchanges only: without the record, the law may look like neither.
        return Step("pure", 2 * removed + exchanged, bounded_range=bounded_range)
    # With A, B, B' the laws without the record, with it, with the other: B/A and B'/A lie in [e^-removed, e^removed],
    # and the loss log(1 - rate + rate B/A) - log(1 - rate + rate B'/A) is largest at opposite ends.
    return Step("pure", amplified(removed, rate) - math.log1p(rate * math.expm1(-removed)))


def _bare(event: DpEvent) -> bool:
    return isinstance(event, NonPrivateDpEvent) or getattr(event, "noise_multiplier", 1) == 0


def _checked(event: DpEvent, neighbours: Neighbours) -> DpEvent:
    """The event, if it is one that accountants here know, with settings that are possible."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        if not (math.isfinite(event.noise_multiplier) and event.noise_multiplier >= 0):
            raise SettingError(f"a noise multiplier must be a finite number, 0 or more, not {event.noise_multiplier}.")
    elif isinstance(event, PureDpEvent):
        if not (math.isfinite(event.epsilon) and event.epsilon >= 0):
            raise SettingError(f"a pure epsilon must be a finite number, 0 or more, not {event.epsilon}.")
        if check_neighbours(event.neighbours) == "replace-one" and neighbours == "add-or-remove":
            raise UnsupportedError(
                f"a PureDpEvent that was proven under {event.neighbours} says nothing under {neighbours}; "
                f"ask for {event.neighbours}."
            )
    elif not isinstance(event, NonPrivateDpEvent):
        raise UnsupportedError(f"no accountant here knows a {type(event).__name__} under {neighbours}.")
    return event

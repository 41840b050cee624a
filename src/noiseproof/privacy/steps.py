"""Steps: what accountants read off events under a neighbouring relation, equal ones counted together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy.budget import Neighbours, check_neighbours
from noiseproof.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    GroupDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    ReplaceOneDpEvent,
    SelectionDpEvent,
    SelfComposedDpEvent,
    Stopping,
)


@dataclass(frozen=True)
class Step:
    """One kind of noisy look at private data: a noise law, the rate at which records are sampled, and how often.

    `scale` is sigma for `gaussian` and b for `laplace` (both over the largest change that the neighbouring relation
    allows), and epsilon for `pure`. `exchange` marks Gaussian sums of sampled records under replace-one: there the
    change cannot be folded into `scale`, because the record that leaves and the one that comes are sampled together.
    """

    law: Literal["gaussian", "laplace", "pure", "selection"]
    scale: float
    rate: float = 1.0
    count: int = 1
    exchange: bool = False
    bounded_range: bool = False
    group: int = 1
    """For sampled Gaussians: how many records, each sampled by itself, the unit has at most; each adds 1 to the change."""

    @property
    def folded(self) -> Step:
        """A step that leaks at least as much and whose unit is one record: all of the group's come whenever one does."""
        if self.group == 1:
            return self
        at_least_one = -math.expm1(self.group * math.log1p(-self.rate)) if self.rate < 1 else 1.0
        return replace(self, scale=self.scale / self.group, rate=at_least_one, group=1)

    @property
    def unsampled_epsilon(self) -> float:
        """The largest privacy loss of one application at rate 1; infinite for Gaussian noise."""
        if self.law == "gaussian":
            return math.inf
        return self.scale if self.law == "pure" else 1 / self.scale

    @property
    def pure_epsilon(self) -> float:
        """The largest privacy loss of one application; infinite for Gaussian noise."""
        return amplified(self.unsampled_epsilon, self.rate)


@dataclass(frozen=True)
class SelectionStep(Step):
    """A private selection among candidates that each take their `candidates` steps; `scale` is the expected runs."""

    candidates: tuple[tuple[Step, ...], ...] = ()
    stopping: Stopping = "geometric"

    @property
    def gamma(self) -> float:
        """The parameter of the geometric or logarithmic law whose mean is `scale`: its weights fall by 1 - gamma."""
        if self.stopping == "geometric":
            return 1 / self.scale
        low, high = 0.0, 1.0
        while (middle := (low + high) / 2) not in (low, high):
            mean = (1 / middle - 1) / -math.log(middle)
            low, high = (middle, high) if mean > self.scale else (low, middle)
        return low

    @property
    def unsampled_epsilon(self) -> float:
        """The largest privacy loss, where that of every candidate is bounded."""
        each = max(math.fsum(step.count * step.pure_epsilon for step in steps) for steps in self.candidates)
        if self.stopping == "poisson":
            return each + self.scale * math.tanh(each / 2)
        return (2 + (self.stopping == "geometric")) * each


_NOTHING = Step("pure", 0.0)


def amplified(epsilon: float, rate: float) -> float:
    """The epsilon of an epsilon-DP mechanism on a Poisson sample, add-or-remove: log(1 + rate (e^epsilon - 1))."""
    if rate == 1 or epsilon == 0:
        return epsilon
    if epsilon > 500:  # e^epsilon overflows; what is dropped is below the last digit
        return epsilon + math.log(rate)
    return math.log1p(rate * math.expm1(epsilon))


def read(event: DpEvent, neighbours: str, *, groups: bool = False) -> tuple[Step, ...] | None:
    """The steps of an event under a neighbouring relation, equal ones counted together; None if it protects nothing.

    With `groups` the steps of a person's records stay groups, for who knows what a group loses; else they are `folded`.

    An event's noise multiplier is over the norm of *one record's contribution*. Exchanging a record moves a sum by
    twice that, so that under replace-one Gaussian and Laplace scales are halved (dp-accounting's own RDP accountant
    does not do so). A mechanism that is epsilon-DP under add-or-remove is 2 epsilon-DP under replace-one, because the
    neighbours are two additions or removals apart. What was proven under replace-one (a `ReplaceOneDpEvent`, or a
    `PureDpEvent` that says so) counts as it is there, and is refused under add-or-remove.
    """
    relation = check_neighbours(neighbours)
    counts: Counter[Step] = Counter()
    for leaf, count in _leaves(event, 1):
        step = _step(leaf, relation)
        if step is None:
            return None
        if step.law != "pure" or step.scale:
            counts[step if groups else step.folded] += count
    return tuple(replace(step, count=count) for step, count in counts.items() if count)


def condense(steps: Sequence[Step], most: int) -> tuple[Step, ...]:
    """About `most` kinds of steps that leak at least as much: near scales and rates count as the worst among them.

    Less noise is never better, and neither is a higher rate (a sample of a sample mixes in laws that do not differ), so
    that what holds for the condensed steps holds for the steps.
    """
    if len(steps) <= most:
        return tuple(steps)
    selections = [s for s in steps if isinstance(s, SelectionStep)]
    steps = [s for s in steps if not isinstance(s, SelectionStep)]
    width = 2.0**-13
    while True:
        width *= 2
        cells: dict[tuple[object, ...], list[Step]] = defaultdict(list)
        for s in steps:
            near = (math.floor(math.log(s.scale) / width), math.floor(math.log(s.rate) / width))
            cells[s.law, *near, s.exchange, s.bounded_range, s.group].append(s)
        if len(cells) <= most or width > 1:
            break
    worst = {"pure": max, "laplace": min, "gaussian": min}
    return *selections, *(
        replace(
            cell[0],
            scale=worst[cell[0].law](s.scale for s in cell),
            rate=max(s.rate for s in cell),
            count=sum(s.count for s in cell),
        )
        for cell in cells.values()
    )


def merge_gaussians(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps with all unsampled Gaussians as the one Gaussian that they exactly add up to."""
    whole = [step for step in steps if step.law == "gaussian" and step.rate == 1]
    if len(whole) <= 1 and all(step.count == 1 for step in whole):
        return tuple(steps)
    return (*(step for step in steps if step not in whole), Step("gaussian", _summed_sigma(whole)))


def _summed_sigma(steps: Sequence[Step]) -> float:
    return 1 / math.sqrt(math.fsum(step.count / step.scale**2 for step in steps))


def _leaves(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    if isinstance(event, SelfComposedDpEvent):
        if event.count < 0 or event.count != int(event.count):
            raise SettingError(f"an event cannot have happened {event.count} times.")
        yield from _leaves(event.event, count * int(event.count))
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    elif not isinstance(event, NoOpDpEvent):
        yield event, count


def _step(event: DpEvent, neighbours: Neighbours) -> Step | None:
    """The step of one look at the data, by one or several mechanisms; None if it protects nothing."""
    if isinstance(event, SelectionDpEvent):
        candidates = [read(each, neighbours) for each in event.events]
        if None in candidates:
            return None
        found = tuple(dict.fromkeys(steps for steps in candidates if steps))
        return SelectionStep("selection", event.runs, candidates=found, stopping=event.stopping) if found else _NOTHING
    if isinstance(event, GroupDpEvent):
        one = _step(event.event, neighbours)
        if one is None or one is _NOTHING or event.size == 1:
            return one
        if one.law in ("laplace", "pure"):
            # The losses of a group's records add up, and come whenever one of them is sampled.
            total = replace(one.folded, law="pure", scale=one.unsampled_epsilon, bounded_range=False)
            return replace(total, scale=event.size * total.scale, rate=replace(one, group=event.size).folded.rate)
        if one.law != "gaussian":
            raise UnsupportedError("no accountant here knows a private selection for a person with several records.")
        grouped = replace(one, group=one.group * event.size)
        return grouped if grouped.rate < 1 and not grouped.exchange else grouped.folded
    rate = 1.0
    while isinstance(event, PoissonSampledDpEvent):
        if not 0 <= event.sampling_probability <= 1:
            raise SettingError(f"the sampling rate must lie in [0, 1], not {event.sampling_probability}.")
        rate *= float(event.sampling_probability)
        event = event.event
    parts = [_mechanism(part, count, neighbours) for part, count in _leaves(event, 1) if count]
    if rate == 0 or not parts:
        return _NOTHING
    if any(part.scale == 0 and part.law != "pure" for part in parts):
        return None
    laws = {part.law for part in parts}
    if len(laws) > 1 and "gaussian" in laws:
        raise UnsupportedError(
            f"no accountant here knows Gaussian and other noise on one Poisson sample under {neighbours}; "
            "take a sample for each."
        )
    bounded_range = parts[0].bounded_range and rate == 1
    if neighbours == "replace-one" and (rate == 1 or any(part.exchange for part in parts)):
        # A sample does not help what is known of exchanges only: without the record, the law may look like neither.
        rate, parts = 1.0, [part if part.exchange else _exchanged(part) for part in parts]
    if len(parts) == 1 and parts[0].count == 1:
        whole = replace(parts[0], rate=rate, exchange=False, bounded_range=bounded_range)
    elif laws == {"gaussian"}:
        whole = Step("gaussian", _summed_sigma(parts), rate)
    else:  # several bounded losses on one sample are one, of their sum
        whole = Step("pure", math.fsum(part.count * part.unsampled_epsilon for part in parts), rate)
    if rate == 1 or neighbours == "add-or-remove":
        return whole
    if whole.law == "gaussian":
        return replace(whole, exchange=True)
    # With A, B, B' the laws without the record, with it, with the other: B/A and B'/A lie in [e^-loss, e^loss], and
    # the loss log(1 - rate + rate B/A) - log(1 - rate + rate B'/A) is largest at opposite ends.
    return Step("pure", whole.pure_epsilon - math.log1p(rate * math.expm1(-whole.unsampled_epsilon)))


def _exchanged(part: Step) -> Step:
    """What adding or removing a record does, done twice."""
    return replace(part, scale=part.scale * 2 if part.law == "pure" else part.scale / 2)


def _mechanism(event: DpEvent, count: int, neighbours: Neighbours) -> Step:
    """The noise of one mechanism, if accountants here know it; `exchange` says that its scale is for replace-one."""
    name = type(event).__name__
    exchange, bounded_range = isinstance(event, ReplaceOneDpEvent), False
    law: Literal["gaussian", "laplace", "pure"]
    match event:
        case NonPrivateDpEvent():
            return Step("gaussian", 0.0)
        case GaussianDpEvent(scale) | ReplaceOneDpEvent(GaussianDpEvent(scale)):
            law = "gaussian"
        case LaplaceDpEvent(scale) | ReplaceOneDpEvent(LaplaceDpEvent(scale)):
            law = "laplace"
        case ReplaceOneDpEvent(inner):
            raise UnsupportedError(
                f"a ReplaceOneDpEvent holds Gaussian or Laplace noise, not a {type(inner).__name__}."
            )
        case PureDpEvent(scale, relation, bounded_range):
            law, exchange = "pure", check_neighbours(relation) == "replace-one"
        case _:
            raise UnsupportedError(f"no accountant here knows a {name} under {neighbours}.")
    if not (math.isfinite(scale) and scale >= 0):
        raise SettingError(f"the noise multiplier or epsilon of a {name} must be finite, 0 or more, not {scale}.")
    if exchange and neighbours == "add-or-remove":
        raise UnsupportedError(
            f"a {name} that was proven under replace-one says nothing under add-or-remove; ask for replace-one."
        )
    return Step(law, float(scale), count=count, exchange=exchange, bounded_range=bounded_range)

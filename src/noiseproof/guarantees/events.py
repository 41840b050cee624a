"""Events: what was done to private data, in the words of dp-accounting, for accountants to read."""

from __future__ import annotations

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

__all__ = [
    "ComposedDpEvent",
    "DpEvent",
    "EventLog",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "SelfComposedDpEvent",
]


class EventLog:
    """The events of one release, in order; equal neighbours in a row are kept as one event with a count.

    Append *before* the result is visible: a crash may then over-count, never under-count.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[DpEvent, int]] = []

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` happened `count` times."""
        if count <= 0:
            return
        if self._runs and self._runs[-1][0] == event:
            self._runs[-1] = (event, self._runs[-1][1] + count)
        else:
            self._runs.append((event, count))

    def __len__(self) -> int:
        return sum(count for _, count in self._runs)

    @property
    def event(self) -> DpEvent:
        """Everything so far as one event."""
        composed = [event if count == 1 else SelfComposedDpEvent(event, count) for event, count in self._runs]
        if not composed:
            return NoOpDpEvent()
        return composed[0] if len(composed) == 1 else ComposedDpEvent(composed)

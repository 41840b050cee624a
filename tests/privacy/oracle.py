"""dp-accounting as an oracle: our events as its own."""

from __future__ import annotations

import dp_accounting

from noiseproof.privacy.events import ComposedDpEvent, DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent


def theirs(event: DpEvent) -> dp_accounting.DpEvent:
    """The event of dp-accounting with the same name and fields; those that only we have are refused."""
    match event:
        case ComposedDpEvent(events):
            return dp_accounting.ComposedDpEvent([theirs(part) for part in events])
        case SelfComposedDpEvent(inner, count):
            return dp_accounting.SelfComposedDpEvent(theirs(inner), count)
        case PoissonSampledDpEvent(rate, inner):
            return dp_accounting.PoissonSampledDpEvent(rate, theirs(inner))
    return getattr(dp_accounting, type(event).__name__)(**vars(event))

"""Search: where a monotone statement stops to hold."""

from __future__ import annotations

from collections.abc import Callable


def border(test: Callable[[float], bool], *, fails: float, holds: float) -> float:
    """The border between where a monotone test fails and where it holds, from the side where it holds."""
    while abs(holds - fails) > 1e-14 * abs(holds):
        middle = (fails + holds) / 2
        if middle in (fails, holds):
            break
        if test(middle):
            holds = middle
        else:
            fails = middle
    return holds

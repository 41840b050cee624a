"""Quality: redraw a network until it is accurate enough, at most so many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from noiseproof.errors import NoiseproofError, SettingError

T = TypeVar("T")


@dataclass(frozen=True)
class Quality:
    """Publish only what is more accurate than `threshold`; give up after `most` draws."""

    threshold: float
    most: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise SettingError(f"a threshold of accuracy must lie in [0, 1], not {self.threshold}.")
        if self.most < 1:
            raise SettingError(f"there must be at least 1 draw, not {self.most}.")


def redraw(draw: Callable[[], T], accuracy: Callable[[T], float], quality: Quality | None) -> tuple[T, int]:
    """The first draw whose accuracy is above the threshold, and how many draws it took (step 7 of Algorithm 1).

    Formal guarantee
    ----------------
    None beyond that of `quality.most` draws together: which one is published was chosen by looking at them all, on
    records whose accuracy is no release of its own.
    """
    if quality is None:
        return draw(), 1
    for turn in range(1, quality.most + 1):
        drawn = draw()
        if accuracy(drawn) > quality.threshold:
            return drawn, turn
    raise NoiseproofError(
        f"none of {quality.most} draws was more accurate than {quality.threshold:g}; nothing was published: lower the "
        "threshold, raise epsilon or train the networks for longer."
    )

"""Schedules: settings that change from step to step in a way fixed before training, so that accountants can follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from noiseproof.errors import SettingError

Decay = Literal["constant", "exponential", "step"]


@dataclass(frozen=True)
class Schedule:
    """A positive value by step: constant; `start * exp(-decay * t)`; or `start * decay ** floor(t / every)`.

    It depends on no record, so it costs nothing; the noise that it sets is accounted for step by step.
    """

    start: float
    kind: Decay = "constant"
    decay: float = 0.0
    every: int = 100

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and self.start > 0):
            raise SettingError(f"a schedule must start at a positive number, not {self.start}.")
        if self.every < 1:
            raise SettingError(f"a step schedule changes every 1 step or more, not every {self.every}.")
        if self.kind == "step" and not self.decay > 0:
            raise SettingError("a step schedule needs a positive factor as its decay.")

    def at(self, step: int) -> float:
        """The value at a step, counted from 0."""
        if self.kind == "exponential":
            return self.start * math.exp(-self.decay * step)
        if self.kind == "step":
            return self.start * float(self.decay ** (step // self.every))
        return self.start

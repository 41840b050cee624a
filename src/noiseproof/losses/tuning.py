"""Noise that changes as training goes: constant, time, exp and step by a formula, ANT by a score."""

from __future__ import annotations

import math
from typing import Literal

from noiseproof.errors import SettingError

Tuning = Literal["constant", "time", "exp", "step", "ant"]

RATES: dict[Tuning, float] = {"constant": 0.0, "time": 0.05, "exp": 0.01, "step": 0.6, "ant": 0.8}
"""Each schedule's decay rate k where none is given: the best of the paper's for MNIST (Table IV)."""


class NoiseTuning:
    """The noise of the iteration that comes next (Ma et al. 2020, section IV).

    `time`: start / (1 + k t); `exp`: start e^(-k t); `step`: start k^floor(t / every); `ant`: multiplied by k whenever
    the running mean of the scores gained less than `threshold` since the last look, a look every `every` iterations.

    Formal guarantee
    ----------------
    None by itself. Formulas of t cost nothing. A score of private records costs what it was released with, and noise
    that depends on it must be paid for through a filter.
    """

    def __init__(
        self, kind: Tuning, start: float, rate: float | None = None, *, every: int = 100, threshold: float = 0.005
    ) -> None:
        self.kind = kind
        self.rate = RATES[kind] if rate is None else rate
        self.start = self.sigma = start
        self.every, self.threshold = every, threshold
        self.iteration = 0
        self._scores: list[float] = []
        if not (math.isfinite(start) and start >= 0):
            raise SettingError(f"noise must start at a number, 0 or more, not {start}.")
        if every < 1:
            raise SettingError(f"noise changes, or is looked at, every 1 iteration or more, not every {every}.")
        if kind in ("step", "ant") and not 0 < self.rate <= 1:
            raise SettingError(f"the decay rate of {kind} must lie in (0, 1], not {self.rate}.")
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise SettingError(f"a decay rate must be a number, 0 or more, not {self.rate}.")

    @property
    def looks(self) -> bool:
        """Whether a score is wanted after the iteration that comes next."""
        return self.kind == "ant" and (self.iteration + 1) % self.every == 0

    def advance(self, score: float | None = None) -> None:
        """Go to the next iteration; with a score where `looks` asked for one."""
        if score is not None:
            before = sum(self._scores) / len(self._scores) if self._scores else 0.0
            self._scores.append(score)
            if sum(self._scores) / len(self._scores) - before < self.threshold:
                self.sigma *= self.rate
        self.iteration += 1
        if self.kind == "time":
            self.sigma = self.start / (1 + self.rate * self.iteration)
        elif self.kind == "exp":
            self.sigma = self.start * math.exp(-self.rate * self.iteration)
        elif self.kind == "step":
            self.sigma = self.start * self.rate ** (self.iteration // self.every)

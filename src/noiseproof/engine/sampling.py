"""Poisson sampling: every record is in a batch with the stated probability, independently, as accountants assume."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.data import DataLoader, Sampler

from noiseproof.engine.ranks import ALONE, Ranks
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy.randomness import Randomness


class PoissonSampler(Sampler[list[int]]):
    """Batches of indices in which each record is included independently with one probability; a batch may be empty.

    Give it to a `DataLoader` as its `batch_sampler`, and that loader to `PrivateGradients.load`.

    Args:
        records: How many records there are to sample from.
        sample_rate: The probability with which each record is in a batch, in (0, 1].
        steps: How many batches an iteration gives; every iteration draws new ones.
        rng: Where samples come from; `Secure()` for anything that is released.
        ranks: The processes that share a training, where there are several: batches are then this rank's part of each sample.

    Raises:
        SettingError: If the rate is not in (0, 1], or there are no records.

    Examples:
        >>> from noiseproof.privacy import Reproducible
        >>> sampler = PoissonSampler(records=1000, sample_rate=0.01, steps=3, rng=Reproducible(0))
        >>> loader = DataLoader(range(1000), batch_sampler=sampler)
        >>> len(loader)
        3
        >>> sizes = [len(batch) for batch in sampler]  # 10 each on average

    Formal guarantee
    ----------------
    None by itself. Amplification by sampling holds for mechanisms that see each step's sample only, while the sample
    stays secret; it is what `PoissonSampledDpEvent(rate, ...)` accounts for (add-or-remove; Mironov et al. 2019).
    """

    def __init__(self, records: int, sample_rate: float, steps: int, rng: Randomness, ranks: Ranks = ALONE) -> None:
        if not 0 < sample_rate <= 1:
            raise SettingError(f"the sampling rate must lie in (0, 1], not {sample_rate}.")
        if records < 1 or steps < 0:
            raise SettingError(f"sampling needs at least one record and no negative steps, not {records} and {steps}.")
        self.records, self.sample_rate, self.steps = records, sample_rate, steps
        self.ranks = ranks
        self._rng = rng

    def draw(self) -> torch.Tensor:
        """One step's indices, sorted."""
        return self.ranks.part(lambda: self._rng.poisson_sample(self.records, self.sample_rate))

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield self.draw().tolist()


def check_loader(loader: DataLoader[object], sample_rate: float, records: int, ranks: Ranks = ALONE) -> None:
    """Refuse a loader that does not sample at the stated rate: its epsilon would be wrong without a word."""
    sampler = loader.batch_sampler
    if not isinstance(sampler, PoissonSampler):
        found = type(loader.sampler if sampler is None else sampler).__name__
        raise UnsupportedError(
            f"the loader draws its batches with {found}, not by Poisson sampling, so the accounted epsilon would be wrong; "
            "pass the tensors to `batches` or give the loader a `PoissonSampler` as its batch_sampler."
        )
    if sampler.sample_rate != sample_rate or sampler.records != records:
        raise UnsupportedError(
            f"the loader samples {sampler.records} records at rate {sampler.sample_rate:g}, but rate {sample_rate:g} over "
            f"{records} records is what is accounted for; make both the same."
        )
    if sampler.ranks is not ranks:
        raise UnsupportedError("the loader's PoissonSampler must be given the ranks that share the training.")


Decay = Literal["constant", "time", "exponential", "step"]


@dataclass(frozen=True)
class Schedule:
    """A positive value by step t, by the name of its `kind`.

    `constant`; `time`: start / (1 + decay t); `exponential`: start e^(-decay t); `step`: start decay^floor(t / every).

    It is fixed before the training and depends on no record, so it costs nothing; the noise that it sets is accounted for
    step by step.
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
        if self.kind == "time" and not self.decay >= 0:
            raise SettingError("a time schedule needs a decay of 0 or more.")

    def at(self, step: int) -> float:
        """The value at a step, counted from 0."""
        if self.kind == "time":
            return self.start / (1 + self.decay * step)
        if self.kind == "exponential":
            return self.start * math.exp(-self.decay * step)
        if self.kind == "step":
            return self.start * float(self.decay ** (step // self.every))
        return self.start

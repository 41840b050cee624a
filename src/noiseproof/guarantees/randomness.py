"""Randomness: `Reproducible` for research, `Secure` for what leaves the house. One interface for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch


class Randomness(ABC):
    """Where every random number of a release comes from.

    Noise is *added to a value* rather than drawn, because safe noise must round the value to its lattice first.
    """

    kind: Literal["reproducible", "secure"]

    @abstractmethod
    def add_gaussian(self, value: torch.Tensor, scale: float) -> torch.Tensor:
        """`value` plus independent Normal(0, scale^2) on every coordinate, of `value`'s dtype and device."""

    @abstractmethod
    def add_laplace(self, value: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
        """`value` plus independent Laplace(scale) on every coordinate; `scale` may be a tensor that broadcasts."""

    @abstractmethod
    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent float64 uniforms in [0, 1)."""

    @abstractmethod
    def poisson_sample(self, records: int, rate: float) -> torch.Tensor:
        """The indices of a Poisson sample: every one of `records` is in it with probability `rate`, independently."""

    @abstractmethod
    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """One index a row, drawn with probability proportional to exp(logits), over the last dimension."""

    @property
    @abstractmethod
    def generator(self) -> torch.Generator:
        """A torch generator for what privacy does not rest on: initial weights, dropout, the order of public work."""

    @abstractmethod
    def spawn(self, key: int) -> Randomness:
        """An independent child; the same `key` of a reproducible parent gives the same child."""

    @abstractmethod
    def rounding(self, scale: float, coordinates: int) -> float:
        """How much L2 sensitivity rounding to the noise's lattice adds to a vector of `coordinates` (0 if none)."""

    @abstractmethod
    def slack(self, draws: int) -> tuple[float, float]:
        """(epsilon, delta) to add for `draws` draws that are not exactly of the stated law."""

"""Game: two worlds that differ in one record, and a score that tries to tell which one answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from noiseproof.guarantees.budget import Neighbours
from noiseproof.guarantees.card import Claim, Proof, Unit


@dataclass(frozen=True)
class Game:
    """The attack that hits a mechanism hardest, ready to be played many times.

    `play(world, trials, generator)` runs the mechanism `trials` times, on D where `world` is 0 and on its neighbour D'
    where it is 1, and returns one float64 score a trial: the larger, the more it looks like world 1. It is vectorised
    over the trials where the mechanism allows. `claimed` and `proven` are the guarantees of *exactly what `play` runs*
    (not of a longer training with the same settings), so that a bound above one of them refutes it.
    """

    name: str
    play: Callable[[int, int, torch.Generator], torch.Tensor]
    neighbours: Neighbours
    delta: float
    claimed: Claim | None = None
    proven: Proof | None = None
    unit: Unit = "record"
    gaussian: bool = False
    """Whether both worlds' scores are normal with one variance, so that the tighter Gaussian-DP fit is valid."""

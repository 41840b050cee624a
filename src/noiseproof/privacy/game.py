"""Game: two worlds that differ in one record, and a score that tries to tell which one answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from noiseproof.privacy.budget import Neighbours, check_delta, check_neighbours
from noiseproof.privacy.card import Claim, Proof, Unit


@dataclass(frozen=True)
class Game:
    """The attack that hits a mechanism hardest, ready to be played many times.

    `play(world, trials, generator)` runs the mechanism `trials` times, on D where `world` is 0 and on its neighbour D'
    where it is 1, and returns one float64 score a trial: the larger, the more it looks like world 1. It is vectorised
    over the trials where the mechanism allows. Trials are independent: no draw of the mechanism's is shared between
    them, and all its randomness comes from `generator`. Scores may tie, and may be infinite where the score is certain;
    a NaN is a failure of the mechanism. `claimed` and `proven` are the guarantees of *exactly what `play` runs* (not of
    a longer training with the same settings), for the game's own unit and neighbours and at a delta that is not above
    the game's, so that a bound above one of them refutes it.
    """

    name: str
    play: Callable[[int, int, torch.Generator], torch.Tensor]
    neighbours: Neighbours
    delta: float
    claimed: Claim | None = None
    proven: Proof | None = None
    unit: Unit = "record"
    gaussian: bool = False
    """Whether both worlds' scores are normal with one variance, so that the tighter Gaussian-DP fit is valid. Not so
    where records are sampled, where noise is cut off, or where only a proof says mu-GDP."""

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_neighbours(self.neighbours)
        for promise in (self.claimed, self.proven):
            if promise is not None and promise.delta > self.delta * (1 + 1e-6):
                raise ValueError(f"{self.name}: an audit at delta {self.delta} says nothing about {promise.delta}")
        if self.claimed is not None and (self.claimed.unit, self.claimed.neighbours) != (self.unit, self.neighbours):
            raise ValueError(f"{self.name}: the claim is for other neighbours or another unit than the game")

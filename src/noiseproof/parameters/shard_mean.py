"""shard-mean: the mean update of networks on disjoint shards, with Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Gaussian, accountants, calibration
from noiseproof.guarantees.card import Proof
from noiseproof.guarantees.events import DpEvent, ReplaceOneDpEvent
from noiseproof.methods import register
from noiseproof.parameters.games import shard_mean_game
from noiseproof.parameters.shard_method import ASSUMPTIONS, ShardMethod
from noiseproof.progress import Progress

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget, Game, Randomness


@register
@dataclass(frozen=True)
class ShardMean(ShardMethod):
    """Networks on disjoint shards from one public start: the mean of their clipped updates, with Gaussian noise.

    Costs one training on all records, whatever the number of shards. The noise's norm is that of the clipped mean times
    2 sigma sqrt(parameters) / shards: many shards and few parameters are what it needs.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP: one Gaussian mechanism of L2 sensitivity 2 clip / shards. Unit: record. Neighbours: replace-one
    or add-or-remove, with the same noise: every record is put into a shard by a draw of its own, so that data sets that
    differ in one record differ in one shard, whose update may then be any other of norm `clip`. Assumptions: the start
    and the number of shards are public; see also the card's. Dwork and Roth 2014, appendix A; Balle and Wang 2018.
    """

    name: ClassVar[str] = "shard-mean"

    clip: float = 1.0
    """Largest norm of one shard's update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise SettingError(f"shard-mean's setting clip must be a finite number greater than 0, not {self.clip}.")

    def mean(self, updates: torch.Tensor) -> torch.Tensor:
        """The mean of updates (shards, parameters), each clipped to the norm `clip`."""
        # A millionth less than the norm: what float32 rounds up must not exceed it.
        limit = self.clip * (1 - 1e-6)
        scales = (limit / updates.double().norm(dim=1).clamp(min=limit)) / len(updates)
        return (scales @ updates.double()).to(updates.dtype)

    def mechanism(self, budget: Budget, shards: int) -> Gaussian:
        """The noise of the mean of so many updates."""
        # Under both relations one shard changes: add-or-remove's arithmetic has one contribution, which this is.
        sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1).sigma
        return Gaussian(2 * self.clip / shards, sigma)

    def proof(self, budget: Budget, mechanism: Gaussian, assumptions: tuple[str, ...]) -> Proof:
        """What the release of one mean proves."""
        event: DpEvent = mechanism.event
        if budget.neighbours == "replace-one":
            event = ReplaceOneDpEvent(event)
        return accountants.epsilon(event, budget.delta, neighbours=budget.neighbours).proof(*assumptions)

    def _publish(
        self, updates: torch.Tensor, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[torch.Tensor, Proof, dict[str, Any], tuple[str, ...]]:
        mechanism = self.mechanism(budget, len(updates))
        proven = self.proof(budget, mechanism, (*ASSUMPTIONS, *rng.assumptions))
        noised = mechanism.release(self.mean(updates), rng)
        parameters = updates.shape[1]
        # As long as the noise is longer than any mean can be, the network is its start plus noise.
        length = mechanism.sigma * mechanism.sensitivity * math.sqrt(parameters) / self.clip
        notes: tuple[str, ...] = ()
        if length > 1:
            notes = (
                f"The noise is {length:.3g} times as long as the longest mean of updates can be: {parameters} parameters "
                f"are too many for {len(updates)} shards at this budget; take a smaller network, such as a linear one on "
                "public features.",
            )
        ran = {
            "clip": self.clip,
            "sigma": mechanism.sigma,
            "sensitivity": mechanism.sensitivity,
            "noise / clip": length,
        }
        return noised, proven, ran, notes

    def game(self, budget: Budget) -> Game:
        """An update of the clipping norm turns round; the others are 0."""
        return shard_mean_game(self, budget)

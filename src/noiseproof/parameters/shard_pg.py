"""shard-pg: Mao et al.'s draw where it can be proven: networks on disjoint shards, public grids, all draws composed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Exponential, accountants
from noiseproof.guarantees.card import Proof
from noiseproof.guarantees.concentrated import rho_within
from noiseproof.guarantees.events import SelfComposedDpEvent
from noiseproof.methods import register
from noiseproof.parameters.collection import Collection
from noiseproof.parameters.density import PublicDensity, true_sensitivity
from noiseproof.parameters.draw import draw
from noiseproof.parameters.games import shard_pg_game
from noiseproof.parameters.layout import Layout
from noiseproof.parameters.shard_method import ASSUMPTIONS, ShardMethod
from noiseproof.progress import Progress

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget, Game, Randomness


@register
@dataclass(frozen=True)
class ShardPg(ShardMethod):
    """The paper's draw on networks of disjoint shards: public grid, bandwidth and window, true du, all draws composed.

    Usable for a small head on public features: each of N parameters may spend an N-th of the budget's rho.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP: N draws of the exponential mechanism, each epsilon_j-DP with a privacy loss of bounded range,
    hence N epsilon_j^2 / 8 in zCDP. The score's sensitivity is erf(w / (2 sqrt 2 b)) / shards, whatever the updates
    are. Unit: record. Neighbours: replace-one or add-or-remove: every record is put into a shard by a draw of its own,
    so that data sets that differ in one record differ in one shard. Assumptions: start, grid, bandwidth, window and the
    number of shards are public; see also the card's. McSherry and Talwar 2007; Cesar and Rogers 2021.
    """

    name: ClassVar[str] = "shard-pg"

    radius: float = 0.6
    """The grid reaches from -radius to radius, around the start."""
    bandwidth: float = 0.2
    window: float = 1.0
    resolution: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.density()

    def density(self) -> PublicDensity:
        """The public grid and bandwidth."""
        return PublicDensity(self.radius, self.bandwidth, self.window, self.resolution)

    def mechanism(self, budget: Budget, shards: int, parameters: int) -> Exponential:
        """The draw of one of so many parameters."""
        if budget.delta == 0:
            epsilon = budget.epsilon / parameters
        else:
            rho = rho_within(budget.epsilon, budget.delta)
            # A hair below what rho allows, so that rounding stays on the safe side.
            epsilon = max(math.sqrt(8 * rho / parameters) * (1 - 1e-9), budget.epsilon / parameters)
        if epsilon < 1e-6:
            raise SettingError(
                f"{parameters} parameters are too many to draw within epsilon {budget.epsilon:g}; take a smaller network."
            )
        return Exponential(true_sensitivity(shards, self.window) * (1 + 1e-9), epsilon, budget.neighbours)

    def proof(self, budget: Budget, mechanism: Exponential, parameters: int, assumptions: tuple[str, ...]) -> Proof:
        """What the draws of so many parameters prove together."""
        event = SelfComposedDpEvent(mechanism.event, parameters)
        terms = {"neighbours": budget.neighbours}
        together = accountants.epsilon(event, budget.delta, accountant="zcdp", **terms)
        simple = accountants.epsilon(event, 0.0, accountant="naive", **terms)
        best = together if together.epsilon <= simple.epsilon else simple
        return best.proof(*assumptions)

    def _publish(
        self, updates: torch.Tensor, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[torch.Tensor, Proof, dict[str, Any], tuple[str, ...]]:
        shards, parameters = updates.shape
        mechanism = self.mechanism(budget, shards, parameters)
        proven = self.proof(budget, mechanism, parameters, (*ASSUMPTIONS, *rng.assumptions))
        collection = Collection(updates, Layout((("update", (parameters,)),)))
        density = self.density()
        drawn = draw(collection, density, mechanism, rng, progress=progress)
        # How much likelier than a point where no network is the point is where all of them are.
        contrast = mechanism.epsilon * shards / 2
        notes: tuple[str, ...] = ()
        if contrast < math.log(density.points):
            notes = (
                f"Even where all {shards} networks agree, their value is drawn at most e^{contrast:.2g} times as often as "
                f"any other of {density.points}: {parameters} parameters are too many for these shards and this budget; "
                "take a small head on public features.",
            )
        ran = {
            "epsilon of a draw": mechanism.epsilon,
            "sensitivity": mechanism.sensitivity,
            "grid points": density.points,
            "radius": self.radius,
            "bandwidth": self.bandwidth,
        }
        return drawn.values, proven, ran, notes

    def game(self, budget: Budget) -> Game:
        """One of 50 updates changes sides at each of 16 parameters."""
        return shard_pg_game(self, budget)

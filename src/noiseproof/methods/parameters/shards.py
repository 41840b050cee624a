"""What shard-mean and shard-pg share: networks on disjoint shards, all from one public start."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.parameters.collection import Collection, Layout
from noiseproof.methods.parameters.density import PublicDensity, draw, true_sensitivity
from noiseproof.methods.parameters.games import shard_mean_game, shard_pg_game
from noiseproof.methods.parameters.training import train_collection
from noiseproof.networks import Training
from noiseproof.privacy import Exponential, Gaussian, accountants, calibration
from noiseproof.privacy.card import Claim, Place, Proof
from noiseproof.privacy.concentrated import rho_within
from noiseproof.privacy.events import DpEvent, ReplaceOneDpEvent, SelfComposedDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Game, Randomness


ASSUMPTIONS = (
    "a network's weights depend on its own shard alone, also in their last bits, though all are trained as one batch",
    "the number of shards is a setting: where it is derived from the number of records, that is public",
)
_MOST = 2000
"""More shards than this are not worth their memory."""


@dataclass(frozen=True)
class ShardMethod(Method):
    """A network on each of many disjoint shards; what they have in common is published with noise."""

    place: ClassVar[Place] = "parameters"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record"

    shards: int | None = None
    """How many; None takes one for every `records_a_shard` records, 2000 at most."""
    records_a_shard: int = 5
    epochs: int = 10
    batch_size: int = 16
    lr: float = 0.5
    gain: float = 4.0
    """What the published update is multiplied by, after the noise: a network that saw few records moves too little."""
    workers: int = 1

    def __post_init__(self) -> None:
        self._training()
        if self.shards is not None and self.shards < 2:
            raise SettingError(f"{self.name} needs at least 2 shards, not {self.shards}.")
        for name in ("records_a_shard", "workers"):
            if getattr(self, name) < 1:
                raise SettingError(f"{self.name}'s setting {name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.gain < float("inf"):
            raise SettingError(f"{self.name}'s setting gain must be a finite number greater than 0, not {self.gain}.")

    def _training(self) -> Training:
        return Training(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd")

    def count(self, records: int) -> int:
        """How many shards so many records are cut into."""
        if self.shards is not None:
            return self.shards
        return max(2, min(records // self.records_a_shard, _MOST))

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> ModelRelease:
        """Draw every record's shard, train a network on each, and publish the start plus their noised update."""
        count = self.count(len(dataset))
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        drawn = (rng.uniform((len(dataset),)) * count).long().clamp_(max=count - 1)
        order = drawn.argsort(stable=True)
        shards = list(order.split(torch.bincount(drawn, minlength=count).tolist()))
        module = network.build(seed)
        layout = Layout.of_module(module)
        start = layout.flatten(dict(module.named_parameters()))
        collection = train_collection(
            network, dataset, count, self._training(), seed=seed, shards=shards, workers=self.workers, progress=progress
        )
        updates = collection.rows.sub_(start)
        # A network whose training diverged counts as one that did not move: its shard must not show.
        updates[~torch.isfinite(updates).all(1)] = 0.0
        update, proven, ran, notes = self._publish(updates, budget, rng, progress)
        layout.module(module, start + self.gain * update)
        claimed = Claim(
            epsilon=budget.epsilon,
            delta=budget.delta,
            neighbours=budget.neighbours,
            source="the budget that the noise was calibrated to",
        )
        facts = {"shards": count, "parameters": layout.size, "epochs": self.epochs, "gain": self.gain, **ran}
        card = self.card(dataset, budget, rng, claimed=claimed, proven=proven, ran=facts, notes=notes)
        return ModelRelease(module, network, card, dataset.public, self.settings())

    @abstractmethod
    def _publish(
        self, updates: torch.Tensor, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[torch.Tensor, Proof, dict[str, Any], tuple[str, ...]]:
        """The update to publish, from one of each shard; what is proven of it, what ran, what a reader must know."""


# shard-mean: the mean update of networks on disjoint shards, with Gaussian noise.


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


# shard-pg: Mao et al.'s draw where it can be proven: networks on disjoint shards, public grids, all draws composed.


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

"""shard-mean and shard-pg: networks on disjoint shards from one public start, whose updates are published with noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from noiseproof.data import Dataset, Public
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import (
    Count,
    FixedShards,
    Positive,
    claim_of,
    crowded,
    draw_shards,
    initial_seed,
    proven_game,
    seeded_by,
)
from noiseproof.methods.parameters.collection import Collection, ParameterLayout
from noiseproof.methods.parameters.density import PublicDensity, Resolution, draw, scores, true_sensitivity
from noiseproof.methods.parameters.training import train_collection
from noiseproof.networks import Network, Training
from noiseproof.networks.objectives import Objective
from noiseproof.privacy import Budget, Exponential, Game, Gaussian, Proof, Randomness, accountants, calibration
from noiseproof.privacy.card import Place
from noiseproof.privacy.events import DpEvent, ReplaceOneDpEvent, SelfComposedDpEvent
from noiseproof.privacy.renyi import rho_within
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease

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
    units: ClassVar[tuple[str, ...]] = ("record", "person")

    shards: Annotated[int, Ge(2)] | None = None
    """How many; None takes one for every `records_a_shard` records, 2000 at most."""
    records_a_shard: Count = 5
    """Records of a shard on average, where `shards` is None."""
    epochs: Annotated[int, Ge(0)] = 10
    """Passes of each network over its shard."""
    batch_size: Count = 16
    """Records of a network's step, or all of its shard where that has fewer."""
    lr: Positive = 0.5
    """SGD's learning rate."""
    gain: Positive = 4.0
    """What the published update is multiplied by, after the noise: a network that saw few records moves too little."""
    workers: Count = 1
    """Processes that train networks which cannot be trained as one (convolutions)."""

    def for_records(self, records: int, public: Public) -> Self:
        """Of a number the update as it is: least squares does not move too little, and more of it overshoots."""
        suited = super().for_records(records, public)
        return suited if public.task == "classification" else replace(suited, gain=1.0)

    def network(self, public: Public) -> Network:
        """A linear one from 0: a hidden layer's weights would be noise; of classes, on normalised records.

        Pixels that all classes share take room in a clipped update and tell nothing, so that each record's mean goes.
        """
        return Network(
            "linear", public.shape, public.outputs, {"start": "zeros", "norm": public.task == "classification"}
        )

    def _training(self, public: Public) -> Training:
        loss = Objective.of(public, {}).stacked
        return Training(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd", loss=loss)

    def count(self, records: int) -> int:
        """How many shards so many records are cut into."""
        if self.shards is not None:
            return self.shards
        return max(2, min(records // self.records_a_shard, _MOST))

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> ModelRelease:
        """Draw every record's shard, train a network on each, and publish the start plus their noised update."""
        module, start, updates = self.updates(network, dataset, rng, progress)
        layout = ParameterLayout.of(module)
        update, proven, ran, notes = self._publish(updates, budget, rng, progress)
        layout.load(module, start + self.gain * update)
        ran = {"shards": len(updates), "parameters": layout.size, "epochs": self.epochs, "gain": self.gain, **ran}
        card = self.card(dataset, budget, rng, claimed=claim_of(budget), proven=proven, ran=ran, notes=notes)
        release = ModelRelease(module, network, card, dataset.public, self.settings())
        event = self.planned_event(dataset, budget)
        return release if event is None else release.logged([(event, 1)])

    def updates(
        self, network: Network, dataset: Dataset, rng: Randomness, progress: Progress = SILENT
    ) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """The public start, as a module and as a vector, and how far the network of each shard moved from it.

        Formal guarantee
        ----------------
        None by itself: updates are exact. Row j depends on no records but those of shard j.
        """
        count = self.count(dataset.persons)
        seed = initial_seed(rng)
        shards = draw_shards(rng, dataset, count)
        module = network.build(seed)
        start = ParameterLayout.of(module).flatten(module)
        collection = train_collection(
            network,
            dataset,
            count,
            self._training(dataset.public),
            seed=seed,
            shards=shards,
            workers=self.workers,
            progress=progress,
        )
        updates = collection.rows.sub_(start)
        # A network whose training diverged counts as one that did not move: its shard must not show.
        updates[~torch.isfinite(updates).all(1)] = 0.0
        return module, start, updates

    @abstractmethod
    def _publish(
        self, updates: torch.Tensor, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[torch.Tensor, Proof, dict[str, Any], tuple[str, ...]]:
        """The update to publish, from one of each shard; what is proven of it, what ran, what a reader must know."""

    def _both_worlds(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        lr: float,
        budget: Budget,
        canaries: int,
        *,
        bias: bool = True,
    ) -> list[torch.Tensor]:
        """The updates of a training without and with the first record, for games.

        The others have a shard each, and the first record joins the last one's; under replace-one it is that one's
        double in the first world. The whole training runs, so that a network which learned from another shard than its
        own would move in one world only.
        """
        count = len(labels) - 1
        method = replace(self, shards=count, epochs=1, batch_size=2, lr=lr, workers=1)
        public = Public(tuple(features.shape[1:]), ("0", "1"))
        module = nn.Linear(public.shape[0], 2, bias=bias)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        network, there = Network.of(module, public.shape, 2), Dataset("game", features, labels, public)
        where = torch.cat([torch.tensor([count - 1]), torch.arange(count)])
        everyone = torch.arange(count + 1)
        without = (
            everyone[1:] if budget.neighbours == "add-or-remove" else everyone.index_fill(0, where.new_zeros(1), count)
        )
        return [
            method.updates(
                network,
                crowded(there.take(taken), 0, canaries if len(taken) > count else 1),
                FixedShards(where[-len(taken) :], count),
            )[2]
            for taken in (without, everyone)
        ]


def _of_one_shard(mechanism: Gaussian, budget: Budget) -> DpEvent:
    """The event of a mean's release: under both relations one shard's update is exchanged for another."""
    event = mechanism.event
    return ReplaceOneDpEvent(event) if budget.neighbours == "replace-one" else event


@register
@dataclass(frozen=True)
class ShardMean(ShardMethod):
    """Networks on disjoint shards from one public start: the mean of their clipped updates, with Gaussian noise.

    Costs one training on all records, whatever the number of shards. The noise's norm is that of the clipped mean times
    2 sigma sqrt(parameters) / shards: many shards and few parameters are what it needs.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP: one Gaussian mechanism of L2 sensitivity 2 clip / shards. Unit: record, or
    person (whose records lie in one shard). Neighbours: replace-one
    or add-or-remove, with the same noise: every record is put into a shard by a draw of its own, so that data sets that
    differ in one record differ in one shard, whose update may then be any other of norm `clip`. Assumptions: the start
    and the number of shards are public; see also the card's. Dwork and Roth 2014, appendix A; Balle and Wang 2018.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("shard-mean", records, epsilon=3, epochs=2)
        >>> release.card.verdict, release.card.ran["shards"]
        ('proven', 40)
    """

    name: ClassVar[str] = "shard-mean"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")

    clip: Positive = 1.0
    """Largest norm of one shard's update."""

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
        event = _of_one_shard(mechanism, budget)
        return accountants.epsilon(event, budget.delta, neighbours=budget.neighbours).proof(*assumptions)

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent:
        """The one release of a mean, whose noise does not depend on how many shards there are."""
        return _of_one_shard(self.mechanism(budget, 1), budget)

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

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A record turns its shard's update round; those of the other shards stay as they are."""
        features = torch.cat([torch.tensor([[100.0]]), torch.full((10, 1), 10.0)])
        # One of the two classes is not yet so sure that nothing can be learned.
        worlds = [
            torch.stack([self.mean(updates) for updates in self._both_worlds(features, labels, 1e12, budget, canaries)])
            for labels in (torch.arange(11).clamp(max=1), torch.arange(11).eq(0).long())
        ]
        means = max(worlds, key=lambda both: float((both[1] - both[0]).norm()))
        mechanism = self.mechanism(budget, 10)
        direction = functional.normalize(means[1] - means[0], dim=0)

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            noised = mechanism.release(means[world].expand(trials, -1).clone(), seeded_by(generator))
            return (noised @ direction).double()

        name = f"{self.name}: an update turns round"
        return proven_game(name, play, budget, self.proof(budget, mechanism, ()), gaussian=True, canaries=canaries)


@register
@dataclass(frozen=True)
class ShardPg(ShardMethod):
    """The paper's draw on networks of disjoint shards: public grid, bandwidth and window, true du, all draws composed.

    Usable for a small head on public features: each of N parameters may spend an N-th of the budget's rho.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP: N draws of the exponential mechanism, each epsilon_j-DP with a privacy loss of bounded range,
    hence N epsilon_j^2 / 8 in zCDP. The score's sensitivity is erf(w / (2 sqrt 2 b)) / shards, whatever the updates
    are. Unit: record, or person (whose records lie in one shard). Neighbours: replace-one or add-or-remove: every
    record is put into a shard by a draw of its own, so that data sets that differ in one record differ in one shard.
    Assumptions: start, grid, bandwidth, window and the number of shards are public; see also the card's. McSherry and
    Talwar 2007; Cesar and Rogers 2021.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("shard-pg", records, epsilon=3, epochs=2)
        >>> release.card.verdict, release.card.ran["shards"]
        ('proven', 40)
    """

    name: ClassVar[str] = "shard-pg"

    lr: Positive = 0.1
    radius: Positive = 0.15
    """The grid reaches from -radius to radius, around the start."""
    bandwidth: Positive = 0.075
    """The standard deviation of the density's normal kernels, in units of a parameter."""
    window: Positive = 1.0
    """The window of the score, in bandwidths."""
    resolution: Resolution = 2
    """Few points: every one that a draw could take by chance is one more way to be wrong."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.density()  # refuses too many points

    def density(self) -> PublicDensity:
        """The public grid and bandwidth."""
        return PublicDensity(self.radius, self.bandwidth, window=self.window, resolution=self.resolution)

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
        collection = Collection(updates, ParameterLayout((("update", (parameters,)),)))
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

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A record turns its shard's two weights from one end of a public grid to the other, where no other shard's are.

        The few others agree, so that what was drawn at the far end for both weights accuses the record: the nearer the others'
        end is to certain, the nearer that comes to the proof. The score is the likelihood ratio of what was drawn, but for
        a constant.
        """
        parameters = 2
        # Three points with windows so wide that a network, 12 bandwidths from the start, counts at one of them alone.
        method = replace(self, window=16.0, resolution=2, radius=8 * self.bandwidth)
        density = method.density()
        shards = max(2, min(4, round(4 * parameters / budget.epsilon)))
        features = torch.cat([torch.full((1, 1), 3.0), torch.ones(shards, 1)])
        # Each probability starts at one half: an update is half of the learning rate.
        worlds = torch.stack(
            method._both_worlds(
                features, torch.arange(shards + 1).clamp(max=1), 24 * self.bandwidth, budget, canaries, bias=False
            )
        ).double()
        values = worlds.transpose(1, 2).contiguous()
        mechanism = method.mechanism(budget, shards, parameters)
        # The grid is public, and so the same in both worlds.
        grid, width = density.grid(values[0])
        scored = torch.stack([scores(each, grid, width, density) for each in values])

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            chosen = mechanism.release(scored[world].expand(trials, -1, -1), seeded_by(generator))
            gains = (scored[1] - scored[0]).expand(trials, -1, -1).gather(2, chosen[..., None])
            return gains.sum((1, 2)) / mechanism.sensitivity

        proven = method.proof(budget, mechanism, parameters, ())
        return proven_game(f"{self.name}: an update changes sides", play, budget, proven, canaries=canaries)

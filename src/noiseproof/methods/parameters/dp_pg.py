"""What dp-pg and dp-pgp share: the collection, the loop for quality, the card, the release."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.parameters.collection import Collection
from noiseproof.methods.parameters.density import Draw, FittedDensity, draw, published_sensitivity, true_sensitivity
from noiseproof.methods.parameters.games import model_game
from noiseproof.methods.parameters.training import Quality, redraw, train_collection
from noiseproof.networks import Training
from noiseproof.privacy import Exponential, accountants
from noiseproof.privacy.card import Claim, Place
from noiseproof.privacy.events import PureDpEvent, SelfComposedDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, logits

if TYPE_CHECKING:
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card, Game, Randomness


PAPER = (
    "Mao, Zhu, Hong, Zhu, Zhang, Zhong: Private deep neural network models publishing for machine learning as a "
    "service. IEEE/ACM IWQoS, 2020"
)

_NO_RECORDS = Dataset("networks", torch.empty(0, 1), torch.empty(0, dtype=torch.int64), Public((1,), ()))
"""Stands in for the records of networks that were trained elsewhere."""


@dataclass(frozen=True, eq=False)
class Published:
    """A generated network as a vector, and its card."""

    vector: torch.Tensor
    card: Card


@dataclass(frozen=True)
class PublishingMethod(Method):
    """Mao et al.'s publishing: train many networks, publish one that is drawn from the densities of their parameters."""

    place: ClassVar[Place] = "parameters"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False

    models: int = 50
    epochs: int = 20
    batch_size: int = 128
    lr: float = 0.05
    momentum: float = 0.9
    bandwidth: float | None = None
    """Of the density estimate; None takes Scott's rule for each parameter."""
    window: float = 1.0
    """The window of the score, in bandwidths."""
    resolution: int = 4
    """Points of the grid in a window; an even number."""
    tail: float = 3.0
    """How far the grid reaches beyond the networks' values, in bandwidths."""
    sensitivity: Literal["paper", "true"] = "paper"
    """`paper`: 1 / (M (M - 1)); `true`: erf(window / (2 sqrt 2)) / M."""
    threshold: float | None = None
    """Redraw while the accuracy is not above it; None publishes the first draw."""
    most_draws: int = 20
    workers: int = 1
    """Processes that train networks which cannot be trained as one (convolutions)."""

    def __post_init__(self) -> None:
        self._training()
        self._density()
        self._quality()
        self.mechanism(self.models, 1.0)
        if self.workers < 1:
            raise SettingError(f"{self.name}'s setting workers must be at least 1, not {self.workers}.")

    def _training(self) -> Training:
        return Training(
            epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd", momentum=self.momentum
        )

    def _density(self) -> FittedDensity:
        return FittedDensity(self.window, self.resolution, self.tail, self.bandwidth)

    def _quality(self) -> Quality | None:
        return None if self.threshold is None else Quality(self.threshold, self.most_draws)

    def mechanism(self, models: int, epsilon: float) -> Exponential:
        """The draw of one coordinate of that many models."""
        if self.sensitivity not in ("paper", "true"):
            raise SettingError(f"{self.name}'s setting sensitivity is paper or true, not {self.sensitivity!r}.")
        paper = self.sensitivity == "paper"
        return Exponential(published_sensitivity(models) if paper else true_sensitivity(models, self.window), epsilon)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        collection: Collection | None = None,
    ) -> ModelRelease:
        """Train a collection (or take the one that is given) and publish a network drawn from it.

        Accuracies for `threshold` are measured on the private records, which no guarantee accounts for.
        """
        if collection is None:
            seed = int(torch.randint(2**31, (1,), generator=rng.generator))
            collection = train_collection(
                network,
                dataset,
                self.models,
                self._training(),
                seed=seed,
                workers=self.workers,
                progress=progress,
            )
        module, layout = network.build(), collection.layout

        def accuracy(vector: torch.Tensor) -> float:
            answers = logits(layout.module(module, vector), dataset.features)
            return float((answers.argmax(1) == dataset.labels).double().mean())

        published = self.publish(collection, budget, rng=rng, accuracy=accuracy, dataset=dataset, progress=progress)
        layout.module(module, published.vector)
        return ModelRelease(module, network, published.card, dataset.public, self.settings())

    def publish(
        self,
        collection: Collection,
        budget: Budget,
        *,
        rng: Randomness,
        accuracy: Callable[[torch.Tensor], float] | None = None,
        dataset: Dataset | None = None,
        progress: Progress = SILENT,
    ) -> Published:
        """A network drawn from a collection; `accuracy` of a vector of parameters is what a threshold asks for.

        Formal guarantee
        ----------------
        None; see the class. `dataset` is what the networks were trained on, if that is known.
        """
        quality = self._quality()
        if quality is not None and accuracy is None:
            raise SettingError("a threshold of accuracy needs records and a network to measure it with.")
        collection.check()
        drawn, draws = redraw(
            lambda: self.draw(collection, budget, rng, progress),
            lambda found: math.nan if accuracy is None else accuracy(found.values),
            quality,
        )
        return Published(drawn.values, self._card(collection, budget, rng, drawn, draws, dataset))

    @abstractmethod
    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Draw:
        """One network, drawn."""

    @abstractmethod
    def claim(self, budget: Budget) -> Claim:
        """What the paper states for one model more or less."""

    @abstractmethod
    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        """What is true for models, in words and numbers."""

    def _card(
        self,
        collection: Collection,
        budget: Budget,
        rng: Randomness,
        drawn: Draw,
        draws: int,
        dataset: Dataset | None,
    ) -> Card:
        why, numbers = self._why(collection, budget)
        notes: tuple[str, ...] = ()
        if self.threshold is not None:
            notes += (
                "Draws were repeated until one was accurate enough; which one was published tells of the records that "
                "accuracy was measured on, and no guarantee accounts for it.",
            )
        if drawn.fixed:
            notes += (
                f"{drawn.fixed} parameters are the same in all networks and were published as they are (weights that "
                "training never moved).",
            )
        card = self.card(
            dataset or _NO_RECORDS,
            dataclasses.replace(budget, neighbours="add-or-remove"),
            rng,
            claimed=self.claim(budget),
            why="Nothing is proven for a record: each was seen by all of the networks. " + why,
            unit="model",
            ran={
                "models": len(collection),
                "parameters": collection.parameters,
                "draws": draws,
                "grid points": drawn.points,
                "window": self.window,
                "sensitivity used": self.mechanism(len(collection), budget.epsilon).sensitivity,
                "true sensitivity": true_sensitivity(len(collection), self.window),
                **numbers,
            },
            notes=notes,
        )
        if dataset is not None:
            return card
        return card.model_copy(update={"ran": {key: value for key, value in card.ran.items() if key != "records"}})

    def true_epsilon(self, models: int, draws: int, epsilon: float, delta: float) -> tuple[float, float]:
        """Of one draw, and of `draws` together at delta, for a model, were grids and bandwidths public."""
        one = epsilon * true_sensitivity(models, self.window) / self.mechanism(models, epsilon).sensitivity
        event = SelfComposedDpEvent(PureDpEvent(one, bounded_range=True), draws)
        return one, accountants.epsilon(event, delta, accountant="rdp").epsilon

    def rounds(self) -> int:
        """How many networks may be drawn before one is published."""
        return 1 if self.threshold is None else self.most_draws

    def game(self, budget: Budget) -> Game:
        """One of M networks is left out: how many of 100 published parameters lie where it was not."""
        return model_game(self, budget)


# dp-pg: draw every parameter from the density of its values in many networks (Mao et al. 2020).


@register
@dataclass(frozen=True)
class DpPg(PublishingMethod):
    """Mao et al.'s parameter generating: each parameter is drawn from its density over many networks.

    All networks start from the same weights and are trained on all records. Costs the training of `models` networks.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-DP for one of the *models*, max_j epsilon_j over the parameters. One record touches all models
    and all parameters, so that nothing is said of records. For models the sensitivity is erf(w / (2 sqrt 2 b)) / M and
    not 1 / (M (M - 1)), the draws of all parameters are draws from the same models and add up, and ranges and
    bandwidths are read off the models. The card gives the epsilon that would hold were these public.
    """

    name: ClassVar[str] = "dp-pg"
    claims: ClassVar[str] = "epsilon for a model (not a record): the largest of its parameters' epsilons"

    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Draw:
        """Algorithm 1's inner loop, for all parameters."""
        mechanism = self.mechanism(len(collection), budget.epsilon)
        return draw(collection, self._density(), mechanism, rng, progress=progress)

    def claim(self, budget: Budget) -> Claim:
        """max_j epsilon_j, by corollary 1."""
        return Claim(epsilon=budget.epsilon, delta=0.0, unit="model", source="Mao et al., corollary 1")

    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        draws = collection.parameters * self.rounds()
        one, all_ = self.true_epsilon(len(collection), draws, budget.epsilon, budget.delta)
        return (
            f"For a model, one draw would be {one:.4g}-DP and all {draws} draws together {all_:.4g} at delta "
            f"{budget.delta:g}, were grids and bandwidths public; they were read off the networks, so that not even "
            "that is proven.",
            {"true epsilon of a draw": one, "true epsilon of a model": all_, "delta of a model": budget.delta},
        )

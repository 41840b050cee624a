"""dp-pg: draw every parameter from the density of its values in many networks (Mao et al. 2020); what dp-pgp shares."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import BelowOne, Count, NonNegative, Positive, Share, Within, initial_seed, seeded_by
from noiseproof.methods.parameters.collection import Collection, ParameterLayout
from noiseproof.methods.parameters.density import (
    BandwidthRule,
    Drawn,
    FittedDensity,
    Resolution,
    draw,
    published_sensitivity,
    true_sensitivity,
)
from noiseproof.methods.parameters.training import train_collection
from noiseproof.networks import Network, Training
from noiseproof.privacy import Budget, Card, Exponential, Game, Randomness, accountants
from noiseproof.privacy.card import Claim, Place
from noiseproof.privacy.events import PureDpEvent, SelfComposedDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, logits

PAPER = (
    "Mao, Zhu, Hong, Zhu, Zhang, Zhong: Private deep neural network models publishing for machine learning as a "
    "service. IEEE/ACM IWQoS, 2020"
)

_NO_RECORDS = Dataset("networks", torch.empty(0, 1), torch.empty(0, dtype=torch.int64), Public((1,), ()))
"""Stands in for the records of networks that were trained elsewhere."""
_TOGETHER = 50
"""A game's trials that are drawn as the layers of one network; layers are drawn independently."""


@dataclass(frozen=True, eq=False)
class Published:
    """A generated network and its card, and what is for the eyes of the networks' owner only."""

    vector: torch.Tensor
    card: Card
    fixed: int
    """How many parameters are the same in all networks, and so were published as they are."""


@dataclass(frozen=True)
class PublishingMethod(Method):
    """Mao et al.'s publishing: train many networks, publish one that is drawn from the densities of their parameters."""

    place: ClassVar[Place] = "parameters"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False

    models: Annotated[int, Ge(2)] = 50
    """M, how many networks are trained, each on all records."""
    epochs: Annotated[int, Ge(0)] = 20
    """Passes over the records, for each network."""
    batch_size: Count = 128
    """Records of a step, in epochs that each network shuffles in its own way."""
    lr: Positive = 0.05
    """SGD's learning rate."""
    momentum: BelowOne = 0.9
    """SGD's momentum."""
    bandwidth: Positive | BandwidthRule = "scott"
    """Of the density estimate: a number for all parameters, or a rule for each: `scott`, or `sheather-jones`, which the paper
    cites and which takes longer."""
    window: Positive = 1.0
    """The window of the score, in bandwidths."""
    resolution: Resolution = 4
    """Points of the grid in a window; an even number."""
    tail: NonNegative = 3.0
    """How far the grid reaches beyond the networks' values, in bandwidths."""
    sensitivity: Literal["paper", "true"] = "paper"
    """`paper`: 1 / (M (M - 1)); `true`: erf(window / (2 sqrt 2)) / M."""
    threshold: Share | None = None
    """Redraw while the accuracy is not above it; None publishes the first draw."""
    tested: Within = 0.1
    """Share of the records that is kept from training where there is a threshold, to measure draws on (the paper's step 7)."""
    most_draws: Count = 20
    """Draws after which, with a `threshold`, nothing is published."""
    workers: Count = 1
    """Processes that train networks which cannot be trained as one (convolutions)."""

    def _training(self) -> Training:
        return Training(
            epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, optimizer="sgd", momentum=self.momentum
        )

    def _density(self) -> FittedDensity:
        return FittedDensity(window=self.window, resolution=self.resolution, tail=self.tail, bandwidth=self.bandwidth)

    def mechanism(self, models: int, epsilon: float) -> Exponential:
        """The draw of one coordinate of that many models."""
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

        Accuracies for `threshold` are measured on private records, which no guarantee accounts for.
        """
        taught = held_out = dataset
        if collection is None:
            if self.threshold is not None:
                aside = rng.uniform((len(dataset),)) < self.tested
                held_out, taught = (dataset.take(part.nonzero().flatten()) for part in (aside, ~aside))
            seed = initial_seed(rng)
            collection = train_collection(
                network, taught, self.models, self._training(), seed=seed, workers=self.workers, progress=progress
            )
        accuracy = accuracy_of(network, collection.layout, held_out)
        published = self.publish(collection, budget, rng=rng, accuracy=accuracy, dataset=dataset, progress=progress)
        module = collection.layout.load(network.build(), published.vector)
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
        """A network drawn from a collection.

        Args:
            collection: Trained networks of one architecture.
            budget: Its epsilon is that of one parameter's draw.
            rng: Where the draws come from.
            accuracy: That of a vector of parameters, which a `threshold` asks for.
            dataset: What the networks were trained on, if that is known.
            progress: What to tell of it.

        Returns:
            The network's parameters and its card.

        Raises:
            SettingError: If there is a threshold and no `accuracy` to hold against it.
            NoiseproofError: If no draw was accurate enough.

        Formal guarantee
        ----------------
        None; see the class.
        """
        if self.threshold is not None and accuracy is None:
            raise SettingError("a threshold of accuracy needs records and a network to measure it with.")
        collection.check()
        for _ in range(self.rounds):
            drawn = self.draw(collection, budget, rng, progress)
            if self.threshold is None or accuracy is None or accuracy(drawn.values) > self.threshold:
                break
        else:
            raise NoiseproofError(
                f"none of {self.most_draws} draws was more accurate than {self.threshold:g}; nothing was published: "
                "lower the threshold, raise epsilon or train the networks for longer."
            )
        return Published(drawn.values, self._card(collection, budget, rng, dataset), drawn.fixed)

    @abstractmethod
    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Drawn:
        """One network, drawn."""

    @abstractmethod
    def claim(self, budget: Budget) -> Claim:
        """What the paper states for one model more or less."""

    @abstractmethod
    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        """What is true for models, in words and in numbers: `true epsilon of a model` is None where there is none."""

    def _card(self, collection: Collection, budget: Budget, rng: Randomness, dataset: Dataset | None) -> Card:
        why, numbers = self._why(collection, budget)
        notes: tuple[str, ...] = (
            "Parameters that are the same in all networks (weights that training never moved) are published as they are.",
        )
        if self.threshold is not None:
            notes += (
                "Draws were repeated until one was accurate enough; which one was published tells of the records that "
                "accuracy was measured on, and no guarantee accounts for it.",
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
                "draws at most": self.rounds,
                "window": self.window,
                "sensitivity used": self.mechanism(len(collection), budget.epsilon).sensitivity,
                "true sensitivity": true_sensitivity(len(collection), self.window),
                **numbers,
                "delta of a model": budget.delta,
            },
            notes=notes,
        )
        if dataset is None:
            known = {key: value for key, value in card.ran.items() if key != "records"}
            card = card.model_copy(update={"ran": known})
        return card

    def true_epsilon(self, models: int, draws: int, epsilon: float, delta: float) -> tuple[float, float]:
        """Of one draw, and of `draws` together at delta, for a model, were grids and bandwidths public."""
        one = epsilon * true_sensitivity(models, self.window) / self.mechanism(models, epsilon).sensitivity
        event = SelfComposedDpEvent(PureDpEvent(one, bounded_range=True), draws)
        return one, accountants.epsilon(event, delta, accountant="rdp").epsilon

    @property
    def rounds(self) -> int:
        """How many networks may be drawn before one is published."""
        return 1 if self.threshold is None else self.most_draws

    def game(self, budget: Budget, parameters: int = 100) -> Game:
        """One model less: half of all models have 1 where the others have -1, and one of those with 1 is left out.

        With both halves as many, a draw is as likely to be near 1 as near -1; with one less it is likelier near -1.
        Every parameter is such a draw. The score is how many of them are below 0: what differs in the grids' ends does
        not even count. A third as many parameters lie around 100, so that a method which treats large ones apart has
        them. Trials run the method's own draw.
        """
        models = self.models // 2 * 2
        sides = torch.ones(models, 1).index_fill(0, torch.arange(models // 2), -1.0).expand(models, parameters)
        large = 100 + torch.linspace(-1, 1, models)[:, None] + torch.linspace(0, 1, parameters // 3)
        rows = torch.cat([sides, large], dim=1)
        worlds = (rows, rows[:-1])

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            found = []
            for start in range(0, trials, _TOGETHER):
                count = min(_TOGETHER, trials - start)
                layout = ParameterLayout(tuple((f"{layer}.weight", (rows.shape[1],)) for layer in range(count)))
                drawn = self.draw(Collection(worlds[world].repeat(1, count), layout), budget, rng).values
                found.append((drawn.reshape(count, -1)[:, :parameters] < 0).sum(1))
            return torch.cat(found).double()

        name = f"{self.name}: one of {models} models is left out"
        return Game(name, play, "add-or-remove", budget.delta, self.claim(budget), unit="model")


def accuracy_of(network: Network, layout: ParameterLayout, dataset: Dataset) -> Callable[[torch.Tensor], float]:
    """What measures a vector of parameters: the share of the records that such a network labels right."""
    module = network.build()

    def accuracy(vector: torch.Tensor) -> float:
        answers = logits(layout.load(module, vector), dataset.features)
        return float((answers.argmax(1) == dataset.labels).double().mean())

    return accuracy


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

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> card = npf.train("dp-pg", records, epsilon=3, models=5, epochs=1).card
        >>> card.verdict, card.claimed.unit
        ('nothing proven', 'model')
        >>> round(card.ran["true epsilon of a draw"], 2)  # claimed: 3, for all draws together
        4.6
    """

    name: ClassVar[str] = "dp-pg"
    claims: ClassVar[str] = "epsilon for a model (not a record): the largest of its parameters' epsilons"

    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Drawn:
        """Algorithm 1's inner loop, for all parameters."""
        mechanism = self.mechanism(len(collection), budget.epsilon)
        return draw(collection, self._density(), mechanism, rng, progress=progress)

    def claim(self, budget: Budget) -> Claim:
        """max_j epsilon_j, by corollary 1."""
        return Claim(epsilon=budget.epsilon, delta=0.0, unit="model", source="Mao et al., corollary 1")

    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        draws = collection.parameters * self.rounds
        one, together = self.true_epsilon(len(collection), draws, budget.epsilon, budget.delta)
        why = (
            f"For a model, one draw would be {one:.4g}-DP and all {draws} draws together {together:.4g} at delta "
            f"{budget.delta:g}, were grids and bandwidths public; they were read off the networks, so that not even "
            "that is proven."
        )
        return why, {"true epsilon of a draw": one, "true epsilon of a model": together}

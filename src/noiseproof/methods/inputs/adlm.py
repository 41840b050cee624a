"""adlm and ilm: perturb records and the loss's coefficients once, then train on that as long as one likes (Phan et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import Count, Positive, Rate, each_trial, initial_seed
from noiseproof.methods.inputs.layers import Bound, LossNoise, bounded, first_units, last_hidden
from noiseproof.methods.inputs.perturbation import (
    LABELS_NOISED,
    SOURCES,
    Coefficients,
    Draw,
    InputNoise,
    Look,
    Schedule,
    check_bounds,
    descend,
)
from noiseproof.methods.inputs.relevance import (
    Normalised,
    Relevance,
    RelevanceNetwork,
    average,
    bundled_network,
    functional_network,
    release_relevance,
    split,
    trained_network,
)
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Game, Reproducible
from noiseproof.privacy.card import Claim, Place, Proof
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.privacy import Card, Randomness
    from noiseproof.releases.release import Saved


PAPER = (
    "Phan, Wu, Hu, Dou: Adaptive Laplace mechanism: differential privacy preservation in deep learning. IEEE International "
    "Conference on Data Mining, 2017"
)

SHARED_DRAW = (
    "One draw of noise is shared by all records of a batch, so that the differences between them are exact: no finite "
    "epsilon holds for what the training sees."
)
EXACT_LABELS = (
    "The noise that should protect labels is on the last hidden units, on the output layer's weights or nowhere; the loss "
    "reads every label as it is."
)
PER_RECORD = (
    "The paper scales its noise to the average of a batch of {batch} records, but the training sees each record by itself: "
    "for one record the noise on its features is worth epsilon {features:.3g}, and that on its label {label:.3g}."
)
_HIDDEN = 8
_ASSUMPTIONS = (
    "every feature lies in [0, 1], which was checked",
    "the number of records, the batch size and the network's shape are public",
)


@dataclass(frozen=True)
class InputMethod(Method):
    """Perturb features and the loss's coefficients once, then train on that for as long as one likes.

    The budget's epsilon is the paper's claim. Its parts are in proportion to the shares.
    """

    place: ClassVar[Place] = "inputs"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = True
    readings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "program": {"draw": "batch", "coefficients": "matrix", "schedule": "constant"}
    }
    """What the authors' program does on MNIST."""

    inputs_share: Positive = 0.25
    """The part of epsilon for noise on features, epsilon_2, in proportion to the other shares."""
    loss_share: Positive = 0.5
    """The part for noise on the loss's coefficients, epsilon_3, in proportion to the other shares."""
    draw: Draw = "record"
    """`record`: noise of its own for every record, once. `batch`: one draw for all records of a step's batch, as in the
    authors' program for MNIST. `once`: one draw for all records and steps, as in that for CIFAR-10. Only with the first is
    anything proven."""
    coefficients: Coefficients = "first-order"
    """Where the loss's noise goes: on the coefficients that depend on labels (`first-order`), also on those of second order
    (`all-orders`), or, as in versions of the authors' program, on the output weights (`matrix`), on the last hidden units
    (`hidden`) or nowhere (`plain`); with these three labels are read as they are, and nothing is proven."""
    bound: Bound = "batch-norm"
    """What bounds hidden units: `local-response` as in the paper, `batch-norm` or `max-out` as in the authors' programs."""
    sensitivity: Positive | None = None
    """D_h = 2 |h0| d; None counts the first layer's units and their inputs as the authors do (`layers.first_units`)."""
    epochs: Positive = 300.0
    """Passes over the perturbed records; more of them cost no privacy."""
    batch_size: Count = 1800
    """|L|, at most the number of records: the noise is divided by it."""
    step_records: Count | None = None
    """Records of a batch that a step looks at, at random; None is all of them. Noise and number of steps are |L|'s."""
    lr: Positive = 1e-2
    """Adam's learning rate, at the first step where it falls."""
    schedule: Schedule = "linear"
    """`linear`: the learning rate falls to 0 over the steps. `constant`: it does not, as in the authors' program."""
    limit: Positive | None = 10.0
    """Perturbed inputs are clipped to [-limit, limit], as in the authors' program."""

    def parts(self, epsilon: float) -> tuple[float, float, float]:
        """epsilon_1, epsilon_2 and epsilon_3: for relevances, inputs and loss. They sum to `epsilon`."""
        shares = (getattr(self, "relevance_share", 0.0), self.inputs_share, self.loss_share)
        return tuple(epsilon * share / sum(shares) for share in shares)  # type: ignore[return-value]

    def network(self, public: Public) -> Network:
        """A narrow one: the noise on features grows with the first layer's width, that on labels with the last's square."""
        return Network("mlp", public.shape, public.outputs, {"hidden": _HIDDEN})

    def steps(self, records: int) -> int:
        """The number of steps for so many records."""
        return max(1, math.ceil(self.epochs * records / min(self.batch_size, records)))

    def noise(self, module: nn.Module, dataset: Dataset, epsilon: float, beta: torch.Tensor) -> InputNoise:
        """The noise on inputs, for a network and for so many records."""
        units, reads = first_units(module, dataset.public.shape)
        sensitivity = 2.0 * units * reads if self.sensitivity is None else self.sensitivity
        return InputNoise(sensitivity, epsilon, min(self.batch_size, len(dataset)), beta)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        look: Look | None = None,
    ) -> BoundedRelease:
        """Perturb the records, and train the network, its hidden units bounded, on what that leaves."""
        seed = initial_seed(rng)  # also of shuffles: all that follows the perturbation is post-processing
        module = bounded(network.build(seed), self.bound)
        _, inputs_epsilon, loss_epsilon = self.parts(budget.epsilon)
        relevance = self._relevance(network, dataset, budget, rng, progress)
        inputs = self.noise(module, dataset, inputs_epsilon, self._beta(dataset, relevance))
        loss = LossNoise(dataset.classes, last_hidden(module), loss_epsilon, inputs.batch_size)
        source = SOURCES[self.draw](dataset, inputs, loss, self.coefficients, rng)
        card = self._card(inputs, loss, relevance, dataset, budget, rng)
        public, records = dataset.public, len(dataset)
        del dataset  # from here on the training has what the source hands out, and no other way to a record
        descend(
            module.to(default_device()),
            source,
            steps=self.steps(records),
            batch_size=min(inputs.batch_size, self.step_records or inputs.batch_size),
            lr=self.lr,
            limit=self.limit,
            seed=seed,
            schedule=self.schedule,
            progress=progress,
            description=self.name,
            look=look,
        )
        return BoundedRelease(module.cpu(), network, card, public, self.settings())

    def _card(
        self,
        inputs: InputNoise,
        loss: LossNoise,
        relevance: Relevance | None,
        dataset: Dataset,
        budget: Budget,
        rng: Randomness,
    ) -> Card:
        parts = self.parts(budget.epsilon)
        local = (inputs.local_epsilon(rng), loss.local_epsilon(rng))
        ran: dict[str, Any] = {
            "draw": self.draw,
            "coefficients": self.coefficients,
            "bound": self.bound,
            "epsilon 1, 2, 3 (claimed)": list(parts),
            "D_h": inputs.sensitivity,
            "D_F": loss.sensitivity,
            "batch_size": inputs.batch_size,
            "records a step": min(inputs.batch_size, self.step_records or inputs.batch_size),
            "steps": self.steps(len(dataset)),
            "scale on the bias": inputs.bias_scale,
            "scale on a feature, least": float(inputs.scales.min()),
            "scale on a feature, most": float(inputs.scales.max()),
            "scale on a coefficient": loss.scale,
        }
        whys = []
        if self.draw != "record":
            whys.append(SHARED_DRAW)
        if self.coefficients not in LABELS_NOISED:
            whys.append(EXACT_LABELS)
        epsilon, delta, assumptions = sum(local), 0.0, [*_ASSUMPTIONS]
        if self.draw == "record":
            ran["epsilon of features (local)"] = local[0]
        if self.draw == "record" and self.coefficients in LABELS_NOISED:
            ran["epsilon of a label (local)"] = local[1]
        if relevance is not None:
            ran |= relevance.ran
            assumptions.append(relevance.assumption)
            if relevance.network.why is not None:
                whys.append(relevance.network.why)
            epsilon += relevance.private.proven + relevance.network.epsilon
            delta += relevance.network.delta
        proven = None
        if not whys:
            proven = Proof(
                epsilon=epsilon,
                delta=delta,
                accountant="local DP and basic composition",
                assumptions=(*assumptions, *rng.assumptions),
            )
            if epsilon > budget.epsilon:
                whys.append(PER_RECORD.format(batch=inputs.batch_size, features=local[0], label=local[1]))
        # Perturbing records one by one hides what a record is, not whether it is there.
        return self.card(
            dataset,
            replace(budget, neighbours="replace-one"),
            rng,
            claimed=Claim(
                epsilon=budget.epsilon,
                delta=0.0,
                neighbours="replace-one",
                source="Phan et al., theorem 1: epsilon_1 + epsilon_2 + epsilon_3",
            ),
            proven=proven,
            why=" ".join(whys) or None,
            ran=ran,
        )

    def _relevance(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> Relevance | None:
        """The private relevances, for a method that has them."""
        return None

    def _beta(self, dataset: Dataset, relevance: Relevance | None) -> torch.Tensor:
        return torch.ones(dataset.features[0].numel(), dtype=torch.float64)

    def game(self, budget: Budget) -> Game:
        """The claim as stated, about the trained network: whether one record of 256 is full, and the others blank.

        Every trial is a training of its own, of a network with one hidden unit, a sigmoid. The score is the largest input
        that the unit's released range tells of, or the inputs' variance, of which its released normalisation tells.
        """
        method = replace(self, epochs=2.0, batch_size=_GAME_RECORDS)
        network = Network.of(nn.Sequential(nn.Linear(1, 1), nn.Sigmoid(), nn.Linear(1, 2)), (1,), 2)
        worlds = [canary_records(world, _GAME_RECORDS, (1,), 2) for world in (0, 1)]

        def score(world: int, rng: Randomness) -> float:
            released = method.fit(network, worlds[world], budget, rng=rng).module.state_dict()
            if method.bound != "local-response":
                return float(released["1.running_var"] / released["0.weight"].square())
            ends = torch.cat([released["2.low"], released["2.high"]]).double().logit()
            return float(((ends - released["0.bias"]) / released["0.weight"][0]).max())

        card = method.fit(network, worlds[0], budget, rng=Reproducible(0)).card
        title = f"{self.name}: what the trained network tells of one record"
        return Game(title, each_trial(score), "replace-one", budget.delta, card.claimed, card.proven)


_GAME_RECORDS = 256


def canary_records(world: int, records: int, shape: tuple[int, ...], classes: int) -> Dataset:
    """Blank records of class 0, the first of which is full and of class 1 in world 1."""
    features, labels = torch.zeros(records, *shape), torch.zeros(records, dtype=torch.int64)
    features[0], labels[0] = float(world), world
    return Dataset("game", features, labels, Public(shape=shape, classes=tuple(map(str, range(classes)))))


@register
@dataclass(frozen=True)
class Adlm(InputMethod):
    """Phan et al.'s adaptive Laplace mechanism: less noise on features that matter more, by private relevances.

    Formal guarantee
    ----------------
    Claimed: epsilon_1 + epsilon_2 + epsilon_3, for one replaced record. Proven with `draw="record"`,
    `coefficients="first-order"` and a relevance network that is public or DP-trained: each record's features are released
    with eps_x = sum_j r_j |L| epsilon_j / D_h and its label with eps_y = 2 |L| epsilon_3 / D_F in the local model, the
    relevances with epsilon_1 / 2; the sum of these and of the network's own cost holds for everything trained on the
    result. Unit: record. Neighbours: replace-one, whatever the budget says. Else nothing is proven, and the card says why.
    The number of epochs changes neither number. Costs: relevances of all records, one draw a feature, then an ordinary
    training.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> card = npf.train("adlm", records, epsilon=3, epochs=5).card
        >>> card.verdict
        'weaker than claimed'
        >>> card.claimed.epsilon, round(card.proven.epsilon, 2)
        (3.0, 23.25)
    """

    name: ClassVar[str] = "adlm"
    claims: ClassVar[str] = "epsilon for a record, whatever the number of epochs"

    relevance_share: Positive = 0.25
    """The part of epsilon for the relevances, epsilon_1, in proportion to the other shares."""
    relevance: str = "functional"
    """The network that relevances are of: `functional` (a linear one, fitted under DP at `network_epsilon`), `trained` (the
    same network trained on the records without noise: the paper's way; nothing is then proven) or the path of a bundle."""
    public_network: bool = False
    """Whether that bundle's network used no private record, so that it costs nothing."""
    network_epsilon: Positive = 1.0
    """What `relevance="functional"` spends on its network, beside the budget that is claimed."""
    relevance_epochs: Count = 12
    """Epochs of `relevance="trained"`."""
    normalised: Normalised = "min-max"
    """How a record's relevances come to lie in [0, 1]: by their extremes (`min-max`, the paper's way), or as their sizes over
    the largest (`magnitude`), so that 0 stays 0."""
    floor: Rate = 0.1
    """The least beta, before all are scaled to sum to the number of features."""
    power: Positive = 1.0
    """Relevances are raised to it before the budget is split by them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public_network and self.relevance in ("functional", "trained"):
            raise SettingError("a public relevance network is read from a bundle: set relevance to its folder.")

    def _relevance(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> Relevance:
        check_bounds(dataset.features)
        chosen = self._network(network, dataset, budget, rng, progress)
        mean = self._average(chosen.module, dataset)
        return Relevance(release_relevance(mean, len(dataset), self.parts(budget.epsilon)[0], rng), chosen)

    def _average(self, module: nn.Module, dataset: Dataset) -> torch.Tensor:
        """The mean relevances before their noise."""
        device = default_device()
        mean = average(module.to(device), dataset.features.to(device), normalised=self.normalised)
        module.cpu()
        return mean.cpu()

    def _network(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> RelevanceNetwork:
        if self.relevance == "functional":
            spend = Budget(self.network_epsilon, budget.delta, "replace-one")
            return functional_network(dataset, spend, rng, progress)
        if self.relevance == "trained":
            return trained_network(network, dataset, self.relevance_epochs, initial_seed(rng), progress)
        return bundled_network(self.relevance, dataset.public.shape, public=self.public_network)

    def _beta(self, dataset: Dataset, relevance: Relevance | None) -> torch.Tensor:
        assert relevance is not None
        return split(relevance.private.values, self.floor, self.power)


@register
@dataclass(frozen=True)
class Ilm(InputMethod):
    """Phan et al.'s identical Laplace mechanism: the same noise on all features, and on the loss's coefficients.

    Formal guarantee
    ----------------
    Claimed: epsilon_2 + epsilon_3, for one replaced record. Proven with `draw="record"` and `coefficients="first-order"`:
    each record's features are released with eps_x = sum_j r_j |L| epsilon_2 / D_h and its label with
    eps_y = 2 |L| epsilon_3 / D_F in the local model, so that everything trained on them is (eps_x + eps_y)-DP. Unit: record.
    Neighbours: replace-one, whatever the budget says. With `draw="batch"`, or labels read as they are: nothing.
    The number of epochs changes neither. Costs: one draw a feature, then an ordinary training.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> card = npf.train("ilm", records, epsilon=3, epochs=5).card
        >>> card.verdict
        'weaker than claimed'
        >>> card.claimed.epsilon, round(card.proven.epsilon, 1)
        (3.0, 29.2)
    """

    name: ClassVar[str] = "ilm"
    claims: ClassVar[str] = "epsilon for a record, whatever the number of epochs"


class BoundedRelease(ModelRelease):
    """A trained network whose hidden units are bounded; its recipe is that of the network without the bounds."""

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same network with the same weights; bundles from before there were readings have the paper's bounds."""
        module = bounded(saved.network.build(), saved.settings.get("bound", "local-response"))
        saved.put_into(module)
        return cls(module, saved.network, saved.card, saved.public, saved.settings)

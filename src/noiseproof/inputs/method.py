"""What adlm and ilm share: the budget's parts, the noise, the training on perturbed records, the card."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Claim, Place, Proof
from noiseproof.inputs.descent import Watch, descend
from noiseproof.inputs.games import perturbation_game
from noiseproof.inputs.input_noise import InputNoise
from noiseproof.inputs.layers import first_units, last_hidden
from noiseproof.inputs.normalisation import bounded
from noiseproof.inputs.perturbed_records import Coefficients, Draw, PerturbedRecords, SharedNoise
from noiseproof.inputs.release import BoundedRelease
from noiseproof.inputs.taylor import LossNoise
from noiseproof.methods import Method
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Card, Game, Randomness
    from noiseproof.inputs.relevance_network import Relevance
    from noiseproof.networks import Network

PAPER = (
    "Phan, Wu, Hu, Dou: Adaptive Laplace mechanism: differential privacy preservation in deep learning. IEEE International "
    "Conference on Data Mining, 2017"
)

SHARED_DRAW = (
    "One draw of noise is shared by all records of a batch, so that the differences between them are exact: no finite "
    "epsilon holds for what the training sees."
)
EXACT_LABELS = (
    "The noise that should protect labels is on the last hidden units, or nowhere; the loss reads every label as it is."
)
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

    inputs_share: float = 0.25
    loss_share: float = 0.5
    draw: Draw = "record"
    coefficients: Coefficients = "first-order"
    sensitivity: float | None = None
    """D_h = 2 |h0| d; None counts the first layer's units and their inputs as the authors do (`layers.first_units`)."""
    epochs: float = 300.0
    batch: int = 1800
    """|L|, at most the number of records: the noise is divided by it."""
    learning_rate: float = 1e-2
    limit: float | None = 10.0
    """Perturbed inputs are clipped to [-limit, limit], as in the authors' program."""

    def __post_init__(self) -> None:
        for name in ("inputs_share", "loss_share", "epochs", "batch", "learning_rate", "sensitivity", "limit"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingError(f"{self.name}'s setting {name} must be positive, not {value}.")
        if self.draw not in get_args(Draw):
            raise SettingError(f"{self.name}'s setting draw is one of {', '.join(get_args(Draw))}, not {self.draw!r}.")
        if self.coefficients not in get_args(Coefficients):
            raise SettingError(
                f"{self.name}'s setting coefficients is one of {', '.join(get_args(Coefficients))}, not "
                f"{self.coefficients!r}."
            )

    def parts(self, epsilon: float) -> tuple[float, float, float]:
        """epsilon_1, epsilon_2 and epsilon_3: for relevances, inputs and loss. They sum to `epsilon`."""
        shares = (self._relevance_share, self.inputs_share, self.loss_share)
        return tuple(epsilon * share / sum(shares) for share in shares)  # type: ignore[return-value]

    @property
    def _relevance_share(self) -> float:
        return 0.0

    def steps(self, records: int) -> int:
        """The number of steps for so many records."""
        return max(1, math.ceil(self.epochs * records / min(self.batch, records)))

    def noise(self, module: nn.Module, dataset: Dataset, epsilon: float, beta: torch.Tensor) -> InputNoise:
        """The noise on inputs, for a network and for so many records."""
        units, reads = first_units(module, dataset.public.shape)
        sensitivity = 2.0 * units * reads if self.sensitivity is None else self.sensitivity
        return InputNoise(sensitivity, epsilon, min(self.batch, len(dataset)), beta)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        watch: Watch | None = None,
    ) -> BoundedRelease:
        """Perturb the records, and train the network, its hidden units bounded, on what that leaves."""
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        module = bounded(network.build(seed))
        _, inputs_epsilon, loss_epsilon = self.parts(budget.epsilon)
        relevance = self._relevance(network, dataset, budget, rng, progress)
        inputs = self.noise(module, dataset, inputs_epsilon, self._beta(dataset, relevance))
        loss = LossNoise(dataset.classes, last_hidden(module), loss_epsilon, inputs.batch)
        kind = PerturbedRecords if self.draw == "record" else SharedNoise
        source = kind(dataset, inputs, loss, self.coefficients, rng)
        card = self._card(inputs, loss, relevance, dataset, budget, rng)
        public, records = dataset.public, len(dataset)
        del dataset  # from here on the training has what the source hands out, and no other way to a record
        if torch.cuda.is_available():
            module.cuda()
        descend(
            module,
            source,
            steps=self.steps(records),
            batch=inputs.batch,
            learning_rate=self.learning_rate,
            limit=self.limit,
            seed=seed,
            progress=progress,
            description=self.name,
            watch=watch,
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
            "epsilon 1, 2, 3 (claimed)": list(parts),
            "D_h": inputs.sensitivity,
            "D_F": loss.sensitivity,
            "batch": inputs.batch,
            "steps": self.steps(len(dataset)),
            "scale on the bias": inputs.bias_scale,
            "scale on a feature, least": float(inputs.scales.min()),
            "scale on a feature, most": float(inputs.scales.max()),
            "scale on a coefficient": loss.scale,
        }
        whys = []
        if self.draw == "batch":
            whys.append(SHARED_DRAW)
        if self.coefficients != "first-order":
            whys.append(EXACT_LABELS)
        epsilon, delta, assumptions = sum(local), 0.0, [*_ASSUMPTIONS]
        if self.draw == "record":
            ran["epsilon of features (local)"] = local[0]
        if self.draw == "record" and self.coefficients == "first-order":
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

    @abstractmethod
    def _relevance(
        self, network: Network, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> Relevance | None:
        """The private relevances, for a method that has them."""

    def _beta(self, dataset: Dataset, relevance: Relevance | None) -> torch.Tensor:
        return torch.ones(dataset.features[0].numel(), dtype=torch.float64)

    def game(self, budget: Budget) -> Game:
        """A blank record against a full one of another class, with the noise that the paper's MNIST network gives."""
        return perturbation_game(self, budget)

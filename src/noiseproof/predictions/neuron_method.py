"""What neuron-laplace and neuron-gaussian share: the training, the sensitivities, the card."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Claim, Place
from noiseproof.methods import Method
from noiseproof.networks import Training, fit_stack
from noiseproof.predictions.alpha import published_alpha, search_alpha
from noiseproof.predictions.composition import Law, answer_epsilon
from noiseproof.predictions.convexified import Convexified, Form
from noiseproof.predictions.games import neuron_game
from noiseproof.predictions.neuron import NeuronNoise
from noiseproof.predictions.neuron_release import NeuronRelease
from noiseproof.predictions.sensitivity import Sensitivity, dense_layers
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Game, Randomness
    from noiseproof.networks import Network

PAPER = (
    "Lu, Asghar, Kaafar, Webb, Dickinson: A differentially private framework for deep learning with convexified loss "
    "functions. IEEE Transactions on Information Forensics and Security 17, 2022"
)

_MANY = (
    "With three classes and more no finite epsilon holds: the classes that got no noise keep their exact ratios, so that "
    "one answer can tell two trainings apart. Besides, "
)
_UNPROVEN = (
    "the sensitivity of an output neuron rests on a convex loss, a training that ends at its minimiser, a change "
    "that spreads evenly over all weights and hidden neurons that do not change, none of which holds."
)


@dataclass(frozen=True)
class NeuronMethod(Method):
    """Lu et al.'s framework: train on the convexified loss, then noise one output neuron an answer."""

    place: ClassVar[Place] = "predictions"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    law: ClassVar[Law]

    epochs: int = 100
    batch: int = 100
    learning_rate: float = 1e-3
    l2: float = 1e-3
    """Keras's factor: l2 * ||W||^2 over the kernels is added to the loss."""
    form: Form = "paper"
    """`paper`: eq. 22; `code`: as the authors' program has it."""
    alpha: float | None = None
    """None takes Table 4's for the sets that are in it, and 1 for others."""
    search: bool = False
    """Whether alpha is searched for on a validation split of the private records, in (0, 10] by steps of 0.5."""
    peaks: Literal["one", "seen"] = "one"
    """`one`: neurons are at most 1, as in Table 6; `seen`: the largest values on the private records."""

    def __post_init__(self) -> None:
        if self.alpha is not None and self.search:
            raise SettingError(f"{self.name} is either given an alpha or searches for one, not both.")
        if self.peaks not in ("one", "seen"):
            raise SettingError(f"{self.name}'s setting peaks is one or seen, not {self.peaks!r}.")
        Convexified(self.alpha or 1.0, self.form)
        self._training()
        if self.l2 <= 0:
            raise SettingError(f"{self.name} needs an l2 greater than 0: its sensitivities are divided by it.")

    def _training(self) -> Training:
        return Training(epochs=self.epochs, batch=self.batch, lr=self.learning_rate, l2=self.l2)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> NeuronRelease:
        """Train a dense network on the convexified loss, without noise; its answers get the noise."""
        dense_layers(network.build())  # refuses other networks before the training
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        notes: tuple[str, ...] = ()
        if self.search:
            alpha = search_alpha(network, dataset, self._training(), self.form, seed=seed, progress=progress)
            notes += ("alpha was chosen by accuracies on the private records, which no guarantee accounts for.",)
        else:
            alpha = published_alpha(dataset.name) if self.alpha is None else self.alpha
        if self.peaks == "seen":
            notes += ("The largest neuron values were read off the private records, which no guarantee accounts for.",)
        training = Training(
            epochs=self.epochs,
            batch=self.batch,
            lr=self.learning_rate,
            l2=self.l2,
            loss=Convexified(alpha, self.form),
        )
        everyone = torch.arange(len(dataset))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        features, labels = dataset.features.to(device), dataset.labels.to(device)
        trained = fit_stack(network, features, labels, [everyone], training, seeds=[seed], progress=progress)
        module = trained.to("cpu").module(0).eval()
        sensitivity = Sensitivity.of(
            module, len(dataset), l2=self.l2, seen=dataset.features if self.peaks == "seen" else None
        )
        noise = self.noise(sensitivity, budget)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=self.claim(budget),
            why=(_MANY if dataset.classes > 2 else "For two classes the noise would do, but ") + _UNPROVEN,
            ran=self._ran(alpha, sensitivity, noise, budget),
            notes=notes,
        )
        return NeuronRelease(
            module, network, noise, card, dataset.public, self.settings(), queries=budget.queries, rng=rng
        )

    def noise(self, sensitivity: Sensitivity, budget: Budget) -> NeuronNoise:
        """The noise of each of the budget's answers."""
        return NeuronNoise(
            answer_epsilon(budget.epsilon, budget.queries, self.law),
            sensitivity.classes,
            sensitivity.neuron,
            sensitivity.probability,
            self.law,
        )

    def _ran(self, alpha: float, sensitivity: Sensitivity, noise: NeuronNoise, budget: Budget) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "batch": self.batch,
            "sampler": "shuffled epochs",
            "alpha": alpha,
            "form": self.form,
            "rho": sensitivity.lipschitz,
            "d-omega": sensitivity.weight,
            "d-z": sensitivity.neuron,
            "d-p": sensitivity.probability,
            "oaro": sensitivity.stability,
            "queries": budget.queries,
            "epsilon of an answer": noise.epsilon,
            "noise": self.law,
            "scale": noise.scale,
        }

    def claim(self, budget: Budget) -> Claim:
        """What the authors' arithmetic says of all of the budget's answers together."""
        return self.claim_of(budget.epsilon)

    @abstractmethod
    def claim_of(self, epsilon: float) -> Claim:
        """What the authors state for an answer, or answers, of that epsilon."""

    def game(self, budget: Budget) -> Game:
        """Three classes and two networks that differ by d-z: what ratio two classes have that got no noise."""
        return neuron_game(self, budget, classes=3)

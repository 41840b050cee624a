"""rdp-gan: noise on the discriminator's loss, as published (Ma et al. 2020), in four readings; and what it claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import nn
from torch.nn import functional

from noiseproof.data import Dataset
from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Count, NonNegative, Positive, initial_seed, seeded_by
from noiseproof.methods.losses.filtered import StepCallback
from noiseproof.methods.losses.gan import (
    Gan,
    GanMethod,
    Model,
    adam,
    backward_generated,
    count_correct,
    fit_classifier,
    update_generator,
)
from noiseproof.networks import Network
from noiseproof.networks.generators import DenseDiscriminator
from noiseproof.privacy import Budget, Claim, Game, Randomness
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease
from noiseproof.tensors import seeded, seeded_generator

PAPER = (
    "Ma, Li, Ding, Liu, Wei, Weng, Poor: RDP-GAN: a Renyi-differential privacy based generative adversarial network. "
    "arXiv:2007.02056, 2020"
)

# Theorems 1 to 4 and formula (23), as printed. None of it is proven here.


def loss_sensitivity(bound: float, batch_size: int) -> float:
    """Eq. (13): dS = C / B, C the largest loss that was seen."""
    return bound / batch_size


def renyi_epsilon(rate: float, order: float, sensitivity: float, sigma: float) -> float:
    """Theorem 1: (order, epsilon)-RDP of a discriminator step. False: it rests on e^x - 1 <= x."""
    if not order > 1:
        raise SettingError(f"a Renyi order must be greater than 1, not {order}.")
    return rate * order**2 * sensitivity**2 / (2 * (order - 1) * sigma**2) if sigma else math.inf


def generator_epsilon(renyi: float, discriminator_steps: int, delta: float) -> float:
    """Theorems 2 and 3: the epsilon of one generator iteration after n_d discriminator steps.

    Theorem 4: n_g iterations cost n_g times that, at one and the same delta.
    """
    return 4 * renyi * math.sqrt(2 * discriminator_steps * math.log(1 / delta))


def iteration_epsilon(rate: float, order: float, sensitivity: float, sigma: float, steps: int, delta: float) -> float:
    """Theorem 3 from the settings: what one generator iteration is said to cost."""
    return generator_epsilon(renyi_epsilon(rate, order, sensitivity, sigma), steps, delta)


def theorem_2_applies(renyi: float, discriminator_steps: int, delta: float) -> bool:
    """Theorem 2's condition: ln(1 / delta) >= epsilon^2 n_d, epsilon being the step's of Theorem 1."""
    return math.log(1 / delta) >= renyi**2 * discriminator_steps


def moments_epsilon(rate: float, discriminator_steps: int, delta: float, sigma: float) -> float:
    """Formula (23), which the paper compares with: 2 q sqrt(n_d ln(1 / delta)) / sigma."""
    return 2 * rate * math.sqrt(discriminator_steps * math.log(1 / delta)) / sigma if sigma else math.inf


def claimed_sigma(
    epsilon: float, delta: float, *, rate: float, order: float, sensitivity: float, steps: int, iterations: int
) -> float:
    """The noise at which Theorem 4 gives `epsilon` after so many iterations of constant noise."""
    return math.sqrt(iterations * iteration_epsilon(rate, order, sensitivity, 1.0, steps, delta) / epsilon)


Reading = Literal["value", "sum", "error", "scale"]

_WHY = {
    "value": "Nothing is protected: a number added to the loss has no gradient, so that the generator was trained to the "
    "very weights that it would have without noise.",
    "sum": "One draw on the error of the batch's sum leaves every weight update in the exact span of the private activations, "
    "so that no finite epsilon holds; Theorem 1 rests on e^x - 1 <= x, which is false.",
    "error": "Noise on the output layer's error leaves every weight update in the exact span of the private activations, so "
    "that no finite epsilon holds; Theorem 1 rests on e^x - 1 <= x, which is false.",
    "scale": "A gradient that is multiplied by a random number keeps its direction, so that no finite epsilon holds; "
    "Theorem 1 rests on e^x - 1 <= x, which is false.",
}


_RECORDS, _WIDTH = 8, 6
TEMPERATURE = 0.2
"""Of the relaxed draws of a table's columns: at .5 a discriminator tells them from real ones by their softness alone, and the
columns' shares come out worse (`study ma --scale effect`, Adult)."""


@register
@dataclass(frozen=True)
class RdpGan(GanMethod):
    """RDP-GAN: Gaussian noise on the discriminator's loss, its privacy claimed by Renyi divergences (Ma et al.).

    Formal guarantee
    ----------------
    None. The paper claims (n_g eps_g, delta)-DP by its Theorems 1 to 4 under replace-one; audits refute it in all four
    readings of where the noise goes.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("rdp-gan", records, epsilon=3, rows=100, iterations=5)
        >>> release.card.verdict
        'nothing proven'
        >>> len(release.dataset)
        100
    """

    name: ClassVar[str] = "rdp-gan"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    claims: ClassVar[str] = "(n_g eps_g, delta) for a record, by Theorems 1 to 4"
    models: ClassVar[tuple[Model, ...]] = ("auto", "dense", "conv")

    noise_on: Reading = "error"
    """`value`: eq. 8, a number added to the loss; `sum`: eqs 8 to 10, one draw for the batch's sum, at the output's error;
    `error`: line 9 of algorithm 1, a draw for each record there; `scale`: as later code has it, the gradient times
    1 + noise / loss."""
    sigma: NonNegative | None = None
    """Noise at the first iteration; None takes what Theorem 4 gives for the budget."""
    bound: Positive = 25.0
    """C, the largest loss of a record (Table II: 20 to 28): the paper reads it off the data."""
    order: Annotated[float, Gt(1)] = 2.0
    """The Renyi order of Theorem 1, which the paper never gives."""
    iterations: Count = 1000
    """n_g, generator iterations."""
    discriminator_steps: Count = 5
    """n_d, discriminator steps for each of them."""
    batch_size: Annotated[int, Ge(2)] = 64
    """B, the records of a discriminator step: always as many, drawn without replacement."""
    lr: Positive = 3e-4
    """Adam's learning rate, for both networks."""

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        callback: StepCallback | None = None,
    ) -> DataRelease:
        """Train until the claimed budget is used up; `model` names the networks, not `network`."""
        model = self._model(dataset.public, "dense")
        gan = self._start(dataset, model, rng, relaxed=TEMPERATURE)
        rate = min(1.0, self.batch_size / len(dataset))
        sensitivity, steps = loss_sensitivity(self.bound, self.batch_size), self.discriminator_steps
        if self.sigma is None and budget.delta == 0:
            raise SettingError("rdp-gan's formulas need a delta greater than 0.")
        first = self.sigma
        if first is None:
            terms = {"rate": rate, "order": self.order, "sensitivity": sensitivity}
            first = claimed_sigma(budget.epsilon, budget.delta, steps=steps, iterations=self.iterations, **terms)
        noise = self._noise(first)
        shares = torch.bincount(dataset.labels, minlength=gan.classes).double()
        gan.shares = shares / shares.sum()
        training = PairTraining(self, gan, gan.discriminator(model), dataset, rng, initial_seed(rng))
        classifier = fit_classifier(dataset) if self.tuning == "ant" else None
        spent = 0.0
        with gan.seeded(), progress.task(self.name, self.iterations) as task:
            for iteration in range(self.iterations):
                cost = iteration_epsilon(rate, self.order, sensitivity, noise.sigma, steps, budget.delta)
                if self.sigma is None and spent + cost > budget.epsilon * (1 + 1e-9):
                    break
                spent += cost
                losses = training.iterate(noise.sigma)
                if callback is not None:
                    callback(iteration + 1, gan)
                score = None
                if classifier is not None and noise.wants_score:
                    score = count_correct(classifier, gan.sample(1000, dataset.name)) / 1000
                noise.advance(score)
                task.advance(discriminator=losses[0], generator=losses[1], spent=f"{spent:.3g}")
        notes = [
            "C was taken from losses that were seen on private records, as in the paper: it bounds nothing.",
            "Labels are generated in the exact shares that they have among the private records.",
        ]
        if self.tuning == "ant":
            notes.append("The noise followed a score of private records, which no guarantee accounts for.")
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=_claim(spent, budget.delta),
            why=_WHY[self.noise_on],
            ran={
                "iterations": noise.iteration,
                "discriminator steps": steps,
                "batch_size": self.batch_size,
                "rate": rate,
                "sampler": "a batch of fixed size a step",
                "noise on": self.noise_on,
                "sigma": first,
                "last sigma": noise.sigma,
                "C": self.bound,
                "order": self.order,
                "theorem 2's condition": theorem_2_applies(
                    renyi_epsilon(rate, self.order, sensitivity, first), steps, budget.delta
                )
                if budget.delta
                else False,
                "formula (23)": noise.iteration * moments_epsilon(rate, steps, budget.delta, first),
                "tuning": self.tuning,
                "model": model,
            },
            notes=tuple(notes),
        )
        return self._release(gan, dataset, card)

    def game(self, budget: Budget) -> Game:
        """One discriminator step on eight records, of which one has, or has not, a feature that no other has.

        The noise is what Theorem 4 asks for at the budget, for one iteration of one step that sees all records. The
        weights that read that feature move if and only if the record is there: noise on the loss's value has no
        gradient, and noise on the output's error, or a scaled gradient, stays in the span of the private activations.
        """
        sensitivity = loss_sensitivity(self.bound, _RECORDS)
        terms = {"rate": 1.0, "order": self.order, "sensitivity": sensitivity}
        sigma = claimed_sigma(budget.epsilon, budget.delta, steps=1, iterations=1, **terms)
        records = torch.rand(_RECORDS, _WIDTH, generator=torch.Generator().manual_seed(0))
        records[:, -1] = 0.0
        labels = torch.arange(_RECORDS) % 2
        with seeded(0):
            discriminator = DenseDiscriminator((_WIDTH,), 2, hidden=8)

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            seen = records.clone()
            seen[0, -1] = float(world)
            scores = torch.empty(trials, dtype=torch.float64)
            weights = next(discriminator.parameters())
            for trial in range(trials):
                loss = noised_loss(discriminator(seen, labels), self.noise_on, sigma, rng)
                (gradient,) = torch.autograd.grad(loss, [weights])
                scores[trial] = float(gradient[:, _WIDTH - 1].abs().sum() > 0)
            return scores

        claimed = _claim(iteration_epsilon(1.0, self.order, sensitivity, sigma, 1, budget.delta), budget.delta)
        return Game(f"{self.name}: a feature that only one record has", play, "replace-one", budget.delta, claimed)


def _claim(epsilon: float, delta: float) -> Claim:
    return Claim(epsilon=epsilon, delta=delta, neighbours="replace-one", source="Theorem 4 of Ma et al. 2020")


class PairTraining:
    """Discriminator, generator and their optimizers in one run."""

    def __init__(
        self, method: RdpGan, gan: Gan, discriminator: nn.Module, dataset: Dataset, rng: Randomness, seed: int
    ) -> None:
        self._method, self._gan, self._discriminator, self._rng = method, gan, discriminator, rng
        self._records = gan.coding.encode(dataset.features).to(gan.device)
        self._labels = dataset.labels.to(gan.device)
        self._order = seeded_generator(seed)
        self._optimizer, self._generator_optimizer = (adam(m, method.lr) for m in (discriminator, gan.generator))
        self.largest = 0.0
        """The largest loss of one record so far: the paper's C, before it is rounded up (Table II)."""

    def iterate(self, sigma: float) -> tuple[float, float]:
        """n_d discriminator steps and one of the generator; their losses."""
        method, last = self._method, 0.0
        batch = min(method.batch_size, len(self._labels))
        for _ in range(method.discriminator_steps):
            index = torch.randperm(len(self._labels), generator=self._order)[:batch].to(self._labels.device)
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._discriminator(self._records[index], self._labels[index])
            loss = noised_loss(scores, method.noise_on, sigma, self._rng)
            loss.backward()
            self.largest = max(self.largest, float(functional.softplus(-scores.detach()).max()))
            last = float(loss.detach()) + backward_generated(self._gan, self._discriminator, batch)
            self._optimizer.step()
        return last, update_generator(self._gan, self._discriminator, self._generator_optimizer, batch)


def noised_loss(scores: torch.Tensor, noise_on: Reading, sigma: float, rng: Randomness) -> torch.Tensor:
    """The mean loss of real records with the noise in one of the four places.

    Formal guarantee
    ----------------
    None: see `RdpGan`.
    """
    losses = functional.softplus(-scores)
    if sigma == 0:
        return losses.mean()
    if noise_on == "error":
        noise = rng.add_gaussian(torch.zeros_like(scores), sigma)
        # Its gradient adds the noise to each record's error at the output, which is then propagated back.
        return (losses + noise * scores).mean()
    noise = rng.add_gaussian(losses.new_zeros(1), sigma)[0]
    if noise_on == "value":
        return losses.mean() + noise
    if noise_on == "sum":
        # Of the mean over the batch, one draw on the sum is a B-th; every record's error has the same part of it.
        return losses.mean() + noise * scores.mean() / len(scores)
    mean = losses.mean()
    return mean * (1 + noise / mean.detach().clamp_min(1e-6))

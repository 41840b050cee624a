"""rdp-gan: noise on the discriminator's loss, as published (Ma et al. 2020), in three readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.losses import claims
from noiseproof.methods.losses.dp_gan import Watch, fool, judge_generated
from noiseproof.methods.losses.games import span_game
from noiseproof.methods.losses.gan import Gan, GanMethod, count_right, teach
from noiseproof.privacy import Claim
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card, Game, Randomness


Reading = Literal["value", "error", "scale"]

_WHY = {
    "value": "Nothing is protected: a number added to the loss has no gradient, so that the generator was trained to the "
    "very weights that it would have without noise.",
    "error": "Noise on the output layer's error leaves every weight update in the exact span of the private activations, so "
    "that no finite epsilon holds; Theorem 1 rests on e^x - 1 <= x, which is false.",
    "scale": "A gradient that is multiplied by a random number keeps its direction, so that no finite epsilon holds; "
    "Theorem 1 rests on e^x - 1 <= x, which is false.",
}


@register
@dataclass(frozen=True)
class RdpGan(GanMethod):
    """RDP-GAN: Gaussian noise on the discriminator's loss, its privacy claimed by Renyi divergences (Ma et al.).

    Formal guarantee
    ----------------
    None. The paper claims (n_g eps_g, delta)-DP by its Theorems 1 to 4 under replace-one; audits refute it in all three
    readings of where the noise goes.
    """

    name: ClassVar[str] = "rdp-gan"
    paper: ClassVar[str | None] = claims.PAPER
    proves: ClassVar[bool] = False
    claims: ClassVar[str] = "(n_g eps_g, delta) for a record, by Theorems 1 to 4"

    noise_on: Reading = "error"
    """`value`: eq. 8, a number added to the loss; `error`: eqs 9 and 10, on each record's output error; `scale`: as later
    code has it, the gradient times 1 + noise / loss."""
    sigma: float | None = None
    """Noise at the first iteration; None takes what Theorem 4 gives for the budget."""
    bound: float = 25.0
    """C, the largest loss of a batch (Table II: 20 to 28): the paper reads it off the data."""
    order: float = 2.0
    """The Renyi order of Theorem 1, which the paper never gives."""
    iterations: int = 1000
    """n_g, generator iterations."""
    discriminator_steps: int = 5
    """n_d, discriminator steps for each of them."""
    batch_size: int = 64
    lr: float = 3e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("bound", "iterations", "discriminator_steps", "batch_size", "lr")
        if self.batch_size < 2:
            raise SettingError(f"rdp-gan's setting batch must be at least 2, not {self.batch_size}.")
        if self.noise_on not in _WHY:
            raise SettingError(f"rdp-gan's setting noise_on is value, error or scale, not {self.noise_on!r}.")
        if self.sigma is not None and not self.sigma >= 0:
            raise SettingError(f"rdp-gan's setting sigma must be 0 or more, not {self.sigma}.")
        if self.model == "features":
            raise SettingError("rdp-gan has networks for discriminators; its model is auto, dense or conv.")
        claims.renyi(1.0, self.order, 1.0, 1.0)  # refuses an impossible order

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        watch: Watch | None = None,
    ) -> DataRelease:
        """Train until the claimed budget is used up; `model` names the networks, not `network`."""
        model = self._network(dataset.public, "dense")
        gan = self._start(dataset, model, rng, relaxed=0.5)
        rate = min(1.0, self.batch_size / len(dataset))
        noise = self._noise(self._calibrated(rate, budget))
        shares = torch.bincount(dataset.labels, minlength=gan.classes).double()
        gan.shares = shares / shares.sum()
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        training = Training(self, gan, gan.discriminator(model), dataset, rng, seed)
        judge = teach(dataset) if self.tuning == "ant" else None
        spent, first = 0.0, noise.sigma
        with gan.seeded(), progress.task(self.name, self.iterations) as task:
            for iteration in range(self.iterations):
                cost = self._cost(rate, noise.sigma, budget.delta)
                if self.sigma is None and spent + cost > budget.epsilon * (1 + 1e-9):
                    break
                spent += cost
                judged, fooled = training.iterate(noise.sigma)
                if watch is not None:
                    watch(iteration + 1, gan)
                score = None
                if judge is not None and noise.looks:
                    score = count_right(judge, gan.sample(1000, dataset.name)) / 1000
                    gan.generator.train()
                noise.advance(score)
                task.advance(discriminator=judged, generator=fooled, spent=f"{spent:.3g}")
        card = self._card(dataset, budget, rng, spent, noise.iteration, (first, noise.sigma), rate, model)
        return self._release(gan, dataset, card)

    def _calibrated(self, rate: float, budget: Budget) -> float:
        if self.sigma is not None:
            return self.sigma
        if budget.delta == 0:
            raise SettingError("rdp-gan's formulas need a delta greater than 0.")
        return claims.calibrated(
            budget.epsilon,
            budget.delta,
            rate=rate,
            order=self.order,
            sensitivity=claims.sensitivity(self.bound, self.batch_size),
            steps=self.discriminator_steps,
            iterations=self.iterations,
        )

    def _cost(self, rate: float, sigma: float, delta: float) -> float:
        sensitivity = claims.sensitivity(self.bound, self.batch_size)
        return claims.iteration(rate, self.order, sensitivity, sigma, self.discriminator_steps, delta)

    def _card(
        self,
        dataset: Dataset,
        budget: Budget,
        rng: Randomness,
        spent: float,
        iterations: int,
        sigmas: tuple[float, float],
        rate: float,
        model: str,
    ) -> Card:
        notes = ["C was taken from losses that were seen on private records, as in the paper: it bounds nothing."]
        if self.tuning == "ant":
            notes.append("The noise followed a score of private records, which no guarantee accounts for.")
        claimed = Claim(
            epsilon=spent, delta=budget.delta, neighbours="replace-one", source="Theorem 4 of Ma et al. 2020"
        )
        return self.card(
            dataset,
            budget,
            rng,
            claimed=claimed,
            why=_WHY[self.noise_on],
            ran={
                "iterations": iterations,
                "discriminator steps": self.discriminator_steps,
                "batch_size": self.batch_size,
                "rate": rate,
                "sampler": "a batch of fixed size a step",
                "noise on": self.noise_on,
                "sigma": sigmas[0],
                "last sigma": sigmas[1],
                "C": self.bound,
                "order": self.order,
                "formula (23)": iterations * claims.moments(rate, self.discriminator_steps, budget.delta, sigmas[0]),
                "tuning": self.tuning,
                "model": model,
            },
            notes=tuple(notes),
        )

    def game(self, budget: Budget) -> Game:
        """A feature that only one record has: the weights that read it move, or do not."""
        return span_game(self, budget)


class Training:
    """Networks and optimizers of one run."""

    def __init__(
        self, method: RdpGan, gan: Gan, discriminator: nn.Module, dataset: Dataset, rng: Randomness, seed: int
    ) -> None:
        self._method, self._gan, self._discriminator, self._rng = method, gan, discriminator, rng
        self._records = gan.coding.encode(dataset.features).to(gan.device)
        self._labels = dataset.labels.to(gan.device)
        self._order = torch.Generator().manual_seed(seed)
        rate = method.lr
        self._judge = torch.optim.Adam(discriminator.parameters(), lr=rate, betas=(0.5, 0.999))
        self._maker = torch.optim.Adam(gan.generator.parameters(), lr=rate, betas=(0.5, 0.999))
        self.largest = 0.0
        """The largest loss of a batch so far: the paper's C, before it is rounded up (Table II)."""

    def iterate(self, sigma: float) -> tuple[float, float]:
        """n_d discriminator steps and one of the generator; their losses."""
        method, judged = self._method, 0.0
        batch = min(method.batch_size, len(self._labels))
        for _ in range(method.discriminator_steps):
            index = torch.randperm(len(self._labels), generator=self._order)[:batch].to(self._labels.device)
            self._judge.zero_grad(set_to_none=True)
            scores = self._discriminator(self._records[index], self._labels[index])
            loss = noised_loss(scores, method.noise_on, sigma, self._rng)
            loss.backward()
            self.largest = max(self.largest, float(functional.softplus(-scores.detach()).sum()))
            judged = float(loss.detach()) + judge_generated(self._gan, self._discriminator, batch)
            self._judge.step()
        return judged, fool(self._gan, self._discriminator, self._maker, batch)


def noised_loss(scores: torch.Tensor, noise_on: Reading, sigma: float, rng: Randomness) -> torch.Tensor:
    """The mean loss of real records with the noise in one of the three places.

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
    mean = losses.mean()
    return mean * (1 + noise / mean.detach().clamp_min(1e-6))

"""noisy-gradient: noise every record's gradient first, clip it second (Lin et al. 2020, algorithm 1)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import torch
from torch import nn

from noiseproof.engine import PerRecordGradients, RecordGradients
from noiseproof.engine.batch_gradients import BatchGradients, Sampling
from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Count, LinearLoss, NonNegative, Positive, first_gradient, seeded_by
from noiseproof.methods.gradients.descent import OptimizerName
from noiseproof.methods.gradients.method import GradientMethod
from noiseproof.privacy import Game
from noiseproof.privacy.events import DpEvent, NonPrivateDpEvent

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy import Budget, Card, Randomness


Draw = Literal["exact", "plain"]


class NoisyGradients(BatchGradients):
    """Lin et al.'s Noisy Gradient for the user's own loop: add Normal(0, (sigma clip)^2) to each record, clip, average.

    Args:
        module: The network; every trainable parameter gets a gradient.
        max_grad_norm: The L2 norm that a record's noised gradient is clipped to.
        noise_multiplier: sigma: the noise's standard deviation in units of `max_grad_norm`; 0 adds none.
        draw: `exact` has the very law of the algorithm with B^2 + P random numbers, for B records and P parameters; `plain`
            draws B x P of them and is there to check the other.
        by: `all` clips over the whole parameter vector; `tensor` each parameter tensor by itself (with `draw="plain"`).
        sampling: `sample_rate` and `rng`, as for `PrivateGradients`; `rng` has no default here.

    Raises:
        UnsupportedError: If the network has layers that mix records.
        SettingError: If a setting is out of range, or the draw is `exact` by tensor.

    Formal guarantee
    ----------------
    None: before the noise a record's gradient is unbounded, so a record with a huge gradient passes through with its
    direction intact, whatever sigma is. The log holds `NonPrivateDpEvent`s.

    Examples:
        >>> import torch
        >>> from noiseproof.methods.gradients import NoisyGradients
        >>> from noiseproof.privacy import Reproducible
        >>> network = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.Adam(network.parameters())
        >>> noise = {"max_grad_norm": 1.4, "noise_multiplier": 0.5}
        >>> engine = NoisyGradients(network, **noise, sample_rate=0.1, rng=Reproducible(0))
        >>> for x, y in engine.batches(torch.randn(100, 4), torch.randint(2, (100,)), steps=5):
        ...     losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        ...     if engine.backward(losses):
        ...         optimizer.step()
        >>> engine.steps
        5
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        draw: Draw = "exact",
        by: Literal["all", "tensor"] = "all",
        **sampling: Unpack[Sampling],
    ) -> None:
        super().__init__(module, **sampling)
        if not (max_grad_norm > 0 and noise_multiplier >= 0):
            raise SettingError("the clipping norm must be positive and sigma not negative.")
        if draw == "exact" and by == "tensor":
            raise SettingError("the exact draw is over the whole parameter vector; use draw='plain' with by='tensor'.")
        self.max_grad_norm, self.noise_multiplier = max_grad_norm, noise_multiplier
        self._draw, self._by = draw, by

    def _accumulate(self, gradients: RecordGradients) -> None:
        noise = self.noise_multiplier * self.max_grad_norm
        if self._draw == "exact":
            self._add(noisy_sum(gradients, self._engine, self.max_grad_norm, noise, self._rng))
        else:
            self._add(plain_noisy_sum(gradients, self.max_grad_norm, noise, self._rng, by=self._by))

    def _event(self) -> DpEvent:
        return NonPrivateDpEvent()

    def _finish(self) -> torch.Tensor:
        # Line 7 of the algorithm divides by the size of the batch that was drawn; an empty one moves nothing.
        return self._take_sum().div_(max(self._records_in_step, 1))


def plain_noisy_sum(
    gradients: RecordGradients, max_grad_norm: float, noise: float, rng: Randomness, *, by: str = "all"
) -> torch.Tensor:
    """The sum of noised, then clipped gradients as the algorithm writes it: B x P normals, B x P memory."""
    noised = [rng.add_gaussian(tensor, noise) if noise else tensor for tensor in gradients.materialise()]
    squared = torch.stack([tensor.flatten(1).square().sum(1) for tensor in noised], dim=1)
    norms = (squared.sum(1, keepdim=True).expand_as(squared) if by == "all" else squared).sqrt()
    weights = (max_grad_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1)
    return torch.cat([weight @ tensor.flatten(1) for weight, tensor in zip(weights.T, noised, strict=True)])


def noisy_sum(
    gradients: RecordGradients, engine: PerRecordGradients, max_grad_norm: float, noise: float, rng: Randomness
) -> torch.Tensor:
    """The same sum with exactly the same law, from B^2 + P random numbers.

    Let Q be an orthonormal basis of the batch's gradients, g_i = Q r_i. A record's noise has a part Q a_i inside that
    span, a_i normal, and a part o_i orthogonal to it. Only the o_i's lengths and the direction of their weighted sum
    enter the result. Their Gram matrix is Wishart with P - r degrees of freedom, whose factor T (Bartlett: chi on the
    diagonal, normals above) has columns as long as the o_i. The clipping factors s_i follow from ||r_i + a_i|| and
    ||T_i||; and sum s_i o_i, given T, is ||T s|| times a uniform direction orthogonal to Q.
    """
    first = engine.parameters[0].detach()
    coordinates = sum(parameter.numel() for parameter in engine.parameters)
    gram = gradients.gram().double()
    records = len(gram)
    # Q is never formed: from gram = V diag(l) V^T, Q = G V l^(-1/2) for the directions that are there at all.
    values, vectors = torch.linalg.eigh(gram)
    there = values > values[-1].clamp_min(0) * 1e-10
    roots, vectors = values[there].sqrt(), vectors[:, there]
    inside = (vectors * roots).T  # r_i as columns
    rank = len(roots)
    if noise > 0 and rank:
        inside = rng.add_gaussian(inside, noise)
    outside = _bartlett(records, coordinates - rank, noise, rng, gram.device)
    norms = (inside.square().sum(0) + outside.square().sum(0)).sqrt()
    scales = (max_grad_norm / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1)
    # The part inside the span, as one weighted sum of the records' gradients.
    weights = vectors @ ((inside @ scales) / roots)
    length = torch.linalg.vector_norm(outside @ scales)
    if length == 0:
        return gradients.weighted_vector(weights.to(first.dtype))
    # A uniform direction orthogonal to the span: a normal vector less its projection, at the length that was drawn.
    # Length and direction of what is left are independent, so one too short to be told from rounding is drawn again.
    squared, left = 1.0, 0.0
    while left <= 1e-5 * squared:
        direction = rng.add_gaussian(first.new_zeros(coordinates), 1.0)
        coefficients = vectors.T @ gradients.inner(engine.split(direction)).double() / roots
        # Pairwise summation of squares is exact to some 1e-6 even for millions of them, and needs no copy in float64.
        squared = float(direction.square().sum())
        left = squared - float(coefficients.square().sum())
    factor = float(length) / left**0.5
    weights = weights - factor * (vectors @ (coefficients / roots))
    return gradients.weighted_vector(weights.to(first.dtype)).add_(direction, alpha=factor)


def _bartlett(columns: int, freedom: int, noise: float, rng: Randomness, device: torch.device) -> torch.Tensor:
    """Upper-triangular T with T^T T of the law of O^T O for `columns` normal vectors in `freedom` dimensions."""
    rows = min(columns, freedom)
    if rows <= 0 or noise == 0:
        return torch.zeros((max(rows, 0), columns), dtype=torch.float64, device=device)
    factor = rng.add_gaussian(torch.zeros((rows, columns), dtype=torch.float64, device=device), 1.0).triu(1)
    degrees = freedom - torch.arange(rows, dtype=torch.float64, device=device)
    # A chi-square is twice a gamma with half the degrees as its shape.
    chi = (2 * torch._standard_gamma(degrees.cpu() / 2, generator=rng.generator)).sqrt().to(device)
    factor.diagonal().copy_(chi)
    return noise * factor


PAPER = "Lin, Bao, Li, Si, Chu: Differential privacy protection over deep learning. Computers & Security 99, 2020"


@dataclass(frozen=True)
class UnprovenMethod(GradientMethod):
    """Lin et al.'s methods, which state no epsilon: the budget's is not used, noise and clipping are settings, as there."""

    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    record_passes: ClassVar[int] = 250_000  # small batches, and noise by record, are slow
    why: ClassVar[str]
    """Why nothing is proven."""
    stated: ClassVar[tuple[str, ...]]
    """Settings that the card repeats."""
    other: ClassVar[float]
    """In the game, the norm of the gradient of the record that is there anyway."""

    lr: Positive = 1e-3
    optimizer: OptimizerName = "adam"
    batch_size: Count = 128
    noise_multiplier: NonNegative = 0.5
    """The noise's standard deviation in clipping norms: on each record's gradient (noisy-gradient), or on the sum."""

    def _card(
        self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness, ran: dict[str, Any]
    ) -> Card:
        ran = {**ran, **{name: getattr(self, name) for name in self.stated}}
        return self.card(dataset, budget, rng, why=self.why, ran=ran)

    @abstractmethod
    def score(self, gradient: torch.Tensor) -> float:
        """Larger the more a step looks as if the game's canary was there."""

    def game(self, budget: Budget) -> Game:
        """One more record, with a gradient of norm a million, in one step that sees every record."""
        module = LinearLoss()

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            records = torch.tensor([[0.0, self.other, 0.0], [1e6, 0.0, 0.0]])[: 1 + world]
            scores = torch.empty(trials, dtype=torch.float64)
            attacked = self.gradients(module, sample_rate=1.0, steps=1, budget=budget, rng=seeded_by(generator))
            for trial, (batch,) in enumerate(attacked.batches(records, steps=trials)):
                attacked.backward(module(batch))
                scores[trial] = self.score(first_gradient(attacked))
            attacked.close()
            return scores

        return Game(f"{self.name}: a canary with a huge gradient", play, "add-or-remove", budget.delta)


@register
@dataclass(frozen=True)
class NoisyGradient(UnprovenMethod):
    """Noisy Gradient: add noise to each record's gradient, then clip it (sequence AC of Lin et al.).

    The paper states no epsilon, so the budget's is not used: noise and clipping norm are settings, as there.

    Formal guarantee
    ----------------
    None. Before the noise a record's gradient is unbounded, and the noise scales with `max_grad_norm` while the signal
    does not: a record with a large gradient passes through with its direction intact.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("noisy-gradient", records, epochs=2)
        >>> release.card.verdict
        'nothing proven'
        >>> release.card.why
        "A record's gradient is unbounded when the noise is added, so no finite epsilon holds; ..."
    """

    name: ClassVar[str] = "noisy-gradient"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "no epsilon; 'ideal privacy protection effects' by a distance of weights (TPVD)"
    why: ClassVar[str] = (
        "A record's gradient is unbounded when the noise is added, so no finite epsilon holds; "
        "the paper states none, and the budget's epsilon was not used."
    )
    stated: ClassVar[tuple[str, ...]] = ("noise_multiplier", "max_grad_norm", "draw")
    other: ClassVar[float] = 1e6

    max_grad_norm: Positive = 1.4
    """L2 norm that a record's noised gradient is clipped to."""
    micro_batch_size: Count = 512
    """Records whose gradients are in memory at once; changes nothing but memory."""
    draw: Draw = "exact"
    """How noise is drawn: `exact`, with the law of the algorithm and few numbers, or `plain`, a number a record and parameter."""
    by: Literal["all", "tensor"] = "all"
    """`all` clips over the whole parameter vector; `tensor` each parameter tensor by itself (plain draw only)."""

    def gradients(
        self, module: nn.Module, *, steps: int, budget: Budget, **sampling: Unpack[Sampling]
    ) -> BatchGradients:
        """Noised, then clipped gradients."""
        noise = {"max_grad_norm": self.max_grad_norm, "noise_multiplier": self.noise_multiplier}
        return NoisyGradients(module, **noise, draw=self.draw, by=self.by, **sampling)

    def score(self, gradient: torch.Tensor) -> float:
        """The canary's direction, which comes through the clipping nearly un-noised."""
        return float(gradient[0])

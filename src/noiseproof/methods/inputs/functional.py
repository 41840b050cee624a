"""functional: noise on the coefficients of the whole data set's loss, once, and a closed-form solution.

For features phi of norm 1 the loss of all records is, up to what is the same for all classes,
sum_l W_l S W_l / 8 - c_l W_l with S = sum phi phi^T and c_l = sum (y_l - 1/M) phi, minimised by W = 4 S^-1 c. (The paper's
coefficient is 1/2 - y_l. Its other part, (1/2 - 1/M) sum phi, moves the logits of all classes alike, which no answer sees:
it is left out, and the noise it would cost with it.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import BelowOne, Count, Positive, Rate, Within, claim_of, proven_game, seeded_by
from noiseproof.methods.inputs.relevance import average, release_relevance, split
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Gaussian, Laplace, Proof, accountants, calibration
from noiseproof.privacy.accountants import Spend
from noiseproof.privacy.card import Place
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, PureDpEvent, ReplaceOneDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, Saved

if TYPE_CHECKING:
    from noiseproof.privacy import Card, Game, Randomness


Law = Literal["gaussian", "laplace"]

_ENTRIES = 1 << 24
"""Mapped features that are in memory at once: 64 megabytes."""
_SLACK = 1 + 1e-5
"""Room for the rounding of features to norm 1."""
_WIDE = 512
"""From this width on products are in float32, and summed in float64."""

ASSUMPTIONS = (
    "the feature map, the ridge and the shares of the noise were not chosen by looking at the private records",
    "sums over records are exact (floating-point error of the sum is not accounted for)",
)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The coefficients S and c of a data set as one vector of sensitivity 1, with the noise that a budget asks for.

    Formal guarantee
    ----------------
    The budget's (epsilon, delta), delta 0 for Laplace noise. Unit: record. Neighbours: the budget's. With ||phi|| <= 1 in
    L2 norm, adding or removing a record moves S by ||phi phi^T||_F <= 1 and c by sqrt(1 - 1/M); exchanging one moves S by
    at most sqrt(2) (both matrices are positive) and c by 2 sqrt(1 - 1/M). S is released as its upper triangle with the
    off-diagonal times sqrt(2), which has the norm of S. With ||phi|| <= 1 in L1 norm, the upper triangle moves by at most 1
    and c by 2 (1 - 1/M) in L1 norm, twice that for an exchange. S and c are divided by these and weighted such that
    together they have sensitivity 1, and get one Gaussian or Laplace mechanism. References: Zhang et al. 2012 (functional
    mechanism); Dwork et al. 2014 (noise on second moments).
    """

    embed: Callable[[torch.Tensor], torch.Tensor]
    width: int
    classes: int
    law: Law
    share: float
    """S's part of the noise's budget."""
    budget: Budget

    def __post_init__(self) -> None:
        if self.law == "gaussian" and self.budget.delta == 0:
            raise SettingError("Gaussian noise needs a delta above 0; choose one such as 1e-5, or noise=laplace.")

    @property
    def weights(self) -> tuple[float, float]:
        """What S and c are multiplied by, so that together they have sensitivity 1."""
        exchange = self.budget.neighbours == "replace-one"
        centred = 1 - 1 / self.classes
        if self.law == "gaussian":
            moves = (math.sqrt(2) if exchange else 1.0, (2 if exchange else 1) * math.sqrt(centred))
            parts = (math.sqrt(self.share), math.sqrt(1 - self.share))
        else:
            moves = (2.0 if exchange else 1.0, (2 if exchange else 1) * 2 * centred)
            parts = (self.share, 1 - self.share)
        return parts[0] / (moves[0] * _SLACK**2), parts[1] / (moves[1] * _SLACK)

    @property
    def mechanism(self) -> Gaussian | Laplace:
        """What adds the noise."""
        if self.law == "laplace":
            return Laplace(1.0, self.budget.epsilon)
        # The sensitivity is that of the budget's neighbours already, so that one unsampled step is what is calibrated.
        return Gaussian(1.0, calibration.sigma(self.budget.epsilon, self.budget.delta, 1.0, 1).sigma)

    @property
    def event(self) -> DpEvent:
        """What the release is, for accountants."""
        event = self.mechanism.event
        return ReplaceOneDpEvent(event) if self.budget.neighbours == "replace-one" else event

    def proof(self, *assumptions: str) -> Proof:
        """What is proven of one release."""
        spent = accountants.epsilon(
            self.event, 0.0 if self.law == "laplace" else self.budget.delta, neighbours=self.budget.neighbours
        )
        return spent.proof(*ASSUMPTIONS, *assumptions)

    def sums(self, dataset: Dataset, progress: Progress = SILENT) -> torch.Tensor:
        """The coefficients as one vector, summed over batches of records; private until `release`."""
        exact = torch.float32 if self.width >= _WIDE else torch.float64
        device = dataset.features.device
        second = torch.zeros(self.width, self.width, dtype=torch.float64, device=device)
        first = torch.zeros(self.classes, self.width, dtype=torch.float64, device=device)
        rows = max(1, min(_ENTRIES // self.width, 4096))
        with progress.task("summing coefficients", len(dataset)) as task:
            for start in range(0, len(dataset), rows):
                labels = dataset.labels[start : start + rows]
                mapped = self.embed(dataset.features[start : start + rows]).to(exact)
                centred = functional.one_hot(labels, self.classes).to(exact) - 1 / self.classes
                second += mapped.T @ mapped
                first += centred.T @ mapped
                task.advance(len(labels))
        curvature, slope = self.weights
        triangle = second[self._triangle(device)] * curvature
        return torch.cat([triangle * self._stretch(device), first.flatten() * slope]).cpu()

    def scale(self, rng: Randomness) -> float:
        """The noise's scale on a coordinate of `sums`."""
        return self.mechanism.scale(rng, self.width * (self.width + 1) // 2 + self.classes * self.width)

    def release(self, sums: torch.Tensor, rng: Randomness) -> tuple[torch.Tensor, torch.Tensor]:
        """S (width, width) and c (classes, width) with noise."""
        noisy = self.mechanism.release(sums, rng)
        curvature, slope = self.weights
        device = torch.device("cpu")
        entries = self.width * (self.width + 1) // 2
        second = torch.zeros(self.width, self.width, dtype=torch.float64)
        second[self._triangle(device)] = noisy[:entries] / self._stretch(device) / curvature
        second += second.triu(1).T
        return second, noisy[entries:].view(self.classes, self.width) / slope

    def spread(self, rng: Randomness) -> float:
        """How large the noise on S is, as an operator: its largest eigenvalue comes to about this."""
        entry = self.scale(rng) / self.weights[0]
        # Off the diagonal the standard deviation is entry / sqrt(2), or that of Laplace noise, entry * sqrt(2).
        deviation = entry / math.sqrt(2) if self.law == "gaussian" else entry * math.sqrt(2)
        return 2 * math.sqrt(self.width) * deviation

    def _triangle(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = torch.triu_indices(self.width, self.width, device=device)
        return rows, columns

    def _stretch(self, device: torch.device) -> torch.Tensor:
        """sqrt(2) off the diagonal for Gaussian noise, so that a triangle has its matrix's norm; else 1."""
        rows, columns = self._triangle(device)
        off = math.sqrt(2) if self.law == "gaussian" else 1.0
        return torch.where(rows == columns, 1.0, off).double()


def solve(second: torch.Tensor, first: torch.Tensor, ridge: float) -> torch.Tensor:
    """W = 4 (S + ridge)^-1 c as (width, classes); where noise left S + ridge indefinite, negative eigenvalues of S are 0.

    Formal guarantee
    ----------------
    None is needed: post-processing of released coefficients.
    """
    raised = second + ridge * torch.eye(len(second), dtype=second.dtype)
    factor, failed = torch.linalg.cholesky_ex(raised)
    if not int(failed):
        return 4 * torch.cholesky_solve(first.T, factor)
    values, vectors = torch.linalg.eigh(second)
    return 4 * vectors @ ((vectors.T @ first.T) / (values.clamp(min=0) + ridge)[:, None])


MapName = Literal["auto", "raw", "fourier", "scattering"]
"""`raw`: the features themselves. `fourier`: random Fourier features. `scattering`: wavelets, for pictures. For any other
public map use `data.features.apply` first, and then `raw`."""

_LEAST = 1e-12


class Embedding(nn.Module):
    """phi: a public map of a record, a constant, a public scale for each feature, and norm 1 (L2, or L1).

    `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `raw`: the shape, which is public,
    decides.

    Formal guarantee
    ----------------
    None is needed: phi depends on one record and on public numbers alone (or such as were released under DP), and its norm
    is at most 1 + 1e-5 in floating point.
    """

    scale: torch.Tensor

    def __init__(
        self, shape: tuple[int, ...], features: MapName = "auto", width: int = 1000, length: float = 0.6, norm: int = 2
    ) -> None:
        super().__init__()
        picture = len(shape) == 3 and min(shape[1:]) >= 16 and not any(side % 4 for side in shape[1:])
        self.name = features if features != "auto" else "scattering" if picture else "raw"
        self.norm = norm
        self._map: FeatureMap | None = None
        if self.name == "fourier":
            self._map = Chain((UnitNormMap(), RandomFourierMap(width, length)))
        elif self.name == "scattering":
            self._map = Chain((ScatteringMap(), GroupNormMap()))
        mapped = shape if self._map is None else self._map.shape(shape)
        self.width = math.prod(mapped) + 1
        self.register_buffer("scale", torch.ones(self.width))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The records as (records, width), each of norm 1."""
        mapped = features.float() if self._map is None else self._map(features.float())
        flat = mapped.flatten(1)
        flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1) * self.scale
        return flat / torch.linalg.vector_norm(flat, ord=self.norm, dim=1, keepdim=True).clamp(min=_LEAST)


class FunctionalLinear(nn.Module):
    """A linear network without a bias on an `Embedding`, whose constant stands for one."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        features: MapName = "auto",
        width: int = 1000,
        length: float = 0.6,
        norm: int = 2,
    ) -> None:
        super().__init__()
        self.options = {"features": features, "width": width, "length": length, "norm": norm}
        self.embedding = Embedding(input_shape, features, width, length, norm)
        self.linear = nn.Linear(self.embedding.width, classes, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits of the records."""
        return self.linear(self.embedding(features))


class FunctionalRelease(ModelRelease):
    """A linear network on a public feature map, whose weights may be public."""

    def __init__(self, module: FunctionalLinear, card: Card, public: Public, settings: Mapping[str, Any]) -> None:
        network = Network("custom", public.shape, len(public.classes), module=module)
        super().__init__(module, network, card, public, settings)
        self._options = module.options

    def description(self) -> dict[str, Any]:
        """The feature map."""
        return {"embedding": dict(self._options)}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same weights on the same map."""
        public = saved.public
        module = FunctionalLinear(public.shape, len(public.classes), **saved.description["embedding"])
        module.load_state_dict(dict(saved.tensors))
        return cls(module, saved.card, public, saved.settings)


@register
@dataclass(frozen=True)
class Functional(Method):
    """Noise on the coefficients of the whole data set's quadratic loss, once; a linear network in closed form.

    What Phan et al. wanted, with a proof: no epochs, so none that cost, and with `relevance_share` less noise where features
    matter more. The network is not used: what is fitted is one linear layer on `features`. The ridge follows from the
    noise's size, which is public.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP, delta 0 for Laplace noise; see `Quadratic` for the sensitivities. Unit: record. Neighbours: the
    budget's. Features are scaled to norm 1, so that the bound holds whatever the records are. With `relevance_share` a part
    of epsilon goes to a first fit and to the average relevances of its features (`release_relevance`), by which features
    are scaled before they are brought to norm 1: that leaves the bound as it is. All three compose. Assumptions: the map,
    ridge and shares were not tuned on the private records (the defaults were set with published sets in view). Costs: one
    product of the mapped records with themselves, and one solution of a linear system.
    """

    name: ClassVar[str] = "functional"
    takes_network: ClassVar[bool] = False
    place: ClassVar[Place] = "inputs"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record, without epochs"

    features: MapName = "auto"
    noise: Law = "gaussian"
    ridge: Positive = 0.4
    """In units of the noise's size as an operator, so that it is chosen without looking at private records."""
    curvature_share: Within = 0.5
    """The part of the noise's budget for second moments; the rest is for what ties features to labels."""
    relevance_share: BelowOne = 0.0
    """The part of epsilon that pays for relevances; 0 scales no feature."""
    floor: Rate = 0.1
    """The least beta by which features are scaled."""
    width: Count = 1000
    length: Positive = 0.6
    """Number of random Fourier features and their kernel's length scale, for `features="fourier"`."""

    def _network(self, dataset: Dataset) -> FunctionalLinear:
        """The linear network that is to be fitted, its weights still arbitrary."""
        norm = 2 if self.noise == "gaussian" else 1
        return FunctionalLinear(
            dataset.public.shape, dataset.classes, self.features, self.width, self.length, norm
        ).eval()

    def plan(self, dataset: Dataset, budget: Budget, embedding: Embedding | None = None) -> Quadratic:
        """The coefficients and their noise for such records, from public numbers alone."""
        embedding = self._network(dataset).embedding if embedding is None else embedding
        return Quadratic(embedding, embedding.width, dataset.classes, self.noise, self.curvature_share, budget)

    def weights(
        self,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        embedding: Embedding | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Weights (features and a constant, classes) within `budget`, and the facts of the run.

        Formal guarantee
        ----------------
        The class's, for this one release.
        """
        quadratic = self.plan(dataset, budget, embedding)
        second, first = quadratic.release(quadratic.sums(dataset, progress), rng)
        ridge = self.ridge * quadratic.spread(rng)
        curvature, slope = quadratic.weights
        facts = {
            "noise": self.noise,
            "features": quadratic.width,
            "ridge": ridge,
            "scale on second moments": quadratic.scale(rng) / curvature,
            "scale on first moments": quadratic.scale(rng) / slope,
        }
        return solve(second, first, ridge), facts

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> FunctionalRelease:
        """Sum the coefficients over all records, add noise once, solve."""
        module = self._network(dataset)
        events: list[DpEvent] = []
        main = budget
        ran: dict[str, Any] = {"map": module.embedding.name, "curvature share": self.curvature_share}
        if self.relevance_share:
            main, events = self._scale(module.embedding, dataset, budget, rng, progress)
            ran["relevance share"] = self.relevance_share
        weights, facts = self.weights(dataset, main, rng=rng, progress=progress, embedding=module.embedding)
        with torch.no_grad():
            module.linear.weight.copy_(weights.T)
        quadratic = self.plan(dataset, main, module.embedding)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=claim_of(budget),
            proven=self._proof(quadratic, events, budget, rng),
            ran={**ran, **facts, "releases": len(events) + 1},
        )
        release = FunctionalRelease(module, card, dataset.public, self.settings())
        release.event_log = tuple((event, 1) for event in (*events, quadratic.event))
        return release

    def _scale(
        self, embedding: Embedding, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[Budget, list[DpEvent]]:
        """Scale the features by the relevances of a first fit; what is left of the budget, and what happened so far."""
        part = self.relevance_share / 2 * budget.epsilon
        first = replace(budget, epsilon=part, delta=budget.delta / 2)
        weights, _ = self.weights(dataset, first, rng=rng, progress=progress, embedding=embedding)
        linear = nn.Linear(embedding.width, dataset.classes, bias=False)
        with torch.no_grad():
            linear.weight.copy_(weights.T)
        mean = average(nn.Sequential(linear), dataset.features, normalised="magnitude", feature_map=embedding)
        # Half of the epsilon that lemma 1 allows for is what the release costs.
        private = release_relevance(mean, len(dataset), 2 * part, rng)
        beta = split(private.values.clamp(min=0), self.floor)
        with torch.no_grad():
            embedding.scale.copy_(beta.sqrt())
        events = [
            self.plan(dataset, first, embedding).event,
            PureDpEvent(private.proven, neighbours=budget.neighbours),
        ]
        return self._left(budget, part, events, dataset, embedding), events

    def _left(
        self, budget: Budget, part: float, before: list[DpEvent], dataset: Dataset, embedding: Embedding
    ) -> Budget:
        """What is left for the last release: by composition as tight as the accountant's, and never less than by adding up."""
        least = replace(budget, epsilon=budget.epsilon - 2 * part, delta=budget.delta / 2)
        if self.noise == "laplace":
            return least

        def total(epsilon: float) -> float:
            last = self.plan(dataset, replace(least, epsilon=epsilon), embedding).event
            return self._spent([*before, last], budget).epsilon

        if total(least.epsilon) > budget.epsilon:
            return least  # only the grid of the accountant makes it so: adding up holds
        found = calibration.calibrate(
            total, budget.epsilon, start=least.epsilon, low=least.epsilon, high=budget.epsilon, increasing=True
        )
        return replace(least, epsilon=found)

    def _proof(self, quadratic: Quadratic, before: list[DpEvent], budget: Budget, rng: Randomness) -> Proof:
        if not before:
            return quadratic.proof(*rng.assumptions)
        return self._spent([*before, quadratic.event], budget).proof(*ASSUMPTIONS, *rng.assumptions)

    def _spent(self, events: list[DpEvent], budget: Budget) -> Spend:
        delta = 0.0 if self.noise == "laplace" else budget.delta
        return accountants.epsilon(ComposedDpEvent(events), delta, neighbours=budget.neighbours)

    def game(self, budget: Budget) -> Game:
        """The released sums over one record more or less (or exchanged), whose features have the largest norm."""
        features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        public = Public(shape=(2,), classes=("0", "1"))
        indices = ([0], [0, 1]) if budget.neighbours == "add-or-remove" else ([0, 1], [0, 2])
        everyone = Dataset("game", features, torch.tensor([0, 1, 0]), public)
        worlds = [everyone.take(torch.tensor(chosen)) for chosen in indices]
        plan = self.plan(everyone, budget)
        sums = [plan.sums(world) for world in worlds]

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            scale = plan.scale(rng)
            value = sums[world].expand(trials, -1).clone()
            if self.noise == "gaussian":
                return rng.add_gaussian(value, scale) @ (sums[1] - sums[0])
            seen = rng.add_laplace(value, scale)
            return (seen - sums[0]).abs().sum(1) - (seen - sums[1]).abs().sum(1)

        title = f"{self.name}: the sums with a record and without"
        return proven_game(title, play, budget, plan.proof(), gaussian=self.noise == "gaussian")

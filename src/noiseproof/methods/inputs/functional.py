"""functional: noise on the coefficients of the whole data set's loss (`quadratic`), once, and a closed-form solution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import BelowOne, Count, Positive, Rate, claim_of, crowded, proven_game, seeded_by
from noiseproof.methods.inputs.quadratic import ASSUMPTIONS, Law, Quadratic, solve
from noiseproof.methods.inputs.relevance import average, release_relevance, split
from noiseproof.networks import Network
from noiseproof.networks.objectives import Objective
from noiseproof.privacy import Budget, calibration
from noiseproof.privacy.card import Place
from noiseproof.privacy.events import DpEvent, PureDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, Saved

if TYPE_CHECKING:
    from noiseproof.privacy import Card, Game, Randomness


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

    def __init__(self, input_shape: tuple[int, ...], classes: int, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.embedding = Embedding(input_shape, **options)
        self.linear = nn.Linear(self.embedding.width, classes, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits of the records."""
        return self.linear(self.embedding(features))


class FunctionalRelease(ModelRelease):
    """A linear network on a public feature map, whose weights may be public."""

    def __init__(self, module: FunctionalLinear, card: Card, public: Public, settings: Mapping[str, Any]) -> None:
        network = Network("custom", public.shape, public.outputs, module=module)
        super().__init__(module, network, card, public, settings)
        self._options = module.options

    @property
    def objective(self) -> Objective:
        """Of a numeric target always the squared error."""
        return Objective() if self.public.task == "classification" else Objective("squared")

    def description(self) -> dict[str, Any]:
        """The feature map."""
        return {"embedding": dict(self._options)}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same weights on the same map."""
        public = saved.public
        module = FunctionalLinear(public.shape, public.outputs, **saved.description["embedding"])
        saved.put_into(module)
        return cls(module, saved.card, public, saved.settings)


@register
@dataclass(frozen=True)
class Functional(Method):
    """Noise on the coefficients of the whole data set's quadratic loss, once; a linear network in closed form.

    What Phan et al. wanted, with a proof: no epochs, so none that cost, and with `relevance_share` less noise where features
    matter more. The network is not used: what is fitted is one linear layer on `features`. The ridge follows from the
    noise's size, which is public. Of a numeric target it is the functional mechanism as published, for linear regression.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP, delta 0 for Laplace noise; see `Quadratic` for the sensitivities. Unit: record, or person.
    Neighbours: the budget's. Features are scaled to norm 1, so that the bound holds whatever the records are. With
    `relevance_share` a part of epsilon goes to a first fit and to the average relevances of its features
    (`release_relevance`), by which features are scaled before they are brought to norm 1: that leaves the bound as it
    is. All three compose. Assumptions: the map, ridge and shares were not tuned on the private records (the defaults
    were set with published sets in view). Costs: one product of the mapped records with themselves, and one solution of
    a linear system.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("functional", records, epsilon=3)
        >>> release.card.verdict
        'proven'
        >>> release.predict(torch.rand(5, 4)).shape
        torch.Size([5, 2])
    """

    name: ClassVar[str] = "functional"
    takes_network: ClassVar[bool] = False
    place: ClassVar[Place] = "inputs"
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record, without epochs"
    units: ClassVar[tuple[str, ...]] = ("record", "person")

    features: MapName = "auto"
    """The public map of records: `raw`, `fourier` (random Fourier features) or `scattering` (wavelets, for pictures). `auto`
    is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `raw`."""
    noise: Law = "gaussian"
    """`gaussian`, which needs a delta above 0, or `laplace`, for delta 0 and records of L1 norm 1."""
    ridge: Positive = 0.4
    """In units of the noise's size as an operator, so that it is chosen without looking at private records."""
    curvature_share: BelowOne | None = None
    """The part of the noise's budget for second moments; the rest is for what ties features to labels. With 0, a class's
    weights are the direction of the sum of its records, so that the answer is the class nearest in angle. None decides by
    public numbers: 0 for vectors of which a class has fewer records than they have features, else 0.5."""
    relevance_share: BelowOne = 0.0
    """The part of epsilon that pays for relevances; 0 scales no feature."""
    floor: Rate = 0.1
    """The least beta by which features are scaled."""
    width: Count = 1000
    """Number of random Fourier features, for `features="fourier"`."""
    length: Positive = 0.6
    """Length scale of their Gaussian kernel, between records of norm 1."""
    interval: BelowOne = 0.0
    """The share of targets that an interval around a predicted number is to hold; a tenth of epsilon pays for its width
    (`run.spends`). 0 for none."""

    def _network(self, dataset: Dataset) -> FunctionalLinear:
        """The linear network that is to be fitted, its weights still arbitrary."""
        options = {"features": self.features, "width": self.width, "length": self.length}
        norm = 2 if self.noise == "gaussian" else 1
        return FunctionalLinear(dataset.public.shape, dataset.outputs, **options, norm=norm).eval()

    def plan(self, dataset: Dataset, budget: Budget, embedding: Embedding | None = None) -> Quadratic:
        """The coefficients and their noise for such records, from public numbers alone."""
        embedding = self._network(dataset).embedding if embedding is None else embedding
        numeric = dataset.public.task != "classification"
        share = self.curvature_share
        if share is None:
            wide = dataset.public.kind == "vector" and dataset.persons < dataset.outputs * embedding.width
            share = 0.0 if wide and not numeric else 0.5
        if not share and numeric:
            raise SettingError("of a numeric target, curvature_share must be above 0.")
        return Quadratic(embedding, embedding.width, dataset.outputs, self.noise, share, budget, numeric)

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent | None:
        """The one release of noised coefficients; with relevances the second depends on the first."""
        return None if self.relevance_share else self.plan(dataset, budget).event

    def weights(
        self, plan: Quadratic, dataset: Dataset, rng: Randomness, progress: Progress = SILENT
    ) -> tuple[torch.Tensor, float]:
        """Weights (features and a constant, classes) within a plan's budget, and the ridge.

        Formal guarantee
        ----------------
        The class's, for this one release.
        """
        sums = plan.sums(dataset, progress)
        if not plan.share:
            return plan.directions(sums, rng), 0.0
        second, first = plan.release(sums, rng)
        ridge = self.ridge * plan.spread(rng)
        return solve(second, first, ridge, numeric=plan.numeric), ridge

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> FunctionalRelease:
        """Sum the coefficients over all records, add noise once, solve."""
        module = self._network(dataset)
        before: list[DpEvent] = []
        main = budget
        ran: dict[str, Any] = {"map": module.embedding.name}
        if self.relevance_share:
            main, before = self._scale(module.embedding, dataset, budget, rng, progress)
            ran["relevance share"] = self.relevance_share
        plan = self.plan(dataset, main, module.embedding)
        weights, ridge = self.weights(plan, dataset, rng, progress)
        with torch.no_grad():
            module.linear.weight.copy_(weights.T)
        curvature, slope = plan.weights
        ran |= {
            "noise": self.noise,
            "features": plan.width,
            "ridge": ridge,
            "curvature share": plan.share,
            **({"scale on second moments": plan.scale(rng) / curvature} if plan.share else {}),
            "scale on first moments": plan.scale(rng) / slope,
            "releases": len(before) + 1,
        }
        proven = plan.spent(before, budget.delta).proof(*ASSUMPTIONS, *rng.assumptions)
        card = self.card(dataset, budget, rng, claimed=claim_of(budget), proven=proven, ran=ran)
        release = FunctionalRelease(module, card, dataset.public, self.settings())
        return release.logged((event, 1) for event in (*before, plan.event))

    def _scale(
        self, embedding: Embedding, dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[Budget, list[DpEvent]]:
        """Scale the features by the relevances of a first fit; what is left of the budget, and what happened so far."""
        part = self.relevance_share / 2 * budget.epsilon
        plan = self.plan(dataset, replace(budget, epsilon=part, delta=budget.delta / 2), embedding)
        weights, _ = self.weights(plan, dataset, rng, progress)
        linear = nn.Linear(embedding.width, dataset.outputs, bias=False)
        with torch.no_grad():
            linear.weight.copy_(weights.T)
        mean = average(
            nn.Sequential(linear),
            dataset.features,
            normalised="magnitude",
            feature_map=embedding,
            weights=dataset.weights,
        )
        # Half of the epsilon that lemma 1 allows for is what the release costs.
        private = release_relevance(mean, dataset.persons, 2 * part, rng)
        beta = split(private.values.clamp(min=0), self.floor)
        with torch.no_grad():
            embedding.scale.copy_(beta.sqrt())
        before = [plan.event, PureDpEvent(private.proven, neighbours=budget.neighbours)]
        return self._left(budget, part, before, plan), before

    def _left(self, budget: Budget, part: float, before: list[DpEvent], plan: Quadratic) -> Budget:
        """What is left for the last release: by composition as tight as the accountant's, and never less than by adding up."""
        least = replace(budget, epsilon=budget.epsilon - 2 * part, delta=budget.delta / 2)
        if self.noise == "laplace":
            return least

        def total(epsilon: float) -> float:
            last = replace(plan, budget=replace(least, epsilon=epsilon))
            return last.spent(before, budget.delta).epsilon

        if total(least.epsilon) > budget.epsilon:
            return least  # only the grid of the accountant makes it so: adding up holds
        found = calibration.calibrate(
            total, budget.epsilon, start=least.epsilon, low=least.epsilon, high=budget.epsilon, increasing=True
        )
        return replace(least, epsilon=found)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """The released sums over one record more or less (or exchanged), whose features have the largest norm."""
        features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        public = Public(shape=(2,), classes=("0", "1"))
        indices = ([0], [0, 1]) if budget.neighbours == "add-or-remove" else ([0, 1], [0, 2])
        everyone = Dataset("game", features, torch.tensor([0, 1, 0]), public)
        # Beside the first record, whoever is there is the canary.
        worlds = [crowded(everyone.take(torch.tensor(chosen)), 1, canaries if chosen[1:] else 1) for chosen in indices]
        share = 0.5 if self.curvature_share is None else self.curvature_share
        plan = replace(self, curvature_share=share).plan(everyone, budget)
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
        return proven_game(title, play, budget, plan.proof(), gaussian=self.noise == "gaussian", canaries=canaries)

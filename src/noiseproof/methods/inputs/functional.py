"""functional: noise on the coefficients of the whole data set's loss, once, and a closed-form solution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import torch
from torch import nn

from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.inputs.games import functional_game
from noiseproof.methods.inputs.quadratic import ASSUMPTIONS, Law, Quadratic, solve
from noiseproof.methods.inputs.relevance import average, release_relevance, split
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Proof, accountants, calibration
from noiseproof.privacy.accountants import Spend
from noiseproof.privacy.card import Claim, Place
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, PureDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, Saved

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.privacy import Card, Game, Randomness


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
    ridge: float = 0.4
    """In units of the noise's size as an operator, so that it is chosen without looking at private records."""
    curvature_share: float = 0.5
    """The part of the noise's budget for second moments; the rest is for what ties features to labels."""
    relevance_share: float = 0.0
    """The part of epsilon that pays for relevances; 0 scales no feature."""
    floor: float = 0.1
    """The least beta by which features are scaled."""
    width: int = 1000
    length: float = 0.6
    """Number of random Fourier features and their kernel's length scale, for `features="fourier"`."""

    def __post_init__(self) -> None:
        if self.noise not in get_args(Law):
            raise SettingError(f"functional's setting noise is one of {', '.join(get_args(Law))}, not {self.noise!r}.")
        if not (math.isfinite(self.ridge) and self.ridge > 0):
            raise SettingError(f"functional's setting ridge must be positive, not {self.ridge}.")
        if not 0 < self.curvature_share < 1:
            raise SettingError(f"functional's setting curvature_share must lie in (0, 1), not {self.curvature_share}.")
        if not 0 <= self.relevance_share < 1:
            raise SettingError(f"functional's setting relevance_share must lie in [0, 1), not {self.relevance_share}.")
        split(torch.ones(1), self.floor)

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
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
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
            claimed=Claim(
                epsilon=budget.epsilon,
                delta=budget.delta,
                neighbours=budget.neighbours,
                source="the budget that the noise was calibrated to",
            ),
            proven=self._proof(quadratic, events, budget, rng),
            ran={**ran, **facts, "releases": len(events) + 1},
        )
        return FunctionalRelease(module, card, dataset.public, self.settings())

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
        """The sums over one record more or less, whose features are as large as they can be."""
        return functional_game(self, budget)


# Embedding: a public feature map, scaled by feature and brought to norm 1, and the linear network on top of it.


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
        if features not in get_args(MapName):
            raise SettingError(f"a feature map is one of {', '.join(get_args(MapName))}, not {features!r}.")
        if width < 1 or not length > 0:
            raise SettingError(f"fourier features need a width and a length above 0, not {width} and {length}.")
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

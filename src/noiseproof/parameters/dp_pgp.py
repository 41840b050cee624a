"""dp-pgp: group the largest parameters, draw the others (Mao et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Claim
from noiseproof.methods import register
from noiseproof.parameters.draw import Draw, draw
from noiseproof.parameters.grouping import Grouping
from noiseproof.parameters.method import PublishingMethod
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget, Randomness
    from noiseproof.parameters.collection import Collection


@register
@dataclass(frozen=True)
class DpPgp(PublishingMethod):
    """Mao et al.'s grouping: the mean network's largest parameters get Laplace noise by cluster, the others are drawn.

    Formal guarantee
    ----------------
    None. Claimed: max{epsilon_c + epsilon_K, epsilon_j}-DP for a model. What hides one parameter among those of a
    cluster hides neither a model, which moves all of them, nor a record, and the noise is scaled by what is read off
    the parameters; see `Grouping`, and `DpPg` for the parameters that are drawn.
    """

    name: ClassVar[str] = "dp-pgp"
    claims: ClassVar[str] = "max{epsilon_c + epsilon_K, epsilon_j} for a model (not a record)"

    gamma: float = 0.2
    """Share of each layer's parameters, the largest, that is grouped."""
    clusters: int = 8
    rounds_of_kmeans: int = 5
    as_printed: bool = False
    """Whether line 21 is taken as printed, 2 c - theta + Lap, rather than theta + Lap."""
    epsilon_draw: float | None = None
    """epsilon_j of a drawn parameter; None takes the budget's epsilon."""
    epsilon_cluster: float | None = None
    """epsilon_c of the clustering; None takes a fifth of the budget's, as the paper's (5, 1, 4) does."""
    epsilon_shift: float | None = None
    """epsilon_K of the Laplace noise; None takes what the clustering leaves of the budget's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._grouping()
        for name in ("epsilon_draw", "epsilon_cluster", "epsilon_shift"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SettingError(f"dp-pgp's setting {name} must be a finite number greater than 0, not {value}.")

    def _grouping(self) -> Grouping:
        return Grouping(self.gamma, self.clusters, self.rounds_of_kmeans, self.as_printed)

    def epsilons(self, budget: Budget) -> tuple[float, float, float]:
        """epsilon_j, epsilon_c and epsilon_K; refused where the paper's sum of them is above the budget."""
        drawn = budget.epsilon if self.epsilon_draw is None else self.epsilon_draw
        cluster = budget.epsilon / 5 if self.epsilon_cluster is None else self.epsilon_cluster
        shift = budget.epsilon - cluster if self.epsilon_shift is None else self.epsilon_shift
        if shift <= 0 or max(drawn, cluster + shift) > budget.epsilon * (1 + 1e-9):
            raise SettingError(
                f"max(epsilon_cluster + epsilon_shift, epsilon_draw) must not be above the budget's epsilon, "
                f"{budget.epsilon:g}."
            )
        return drawn, cluster, shift

    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Draw:
        """Algorithm 2: with gamma = 0 the very draws of dp-pg (corollary 3)."""
        epsilon, cluster, shift = self.epsilons(budget)
        grouping, layout = self._grouping(), collection.layout
        target = collection.mean()
        selected = grouping.select(target, layout)
        kept = torch.ones(len(target), dtype=torch.bool)
        for places in selected.values():
            kept[places] = False
        mechanism = self.mechanism(len(collection), epsilon)
        columns = None if bool(kept.all()) else kept.nonzero().flatten()
        drawn = draw(collection, self._density(), mechanism, rng, columns=columns, progress=progress)
        if columns is None:
            return drawn
        values = torch.empty_like(target)
        values[columns] = drawn.values
        for places in selected.values():
            if len(places):
                values[places] = grouping.publish(target[places], cluster, shift, rng)
        return Draw(values, drawn.fixed, drawn.points)

    def claim(self, budget: Budget) -> Claim:
        """max{epsilon_c + epsilon_K, epsilon_j}, by corollaries 3 and 4."""
        drawn, cluster, shift = self.epsilons(budget)
        epsilon = drawn if self.gamma == 0 else max(cluster + shift, drawn if self.gamma < 1 else 0.0)
        return Claim(epsilon=epsilon, delta=0.0, unit="model", source="Mao et al., corollaries 3 and 4")

    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        drawn, cluster, shift = self.epsilons(budget)
        places = self._grouping().select(collection.mean(), collection.layout)
        grouped = sum(len(each) for each in places.values())
        draws = (collection.parameters - grouped) * self.rounds()
        one, all_ = self.true_epsilon(len(collection), draws, drawn, budget.delta)
        numbers = {
            "epsilon of a draw": drawn,
            "epsilon of the clustering": cluster,
            "epsilon of the shifts": shift,
            "grouped parameters": grouped,
            "true epsilon of a draw": one,
            "true epsilon of the drawn parameters": all_,
            "true epsilon of a model": None if grouped else all_,
            "delta of a model": budget.delta,
        }
        why = (
            f"For a model, the {draws} draws of parameters together would be {all_:.4g} at delta {budget.delta:g}, were "
            "grids and bandwidths public; they were read off the networks."
        )
        if grouped:
            why += (
                f" The {grouped} grouped parameters have no finite epsilon for a model: it moves all of their means, by "
                "any amount, and the noise of each is scaled for one of them by what was read off them."
            )
        return why, numbers

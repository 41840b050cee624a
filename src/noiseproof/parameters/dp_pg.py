"""dp-pg: draw every parameter from the density of its values in many networks (Mao et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from noiseproof.guarantees.card import Claim
from noiseproof.methods import register
from noiseproof.parameters.draw import Draw, draw
from noiseproof.parameters.method import PublishingMethod
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget, Randomness
    from noiseproof.parameters.collection import Collection


@register
@dataclass(frozen=True)
class DpPg(PublishingMethod):
    """Mao et al.'s parameter generating: each parameter is drawn from its density over many networks.

    All networks start from the same weights and are trained on all records. Costs the training of `models` networks.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-DP for one of the *models*, max_j epsilon_j over the parameters. One record touches all models
    and all parameters, so that nothing is said of records. For models the sensitivity is erf(w / (2 sqrt 2 b)) / M and
    not 1 / (M (M - 1)), the draws of all parameters are draws from the same models and add up, and ranges and
    bandwidths are read off the models. The card gives the epsilon that would hold were these public.
    """

    name: ClassVar[str] = "dp-pg"
    claims: ClassVar[str] = "epsilon for a model (not a record): the largest of its parameters' epsilons"

    def draw(self, collection: Collection, budget: Budget, rng: Randomness, progress: Progress = SILENT) -> Draw:
        """Algorithm 1's inner loop, for all parameters."""
        mechanism = self.mechanism(len(collection), budget.epsilon)
        return draw(collection, self._density(), mechanism, rng, progress=progress)

    def claim(self, budget: Budget) -> Claim:
        """max_j epsilon_j, by corollary 1."""
        return Claim(epsilon=budget.epsilon, delta=0.0, unit="model", source="Mao et al., corollary 1")

    def _why(self, collection: Collection, budget: Budget) -> tuple[str, dict[str, Any]]:
        draws = collection.parameters * self.rounds()
        one, all_ = self.true_epsilon(len(collection), draws, budget.epsilon, budget.delta)
        return (
            f"For a model, one draw would be {one:.4g}-DP and all {draws} draws together {all_:.4g} at delta "
            f"{budget.delta:g}, were grids and bandwidths public; they were read off the networks, so that not even "
            "that is proven.",
            {"true epsilon of a draw": one, "true epsilon of a model": all_, "delta of a model": budget.delta},
        )

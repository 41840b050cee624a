"""Recipe: what to put before, into and around DP-SGD for one kind of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from noiseproof import methods
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.features import FeatureMap, apply, describe
from noiseproof.errors import SettingError
from noiseproof.networks import Network
from noiseproof.networks.mapped import Mapped, behind
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import ModelRelease, Release

METHOD = "dp-sgd"
"""The method that recipes are for."""

_LONGER = 2.8
"""How much longer steps are best without the preconditioner that settings were made for (seen on MNIST)."""


@dataclass(frozen=True)
class Recipe:
    """A feature map, a network behind it and settings of DP-SGD, by public facts alone.

    Formal guarantee
    ----------------
    A recipe is a constant: it reads the shape, the columns and the number of records, which every proof here takes to
    be public, and the budget. So its choice spends nothing, whatever data it is used on, and the guarantee is that of
    `DpSgd`. (Its constants were found on other people's records: docs/results.md says which, and what that means.)
    """

    name: str
    summary: str
    feature_map: Callable[[Public], FeatureMap]
    settings: Callable[[int, float], Mapping[str, Any]]
    """DP-SGD's settings for so many records at an epsilon."""
    takes: Callable[[Public], bool]
    """Whether records of that kind and shape can be mapped."""
    wants: str
    """What it takes, in words."""
    network: str = "linear"
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: bool = False
    """Whether mapped features are so costly that they are kept on disk (see `data.features.apply`)."""

    def check(self, public: Public) -> None:
        """Refuse data that the recipe is not for."""
        if not self.takes(public):
            raise SettingError(
                f"the recipe {self.name} is for {self.wants}, not for a {public.kind} of shape {public.shape}; choose "
                "auto or none."
            )

    def map(self, dataset: Dataset, progress: Progress = SILENT) -> Dataset:
        """The data set's public features: what the network behind the map is trained on."""
        self.check(dataset.public)
        return apply(dataset, self.feature_map(dataset.public), cache=self.keep, progress=progress)

    def trained(self, public: Public) -> Network:
        """The network behind the map."""
        return behind(public.shape, len(public.classes), self.feature_map(public), self.network, self.options)

    def whole(self, public: Public) -> Network:
        """Map and network as one, which takes records as they are."""
        options = {"maps": describe(self.feature_map(public)), "network": self.network, "options": dict(self.options)}
        return Network("mapped", public.shape, len(public.classes), options)

    def method(
        self, records: int, epsilon: float, settings: Mapping[str, Any] | None = None, *, interruptible: bool = False
    ) -> methods.Method:
        """DP-SGD as the recipe has it; `settings` of the user's own go before the recipe's.

        One that is `interruptible` is without a preconditioner, whose statistics checkpoints do not hold. Without one, by
        that or by the user's own setting, steps are longer.
        """
        cooked = dict(self.settings(records, epsilon))
        off = interruptible or (settings or {}).get("precondition") == 0
        if off and cooked.get("precondition"):
            cooked |= {"precondition": 0.0, "learning_rate": round(_LONGER * cooked["learning_rate"], 4)}
        return methods.build(METHOD, {**cooked, **(settings or {})})

    def around(self, release: Release, public: Public) -> ModelRelease:
        """What was trained behind the map, with the map before it: it takes records as they are."""
        assert isinstance(release, ModelRelease)
        card = release.card.model_copy(update={"ran": {**release.card.ran, "recipe": self.name}})
        module = Mapped(self.feature_map(public), release.module)
        return ModelRelease(module, self.whole(public), card, public, release.settings)

"""Recipes: a public feature map before DP-SGD, settings for it and a network behind the map, for one kind of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from noiseproof import methods
from noiseproof.data import Dataset, Public, layout
from noiseproof.data.features import (
    BinsMap,
    Chain,
    FeatureMap,
    GroupNormMap,
    MirrorMap,
    OpponentMap,
    RmsNormMap,
    ScatteringMap,
    UnitNormMap,
    UprightMap,
    apply,
    describe,
)
from noiseproof.data.lazy import StoredTensor
from noiseproof.errors import SettingError
from noiseproof.methods.gradients.dp_mf import DpMf
from noiseproof.networks import Network
from noiseproof.networks.small import Mapped, behind
from noiseproof.privacy import Budget
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, Release

if TYPE_CHECKING:
    from noiseproof.data import Dataset


METHODS = ("dp-sgd", "dp-mf")
"""The methods that recipes are for, with the same settings."""

_LONGER = 2.8
"""How much longer steps are best without the preconditioner that settings were made for (seen on MNIST)."""


@dataclass(frozen=True)
class Recipe:
    """A feature map, a network behind it and settings of DP-SGD, by public facts alone.

    Formal guarantee
    ----------------
    A recipe is a constant: it reads the shape, the columns and the number of records, which every proof here takes to
    be public, and the budget. So its choice spends nothing, whatever data it is used on, and the guarantee is that of
    the method. (Its constants were found on other people's records: docs/results.md says which, and what that means.)
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
    """Whether mapped features are worth keeping on disk, where that was asked for (see `data.features.apply`)."""

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
        return apply(dataset, self.feature_map(dataset.public), cache=None if self.keep else False, progress=progress)

    def trained(self, public: Public) -> Network:
        """The network behind the map."""
        return behind(public.shape, public.outputs, self.feature_map(public), self.network, self.options)

    def whole(self, public: Public, outputs: int | None = None) -> Network:
        """Map and network as one, which takes records as they are; it has the public target's outputs, or so many."""
        options = {"maps": describe(self.feature_map(public)), "network": self.network, "options": dict(self.options)}
        return Network("mapped", public.shape, outputs or public.outputs, options)

    def method(
        self,
        records: int,
        epsilon: float,
        settings: Mapping[str, Any] | None = None,
        *,
        method: str = METHODS[0],
        interruptible: bool = False,
    ) -> methods.Method:
        """DP-SGD, or another of `METHODS`, as the recipe has it; `settings` of the user's own go before the recipe's.

        One that is `interruptible` is without a preconditioner, whose statistics checkpoints do not hold. Without one, by
        that or by the user's own setting, steps are longer.
        """
        suited = dict(self.settings(records, epsilon))
        if method == "dp-mf" and not (settings or {}).keys() & {"sampled", "bands", "buffers"}:
            suited["strategy"] = "auto"  # linear networks are mostly small enough to remember all steps
        off = interruptible or (settings or {}).get("precondition") == 0
        if off and suited.get("precondition"):
            suited |= {"precondition": 0.0, "lr": round(_LONGER * suited["lr"], 4)}
        built = methods.build(method, {**suited, **(settings or {})})
        if isinstance(built, DpMf) and built.sampled and "bands" not in (settings or {}):
            return built.least_noise(records, Budget(epsilon))
        return built

    def around(self, release: Release, public: Public) -> ModelRelease:
        """What was trained behind the map, with the map before it: it takes records as they are."""
        assert isinstance(release, ModelRelease)
        card = release.card.model_copy(update={"ran": {**release.card.ran, "recipe": self.name}})
        module = Mapped(self.feature_map(public), release.module)
        network = self.whole(public, release.network.classes)
        return ModelRelease(module, network, card, public, release.settings).logged(release.event_log)


MANY = 5000
"""Records of a table from which on one-hot bins pay for their noise."""

WIDE = 128
"""Features of a vector from which on a linear model learns more under noise than a network with a hidden layer."""


def choose(public: Public, records: int) -> Recipe | None:
    """The recipe for such data, or None where DP-SGD's own defaults and the suggested network are as good.

    Formal guarantee
    ----------------
    The choice depends on task, kind, shape and number of records, which are public, and so spends nothing.
    """
    if public.task != "classification":
        return None  # their settings are for softmax regression; of numbers the plain linear network is as good
    if public.kind == "image" and get("scattering").takes(public):
        return get("scattering")
    if public.kind == "table" and get("bins").takes(public) and records >= MANY:
        return get("bins")
    if public.kind == "vector" and len(public.shape) == 1 and public.shape[0] >= WIDE:
        return get("unit")
    return None


def check(name: str, *, method: str = METHODS[0], network: bool = False) -> None:
    """Refuse an unknown recipe, or one that does not go with the method or with a network of the user's own."""
    if name in ("auto", "none"):
        return
    get(name)
    if method not in METHODS:
        raise SettingError(f"recipes are for {' and '.join(METHODS)}, not for {method}; leave the recipe away.")
    if network:
        raise SettingError(f"the recipe {name} brings its own network; give one of the two.")


def resolve(name: str, dataset: Dataset, *, method: str = METHODS[0], network: bool = False) -> Recipe | None:
    """The recipe meant by `auto`, `none` or a name; `network` says that the user brings a network.

    `auto` gives way to another method and to the user's own network; a recipe by name does not, and is refused.
    """
    check(name, method=method, network=network)
    if name == "none":
        return None
    if name == "auto":
        if isinstance(dataset.features, StoredTensor):
            # What is too large for memory is too large to be mapped beforehand.
            return None
        return choose(dataset.public, dataset.persons) if method in METHODS and not network else None
    recipe = get(name)
    recipe.check(dataset.public)
    return recipe


_SIDE = 16
"""Pictures of fewer pixels a side have too few places for two scales of wavelets."""


def names() -> tuple[str, ...]:
    """The names of all recipes."""
    return tuple(_RECIPES)


def get(name: str) -> Recipe:
    """The recipe of that name; a `SettingError` lists what there is."""
    if name not in _RECIPES:
        raise SettingError(f"there is no recipe {name!r}; there are {', '.join(_RECIPES)}, and auto and none.")
    return _RECIPES[name]


def _takes_scattering(public: Public) -> bool:
    sides = public.shape[1:]
    return len(public.shape) == 3 and min(sides) >= _SIDE and not any(side % 4 for side in sides)


def _scattering(public: Public, before: tuple[FeatureMap, ...] = (), after: tuple[FeatureMap, ...] = ()) -> FeatureMap:
    colours = (OpponentMap(),) if public.shape[0] == 3 else ()
    return Chain((*before, *colours, ScatteringMap(), *after, GroupNormMap(), RmsNormMap()))


def _scattering_settings(records: int, epsilon: float) -> dict[str, Any]:
    # How far steps may lead depends on how much there is to learn from: epsilon times records. Many short steps are better
    # than few long ones; for so many the noise on a mean hardly falls with the rate, while the time grows with it.
    rate, clip, plenty = 0.1, 0.1, epsilon * records / 60_000
    steps = 440 if plenty <= 1 else 880
    length = 0.09 * min(4 / 3, max(0.01, plenty))
    return {
        "batch_size": max(1, round(rate * records)),
        "epochs": round(steps * rate, 2),
        "max_grad_norm": clip,
        "lr": round(length / clip, 4),
        "averaging": 0.2,
        "precondition": 0.15,
        "micro_batch_size": 2048,
    }


def _unit_settings(records: int, epsilon: float) -> dict[str, Any]:
    # A norm that clips every record: each then says in which direction, and all count alike.
    return {
        "max_grad_norm": 0.1,
        "micro_batch_size": 8192,
        "batch_size": records,
        "epochs": 100,
        "lr": round(2.5 * min(1.0, max(0.5, epsilon * records / 11_000)), 4),
        "averaging": 0.2,
    }


def _bins_map(public: Public) -> FeatureMap:
    numbers = tuple(place.start for column, place in layout(public.columns) if column.numeric)
    return Chain((BinsMap(places=numbers), UnitNormMap()))


_PICTURES = f"pictures whose sides are multiples of 4 from {_SIDE} on"
_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "scattering",
            "Pictures: wavelet scattering (of opponent colours), normalised, a private preconditioner, softmax regression.",
            _scattering,
            _scattering_settings,
            _takes_scattering,
            _PICTURES,
            keep=True,
        ),
        Recipe(
            "scattering-mirror",
            "Pictures whose class does not depend on left and right: as scattering, the same for mirror images.",
            lambda public: _scattering(public, after=(MirrorMap(),)),
            _scattering_settings,
            _takes_scattering,
            _PICTURES,
            keep=True,
        ),
        Recipe(
            "scattering-upright",
            "Handwriting, light on dark: each picture sheared upright by its own moments, then as scattering.",
            lambda public: _scattering(public, before=(UprightMap(),)),
            _scattering_settings,
            _takes_scattering,
            _PICTURES,
            keep=True,
        ),
        Recipe(
            "bins",
            "Tables: numbers in public bins, categories one-hot, records of norm 1, softmax regression.",
            _bins_map,
            lambda records, epsilon: {
                "max_grad_norm": 1.0,
                "micro_batch_size": 8192,
                "batch_size": max(1, records // 4),
                "epochs": 25,
                "lr": 4.0,
                "averaging": 0.5,
            },
            lambda public: public.kind == "table" and bool(public.columns),
            "tables",
        ),
        Recipe(
            "unit",
            "Vectors, such as bits: records of one norm, softmax regression on all records at every step.",
            lambda public: Chain((UnitNormMap(), RmsNormMap())),
            _unit_settings,
            lambda public: bool(public.shape),
            "records of any shape",
        ),
    )
}

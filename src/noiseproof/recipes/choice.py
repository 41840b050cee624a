"""Which recipe suits a data set, by what is public about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noiseproof.data.stored_tensor import StoredTensor
from noiseproof.errors import SettingError
from noiseproof.recipes.recipe import METHOD, Recipe
from noiseproof.recipes.shelf import get

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public

MANY = 5000
"""Records of a table from which on one-hot bins pay for their noise."""

WIDE = 128
"""Features of a vector from which on a linear model learns more under noise than a network with a hidden layer."""


def choose(public: Public, records: int) -> Recipe | None:
    """The recipe for such data, or None where DP-SGD's own defaults and the suggested network are as good.

    Formal guarantee
    ----------------
    The choice depends on kind, shape and number of records, which are public, and so spends nothing.
    """
    if public.kind == "image" and get("scattering").takes(public):
        return get("scattering")
    if public.kind == "table" and get("bins").takes(public) and records >= MANY:
        return get("bins")
    if public.kind == "vector" and len(public.shape) == 1 and public.shape[0] >= WIDE:
        return get("unit")
    return None


def check(name: str, *, method: str = METHOD, network: bool = False) -> None:
    """Refuse a recipe that there is not, or that does not go with the method or with a network of the user's own."""
    if name in ("auto", "none"):
        return
    get(name)
    if method != METHOD:
        raise SettingError(f"recipes are for {METHOD}, not for {method}; leave the recipe away.")
    if network:
        raise SettingError(f"the recipe {name} brings its own network; give one of the two.")


def resolve(name: str, dataset: Dataset, *, method: str = METHOD, network: bool = False) -> Recipe | None:
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
        return choose(dataset.public, len(dataset)) if method == METHOD and not network else None
    recipe = get(name)
    recipe.check(dataset.public)
    return recipe

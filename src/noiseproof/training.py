"""The verb: records, a method and a budget in; a release out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from noiseproof import methods
from noiseproof.errors import SettingError
from noiseproof.guarantees.budget import Budget, Neighbours
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.releases import Release


def train(
    method: str | methods.Method,
    data: Dataset | str | Path,
    *,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    neighbours: Neighbours = "add-or-remove",
    queries: int = 1,
    network: Network | nn.Module | str | None = None,
    seed: int | None = None,
    progress: Progress = SILENT,
    target: str | None = None,
    **settings: Any,
) -> Release:
    """Fit one method on private records within a budget, and return what may leave, with its card.

    `data` is a `Dataset`, or a name or file whose training part is used. Without a `seed` the randomness is secure;
    with one it is reproducible, and the card says that the release must not leave. `settings` are the method's own.

    >>> import noiseproof as npf
    >>> release = npf.train("dp-sgd", "digits", epsilon=3, seed=0)
    >>> release.card.verdict
    'proven'
    """
    from noiseproof.data import Dataset, load
    from noiseproof.guarantees import Reproducible, Secure

    budget = Budget(epsilon, delta, neighbours, queries)
    if isinstance(method, methods.Method):
        if settings:
            raise SettingError(f"{method.name} was given with its settings; set {', '.join(settings)} there.")
        chosen = method
    else:
        chosen = methods.build(method, settings)
    dataset = data if isinstance(data, Dataset) else load(data, target=target).train
    rng = Secure() if seed is None else Reproducible(seed)
    return chosen.fit(resolve_network(network, dataset), dataset, budget, rng=rng, progress=progress)


def resolve_network(network: Network | nn.Module | str | None, dataset: Dataset) -> Network:
    """The network meant: a recipe, the user's own module, a name, or what suits the data."""
    from noiseproof.networks import Network, suggest

    if isinstance(network, Network):
        return network
    if isinstance(network, nn.Module):
        return Network.of(network, dataset.public.shape, dataset.classes)
    if network is None:
        return suggest(dataset.public.shape, dataset.classes, dataset.public.kind)
    named = Network(network, dataset.public.shape, dataset.classes)
    named.build()  # says at once if the name or the shape is wrong
    return named

"""The verb: records, a method and a budget in; a release out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from noiseproof import methods
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy.budget import Budget, Neighbours
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.engine.ranks import Ranks
    from noiseproof.methods.recipes import Recipe
    from noiseproof.networks import Network
    from noiseproof.releases.release import Release
    from noiseproof.run.checkpoints import Checkpoints


def train(
    method: str | methods.Method,
    data: Dataset | str | Path,
    *,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    neighbours: Neighbours = "add-or-remove",
    queries: int = 1,
    network: Network | nn.Module | str | None = None,
    recipe: Recipe | str = "auto",
    seed: int | None = None,
    progress: Progress = SILENT,
    target: str | None = None,
    ranks: Ranks | None = None,
    checkpoints: Checkpoints | None = None,
    **settings: Any,
) -> Release:
    """Fit one method on private records within a budget, and return what may leave, with its card.

    `data` is a `Dataset`, or a name or file whose training part is used. Without a `seed` the randomness is secure;
    with one it is reproducible, and the card says that the release must not leave. `settings` are the method's own.
    `recipe` is for dp-sgd: `auto` puts a public feature map and settings that suit the data around it, unless you bring
    a network or a `Method`; `none` does not, and a name or a `Recipe` is one of your choice (see `noiseproof.methods.recipes`).
    `ranks` (`scale.distributed`) share the training and `checkpoints` (`scale.checkpoints`) let it be interrupted, for
    methods at the gradients.

    >>> import noiseproof as npf
    >>> release = npf.train("dp-sgd", "digits", epsilon=3, seed=0)
    >>> release.card.verdict
    'proven'
    """
    from noiseproof.data import Dataset, load
    from noiseproof.methods import recipes
    from noiseproof.privacy import Reproducible, Secure

    budget = Budget(epsilon, delta, neighbours, queries)
    if isinstance(method, methods.Method):
        if settings:
            raise SettingError(f"{method.name} was given with its settings; set {', '.join(settings)} there.")
        chosen = method
    else:
        chosen = methods.build(method, settings)
    dataset = data if isinstance(data, Dataset) else load(data, target=target).train
    # A method that comes with its settings is taken as it is: only a recipe that is meant for it goes around it.
    given = network is not None or isinstance(method, methods.Method)
    cooked = recipes.resolve(recipe, dataset, method=chosen.name, network=given) if isinstance(recipe, str) else recipe
    if cooked is not None:
        if not isinstance(method, methods.Method):
            chosen = cooked.method(len(dataset), epsilon, settings, interruptible=checkpoints is not None)
        release = train(
            chosen,
            cooked.map(dataset, progress),
            epsilon=epsilon,
            delta=delta,
            neighbours=neighbours,
            network=cooked.trained(dataset.public),
            recipe="none",
            seed=seed,
            progress=progress,
            ranks=ranks,
            checkpoints=checkpoints,
        )
        return cooked.around(release, dataset.public)
    rng = Secure() if seed is None else Reproducible(seed)
    shape = resolve_network(network, dataset)
    if ranks is None and checkpoints is None:
        return chosen.fit(shape, dataset, budget, rng=rng, progress=progress)
    from noiseproof.engine.ranks import ALONE
    from noiseproof.methods.gradients.method import GradientMethod

    if not isinstance(chosen, GradientMethod):
        raise UnsupportedError(
            f"{chosen.name} is not trained by descent on noised gradients; ranks and checkpoints are for methods that are."
        )
    if checkpoints is not None:
        checkpoints.belongs_to(
            method=chosen.name,
            settings=chosen.settings(),
            network=shape,
            budget=budget,
            data=dataset.fingerprint(),
            seed=seed,
        )
    return chosen.fit(shape, dataset, budget, rng=rng, progress=progress, ranks=ranks or ALONE, checkpoints=checkpoints)


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

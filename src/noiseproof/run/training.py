"""One training: records, a method and a budget in; a release out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from noiseproof import methods
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.methods import Method, recipes
from noiseproof.methods.recipes import Recipe
from noiseproof.networks import Network
from noiseproof.privacy.budget import Budget, Neighbours
from noiseproof.progress import SILENT, Progress
from noiseproof.run import spends

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.engine.ranks import Ranks
    from noiseproof.privacy import Randomness
    from noiseproof.releases.release import Release
    from noiseproof.run.checkpoints import Checkpoints


@dataclass(frozen=True)
class Fitting:
    """A method with all its settings, the network that it trains and the recipe around it: what `fit` will run.

    `train`, `compare` and `synth` all come here (`resolve`), so that one and the same choice is trained everywhere.

    Examples:
        >>> from noiseproof.data import load
        >>> from noiseproof.privacy import Reproducible
        >>> records = load("digits").train
        >>> fitting = resolve("dp-sgd", records, epsilon=3, settings={"epochs": 1})
        >>> release = fitting.fit(records, Budget(3, 1e-5), rng=Reproducible(0))
        >>> release.card.verdict
        'rehearsal'
    """

    method: Method
    """The method, with every setting decided."""
    network: Network | None
    """What it trains, behind the recipe's feature map if there is one; None for methods that train no network."""
    recipe: Recipe | None = None
    """The public feature map around the network; None without one."""

    @property
    def network_name(self) -> str | None:
        """The network's name, behind that of the recipe that brings it."""
        if self.recipe is not None:
            return f"{self.recipe.name}: {self.recipe.network}"
        return None if self.network is None else self.network.name

    def fit(
        self,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
        ranks: Ranks | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Release:
        """Train on private records within a budget.

        Args:
            dataset: The private records, as they are: the recipe's feature map is applied here.
            budget: What may be spent on them.
            rng: Where all randomness comes from.
            progress: Where to report steps.
            ranks: The processes that share the training (`run.distributed`), for methods at the gradients.
            checkpoints: Where to write checkpoints, for methods at the gradients.

        Returns:
            What may leave, with its card.

        Raises:
            UnsupportedError: If ranks or checkpoints are given and the method has no use for them.
        """
        budget, width = spends.before(self.method, dataset, budget)
        mapped = dataset if self.recipe is None else self.recipe.map(dataset, progress)
        options: dict[str, Any] = {}
        if ranks is not None or checkpoints is not None:
            from noiseproof.engine.ranks import ALONE
            from noiseproof.methods.gradients.method import GradientMethod

            if not isinstance(self.method, GradientMethod):
                raise UnsupportedError(
                    f"{self.method.name} is not trained by descent on noised gradients; ranks and checkpoints are for "
                    "methods that are."
                )
            options = {"ranks": ranks or ALONE, "checkpoints": checkpoints}
        if checkpoints is not None:
            checkpoints.belongs_to(
                method=self.method.name,
                settings=self.method.settings(),
                network=self.network,
                budget=budget,
                data=mapped.fingerprint(),
            )
        release = self.method.fit(self.network, mapped, budget, rng=rng, progress=progress, **options)
        release = release if self.recipe is None else self.recipe.around(release, dataset.public)
        spends.after(release, self.method, dataset, width, budget.neighbours, rng)
        return release


def resolve(
    method: str | Method,
    dataset: Dataset,
    *,
    epsilon: float,
    network: Network | nn.Module | str | None = None,
    recipe: Recipe | str = "auto",
    settings: Mapping[str, Any] | None = None,
    interruptible: bool = False,
) -> Fitting:
    """Settle what is trained on these records: settings, network and recipe.

    Args:
        method: A name, whose settings then suit the number of records (`Method.for_records`); or a `Method`, which is
            taken as it is.
        dataset: The private records, of which only what is public is read.
        epsilon: The budget's, which recipes depend on.
        network: A network instead of the method's own choice.
        recipe: For dp-sgd and dp-mf: `auto`, `none`, a name or a `Recipe` (see `noiseproof.methods.recipes`). `auto` gives way to
            a `Method` and to a network of the user's own.
        settings: The method's settings, in place of those that suit the data.
        interruptible: Whether checkpoints are to be written, which not every setting of a recipe allows.

    Returns:
        What to fit.

    Raises:
        SettingError: If there is no such method, setting, network or recipe, or if they do not go together.
        UnsupportedError: If the method cannot learn such a target, or bounds single records and these have persons.

    Examples:
        >>> from noiseproof.data import load
        >>> fitting = resolve("dp-sgd", load("digits").train, epsilon=3)
        >>> fitting.network_name, fitting.method.batch_size
        ('mlp', 512)

    Formal guarantee
    ----------------
    The choice depends on the number of records and on what is public about them, so that it spends nothing.
    """
    public, given = dataset.public, isinstance(method, Method)
    name = method.name if isinstance(method, Method) else method
    kind = type(method) if isinstance(method, Method) else methods.get(name)
    if public.task not in kind.tasks:
        raise UnsupportedError(f"{name} predicts classes and cannot learn the target, a {public.task}; take dp-sgd.")
    if dataset.unit not in kind.units and kind.paper is None and kind.place != "none":
        # A published method keeps its own unit, and its card says what that means for a person.
        raise UnsupportedError(
            f"{name} bounds what one record does, not a {dataset.unit}'s several; take another method, or records without "
            "persons."
        )
    if isinstance(method, Method):
        if settings:
            raise SettingError(f"{name} was given with its settings; set {', '.join(settings)} there.")
        chosen = method
    else:
        chosen = methods.build(method, settings, records=dataset.persons, public=public)
    check_network(chosen, network)
    found = recipe
    if isinstance(found, str):
        found = recipes.resolve(found, dataset, method=name, network=given or network is not None)  # type: ignore[assignment]
    if isinstance(found, Recipe):
        if not given:
            chosen = found.method(dataset.persons, epsilon, settings, method=name, interruptible=interruptible)
        return Fitting(chosen, found.trained(public), found)
    if isinstance(network, nn.Module):
        network = Network.of(network, public.shape, dataset.outputs)
    elif isinstance(network, str):
        network = Network(network, public.shape, dataset.outputs)
        network.build()  # says at once if the name or the shape is wrong
    return Fitting(chosen, chosen.network(public) if network is None else network)


def check_network(method: Method, network: object) -> None:
    """Refuse a network for a method that trains none: an option that is ignored would be misleading."""
    if network is not None and not method.takes_network:
        raise SettingError(f"{method.name} does not train a network of your choice; leave the network out.")


def train(
    method: str | Method,
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
    """Fit one method on private records within a budget.

    Args:
        method: A method's name, or a `Method` with its settings.
        data: A `Dataset`, or a name or file whose training part is used.
        epsilon: The privacy budget.
        delta: The privacy budget.
        neighbours: When two data sets are neighbours.
        queries: How many answers a prediction method must be able to give.
        network: A `Network`, a module of your own or a name; by default the method's own choice.
        recipe: For dp-sgd and dp-mf: `auto` puts a public feature map and settings that suit the data around it, unless you bring
            a network or a `Method`; `none` does not; a name or a `Recipe` is one of your choice.
        seed: For research: makes the randomness reproducible, so that the release is a rehearsal, which must not leave.
            Without it the randomness is secure.
        progress: Where to report steps.
        target: The column to predict, where `data` is a table's file.
        ranks: Processes that share the training (`run.distributed`), for methods at the gradients.
        checkpoints: Let the training be interrupted (`run.checkpoints`), for methods at the gradients.
        settings: The method's own.

    Returns:
        What may leave, with its card.

    Raises:
        SettingError: If what is asked for does not exist or does not go together.
        DataError: If the records cannot be used.

    Examples:
        >>> import noiseproof as npf
        >>> release = npf.train("dp-sgd", "digits", epsilon=3)
        >>> release.card.verdict
        'proven'
    """
    from noiseproof.data import Dataset, load
    from noiseproof.privacy import Reproducible, Secure

    budget = Budget(epsilon, delta, neighbours, queries)
    if isinstance(method, str):
        methods.build(method, settings)  # refused, if at all, before records are read
    dataset = data if isinstance(data, Dataset) else load(data, target=target, neighbours=neighbours).train
    fitting = resolve(
        method,
        dataset,
        epsilon=epsilon,
        network=network,
        recipe=recipe,
        settings=settings,
        interruptible=checkpoints is not None,
    )
    rng = Secure() if seed is None else Reproducible(seed)
    if checkpoints is not None:
        checkpoints.belongs_to(seed=seed)
    return fitting.fit(dataset, budget, rng=rng, progress=progress, ranks=ranks, checkpoints=checkpoints)

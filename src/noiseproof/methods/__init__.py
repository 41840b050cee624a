"""Method, a frozen dataclass of its settings, and the registry of all methods by name.

A method of your own is found if its module was imported (`--import`), or if its package names the module among its entry
points of the group `noiseproof.methods`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.plugins import load_plugins
from noiseproof.privacy.card import Place
from noiseproof.progress import SILENT, Progress
from noiseproof.settings import adapters, check_fields, read

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Game, Randomness
    from noiseproof.privacy.card import Card, Claim, Proof, Unit
    from noiseproof.privacy.events import DpEvent
    from noiseproof.releases.release import Release


_PLACES = (
    "noiseproof.methods.baseline",
    "noiseproof.methods.inputs",
    "noiseproof.methods.losses",
    "noiseproof.methods.gradients",
    "noiseproof.methods.parameters",
    "noiseproof.methods.predictions",
)
"""Modules that register methods, in the order of a record's way."""

_OF_ONE_RECORD = (
    "What is stated here is stated for one record. The records are those of persons who may have several each, and of a "
    "person's records together it says nothing."
)

_REGISTRY: dict[str, type[Method]] = {}


@dataclasses.dataclass(frozen=True)
class Method(ABC):
    """A way to turn private records into a release. Its fields are its settings; `fit` runs it.

    `noiseproof.train` chooses network and settings and calls `fit`; a method of your own is a subclass with `register`.

    Formal guarantee
    ----------------
    None by itself: each method states its own, and its release's card says what holds for what was run.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> method = npf.methods.build("dp-sgd", {"epochs": 2, "batch_size": 50})
        >>> network = method.network(records.public)
        >>> release = method.fit(network, records, npf.Budget(epsilon=3), rng=npf.privacy.Secure())
        >>> release.card.verdict
        'proven'
    """

    name: ClassVar[str]
    place: ClassVar[Place]
    paper: ClassVar[str | None] = None
    """Where the method was published, if it is built as a paper says it; None for a proven sibling or the baseline."""
    proves: ClassVar[bool]
    """Whether a run of it ends with a finite proven epsilon at the level of records."""
    claims: ClassVar[str]
    """What its authors say it guarantees, in a few words."""
    takes_network: ClassVar[bool] = True
    """Whether it trains a network that the user may choose; one that is given to a method which does not is refused."""
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    """What it can predict: classes, numbers (`regression`), counts."""
    units: ClassVar[tuple[str, ...]] = ("record",)
    """Whose influence it bounds: one record's, or that of all records of a person (`Dataset.groups`)."""
    readings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Other readings of the method's paper, each with the settings that make it; a comparison has a row for each."""
    record_passes: ClassVar[int] = 500_000
    """Records that a training looks at, counting each as often as it is seen, before its epochs are cut."""

    def __post_init__(self) -> None:
        """Check every setting against its annotation; a subclass with checks of its own calls this first."""
        check_fields(self.name, self)

    def for_records(self, records: int, public: Public) -> Self:
        """The method with the settings that suit so many records: fewer epochs for more of them, where it has epochs.

        Settings of the user's own go on top of it, as `build` puts them.

        Args:
            records: The number of training records.
            public: Their shape, kind and classes.

        Returns:
            The method itself where nothing depends on the number of records.

        Formal guarantee
        ----------------
        It depends on the number of records, which every proof here takes to be public, and on nothing else of the data,
        so that no budget is spent on the choice.
        """
        epochs = getattr(self, "epochs", None)
        # Many records need fewer passes for as many steps.
        few = max(3, math.ceil(self.record_passes / records))
        return self if epochs is None or epochs <= few else dataclasses.replace(self, **{"epochs": few})

    def network(self, public: Public) -> Network | None:
        """The network that the method trains unless the user gives another.

        Args:
            public: Shape, kind and classes of the records.

        Returns:
            The network, or None where the method takes none (`takes_network`).
        """
        from noiseproof.networks import Network, suggest

        if self.takes_network and self.place != "none" and public.task != "classification":
            # Of a number, what a hidden layer would add is less than what the noise on its weights takes away.
            return Network("linear", public.shape, public.outputs)
        return suggest(public.shape, public.outputs, public.kind) if self.takes_network else None

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent | None:
        """What a run within a budget will do to the records, from public numbers alone.

        Args:
            dataset: The private records, of which only their number and what is public is read.
            budget: What the run may spend.

        Returns:
            The event of all that `fit` will do; None where it cannot be said beforehand, or answers are paid for one by one.
        """
        return None

    @abstractmethod
    def fit(
        self, network: Any, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> Release:
        """Train on private records within a budget.

        Args:
            network: The `Network` to train; None for a method that takes none.
            dataset: The private records.
            budget: What may be spent on them.
            rng: Where all randomness comes from.
            progress: Where to report steps.

        Returns:
            What may leave, with its card.
        """

    def game(self, budget: Budget) -> Game:
        """The game that hits this method hardest, at this budget."""
        return self._game(budget, 1)

    def person_game(self, budget: Budget, records: int = 5) -> Game:
        """The game at the level of persons: neighbours differ in a person, all of whose records are canaries.

        Args:
            budget: What a person's promise is to be.
            records: How many records that person has.

        Returns:
            The game.

        Raises:
            UnsupportedError: If the method states nothing for a person.
        """
        if "person" not in self.units:
            raise UnsupportedError(f"{self.name} states nothing for a person, so that there is nothing to play for.")
        return self._game(budget, records)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """The game where the canary is so many records of one person."""
        raise NotImplementedError(f"{self.name} has no game")

    def card(
        self,
        dataset: Dataset,
        budget: Budget,
        rng: Randomness,
        *,
        claimed: Claim | None = None,
        proven: Proof | None = None,
        why: str | None = None,
        unit: Unit | None = None,
        ran: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Card:
        """The card of a run on `dataset`: what the method proves, less what the data or the randomness take away."""
        from noiseproof.privacy.card import Card

        if unit is None:
            unit = dataset.unit if dataset.unit in self.units else "record"
        if unit == "person":
            claimed = None if claimed is None else claimed.model_copy(update={"unit": unit})
            proven = None if proven is None else proven.for_persons
        elif dataset.unit == "person":
            notes = (*notes, _OF_ONE_RECORD)
        if rng.kind == "reproducible":
            notes = (
                *notes,
                "The randomness was seeded, for research: whoever knows the seed can undo it; do not release.",
            )
        if proven is not None and dataset.public.bounds == "data":
            why = (
                "Bounds, categories or classes were read off the private records without noise, for which nothing is "
                f"proven; with a schema of public bounds this training would be ({proven.epsilon:.4g}, {proven.delta:.3g})-"
                "differentially private."
            )
            proven = None
        card = Card(
            method=self.name,
            place=self.place,
            unit=unit,
            neighbours=budget.neighbours,
            randomness=rng.kind,
            claimed=claimed,
            proven=proven,
            why=why,
            # Of persons with many records and with few, only their number is public.
            ran={"persons": dataset.persons} | dict(ran or {})
            if unit == "person"
            else {"records": len(dataset), **(ran or {})},
            notes=(*dataset.public.notes, *notes),
        )
        bought = None if self.place == "none" else dataset.public.bought
        return card if bought is None else card.with_spent(bought.epsilon, bought.delta, bought.note)

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for a bundle."""
        return dataclasses.asdict(self)


__all__ = ["Method", "build", "get", "reading", "register", "registry"]

M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """Class decorator that makes a method available by its name.

    Args:
        method: A subclass of `Method` with a name that no other method has.

    Returns:
        The same class.

    Raises:
        ValueError: If the name is taken.

    Examples:
        >>> from dataclasses import dataclass
        >>> from noiseproof import methods
        >>> from noiseproof.methods.gradients import DpSgd
        >>> @methods.register
        ... @dataclass(frozen=True)
        ... class ShortDpSgd(DpSgd):
        ...     name = "dp-sgd-short"
        ...     epochs: float = 5.0
        >>> methods.build("dp-sgd-short").epochs
        5.0
        >>> _ = methods._REGISTRY.pop("dp-sgd-short")  # so that this example leaves nothing behind
    """
    if method.name in _REGISTRY:
        raise ValueError(f"two methods are named {method.name!r}")
    _REGISTRY[method.name] = method
    return method


def registry() -> Mapping[str, type[Method]]:
    """Every method by name: the library's own, those of installed packages, and those registered since.

    Returns:
        The classes, in the order of a record's way (none, inputs, losses, gradients, parameters, predictions), then by name.

    Examples:
        >>> from noiseproof import methods
        >>> [name for name, method in methods.registry().items() if method.place == "inputs"]
        ['adlm', 'functional', 'ilm']
    """
    for module in _PLACES:
        importlib.import_module(module)
    load_plugins("noiseproof.methods")
    places = typing.get_args(Place)
    return dict(sorted(_REGISTRY.items(), key=lambda item: (places.index(item[1].place), item[0])))


def get(name: str) -> type[Method]:
    """The class of the method of that name.

    Args:
        name: A registered name, such as `dp-sgd`.

    Returns:
        The class; `build` makes a method of it.

    Raises:
        SettingError: There is no such method; the message lists those there are.

    Examples:
        >>> from noiseproof import methods
        >>> methods.get("dp-sgd").claims
        '(epsilon, delta) for a record, by the moments accountant'
    """
    methods = registry()
    if name not in methods:
        raise SettingError(f"there is no method {name!r}; there are {', '.join(methods)}.")
    return methods[name]


def reading(name: str) -> tuple[type[Method], Mapping[str, Any]]:
    """The class that a comparison's row is of, and its settings: those of a reading, as in `adlm:program`.

    Args:
        name: A registered name, with a colon and one of its `readings` after it or not.

    Returns:
        The class and the settings, none of them for the method as it is.

    Raises:
        SettingError: There is no such method or no such reading of it.

    Examples:
        >>> from noiseproof import methods
        >>> kind, settings = methods.reading("adlm:program")
        >>> kind.name, settings["draw"]
        ('adlm', 'batch')
    """
    name, _, other = name.partition(":")
    kind = get(name)
    if not other:
        return kind, {}
    if other not in kind.readings:
        raise SettingError(f"{name} has no reading {other!r}; it has {', '.join(kind.readings) or 'none'}.")
    return kind, kind.readings[other]


def build(
    name: str, settings: Mapping[str, Any] | None = None, *, records: int | None = None, public: Public | None = None
) -> Method:
    """The method of that name, ready to fit.

    Args:
        name: A registered name.
        settings: Settings of the user's own; the strings of a command line are read as the fields' types.
        records: With `public`, the number of records that the other settings are to suit (`Method.for_records`).
        public: What is public of those records.

    Returns:
        The method.

    Raises:
        SettingError: There is no such method, no such setting, or a value is not what the setting takes.

    Examples:
        >>> from noiseproof import methods
        >>> method = methods.build("dp-sgd", {"max-grad-norm": "0.5"})
        >>> method.max_grad_norm, method.epochs
        (0.5, 30.0)
    """
    method = get(name)
    fields = {field.name: field for field in dataclasses.fields(method)}
    values: dict[str, Any] = {}
    for key, value in (settings or {}).items():
        field = key.replace("-", "_")
        if field not in fields:
            raise SettingError(f"{name} has no setting {key!r}; it has {', '.join(fields) or 'none'}.")
        values[field] = read(name, field, value, adapters(method)[field])
    if records is None or public is None:
        return method(**values)
    return dataclasses.replace(method().for_records(records, public), **values)

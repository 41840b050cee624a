"""Releases: what leaves the trusted side. Every one carries its card."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import torch
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.lazy import in_memory
from noiseproof.data.tables import answers_table, code_rows
from noiseproof.errors import BudgetError, DataError, SettingError, UnsupportedError
from noiseproof.networks import Network, Training
from noiseproof.networks.objectives import Objective
from noiseproof.tensors import all_finite

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.privacy import Card, Randomness
    from noiseproof.privacy.events import DpEvent


_CHUNK = 1024
"""Records a forward pass takes at once, so that memory does not grow with the number asked for."""


@dataclass(frozen=True)
class Saved:
    """What a bundle holds of a release; `load_bundle` makes it and gives it to the release's `restore`.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.releases import Saved
        >>> release = npf.train("dp-sgd", npf.load("digits").train, epsilon=3, network="linear", epochs=1)
        >>> saved = Saved(release.tensors(), release.description(), release.card, release.public, release.settings)
        >>> type(release).restore(saved).method
        'dp-sgd'
    """

    tensors: Mapping[str, torch.Tensor]
    """What `Release.tensors` gave, by name."""
    description: Mapping[str, Any]
    """What `Release.description` gave, as JSON."""
    card: Card
    """The release's card."""
    public: Public
    """What is public about the records."""
    settings: Mapping[str, Any]
    """The method's settings."""
    module: nn.Module | None = None
    """A network of the user's own, which no bundle can hold."""

    @property
    def network(self) -> Network:
        """The network's recipe."""
        return restore_network(self.description["network"], self.module)

    def put_into(self, module: nn.Module) -> None:
        """Make these tensors a module's weights; they are its own, by name, shape and kind of number.

        Args:
            module: The module, built from the network's recipe.

        Raises:
            RuntimeError: If names or shapes are others.
            TypeError: If a weight is of whole numbers, which torch would take for others without a word.
        """
        for name, own in module.state_dict().items():
            if name in self.tensors and self.tensors[name].is_floating_point() != own.is_floating_point():
                raise TypeError(f"{name} is of another kind of number")
        module.load_state_dict(dict(self.tensors))


class Release(ABC):
    """A result with the card that says on what terms it may leave.

    Attributes:
        card: What is promised, proven and audited.
        public: What is public about the records.
        settings: The method's settings; they hold nothing private.
        event_log: What training it did to the private records, each event with how often it happened in a row; empty
            where the method keeps no log, or an earlier version wrote the bundle.
        margin: Of a numeric target, how far an interval reaches to both sides of a prediction, coded as targets are; None
            where none was asked for.

    Examples:
        >>> import noiseproof as npf
        >>> release = npf.train("dp-sgd", npf.load("digits").train, epsilon=3, network="linear", epochs=1)
        >>> release.kind, release.card.verdict
        ('model', 'proven')
        >>> folder = release.save("digits-model")
    """

    kind: ClassVar[str]
    stays_inside: ClassVar[bool] = False
    """Whether its bundle holds private records or secret networks, so that it must stay on the trusted side."""

    network: Network | None = None
    """The network that was trained, where it is one."""

    bundle: Path | None = None
    """The folder that it was loaded from, if it was."""
    bundle_digests: Mapping[str, str] = MappingProxyType({})
    """SHA-256 of the bundle's files as they were when it was loaded."""

    def __init__(self, card: Card, public: Public, settings: Mapping[str, Any]) -> None:
        self.card = card
        self.public = public
        self.settings = dict(settings)
        self.event_log: tuple[tuple[DpEvent, int], ...] = ()
        self.margin: float | None = None

    def logged(self, events: Iterable[tuple[DpEvent, int]]) -> Self:
        """The release, with what its training did to the private records as its `event_log`.

        Args:
            events: The events in order, each with how often it happened in a row (`EventLog.runs`).

        Returns:
            The release itself.
        """
        self.event_log = tuple(events)
        return self

    @property
    def method(self) -> str:
        """The name of the method that made it."""
        return self.card.method

    def named(self, answers: torch.Tensor) -> torch.Tensor:
        """The class that each answer names: the likeliest, or by the method's setting `threshold` where it has one.

        Args:
            answers: (records, classes) probabilities.

        Returns:
            Places in the list of classes, (records,).
        """
        threshold = self.settings.get("threshold")
        return answers.argmax(dim=1) if threshold is None else (answers[:, 1] >= threshold).long()

    @property
    def labels_only(self) -> bool:
        """Whether an answer is a label alone, without probabilities."""
        return False

    def training(self) -> Training | None:
        """How its network was trained, noise aside, so that an attack can train others like it; None if not known."""
        return None

    @overload
    def predict(self, rows: torch.Tensor) -> torch.Tensor: ...
    @overload
    def predict(self, rows: pd.DataFrame | Sequence[Mapping[str, Any]]) -> pd.DataFrame: ...
    def predict(self, rows: Any) -> Any:
        """Answers to coded records, or to rows as in the table that the release was made from.

        Args:
            rows: Coded features, (records, *shape); or a table with every column that was learned from (names,
                categories, dates and gaps as they are there; other columns are left alone); or a list of such records.

        Returns:
            For coded features, class probabilities, (records, classes), or of a numeric target (records, 1) numbers in
            [0, 1]: `public.in_units` puts them into its units. For a table, a column `prediction` in the table's own words
            or units, and, of classes, a column `p(CLASS)` for each; what lies beyond the public bounds or lists
            is handled as in training, and said in `.attrs["remarks"]`.

        Raises:
            DataError: If the rows do not fit; nothing is answered or spent then.
            BudgetError: If the answers cost more than is left; nothing is answered or spent then.

        Formal guarantee
        ----------------
        Answers of a `ModelRelease` are post-processing; those of a `PredictionRelease` are paid for before they are given.
        """
        if isinstance(rows, torch.Tensor):
            return self._predict(rows)
        import pandas as pd

        table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        features, remarks = code_rows(table, self.public, name="the table")
        answers = self._predict(features)
        named = self.named(answers) if self.public.task == "classification" else None
        found = answers_table(self.public, answers, labels_only=self.labels_only, named=named)
        found.index = table.index
        found.attrs["remarks"] = remarks
        return found

    def _predict(self, features: torch.Tensor) -> torch.Tensor:
        raise UnsupportedError(f"a {self.kind} release answers no queries.")

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """What goes into the bundle's `weights.safetensors`."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What else is needed to restore it, as JSON."""

    @classmethod
    @abstractmethod
    def restore(cls, saved: Saved) -> Release:
        """The release that was saved."""

    def __repr__(self) -> str:
        public = self.public
        what = f"{len(public.classes)} classes" if public.classes else "a number"
        return f"<{self.kind} release of {self.method}, {what} from records of shape {public.shape}: {self.card.text}>"

    def __str__(self) -> str:
        return repr(self).strip("<>")

    def _repr_html_(self) -> str:
        from html import escape

        from noiseproof.releases import signing

        signature = signing.Verdict(False) if self.bundle is None else signing.verify_bundle(self.bundle, None)
        what = f"A {self.kind} release of records of shape {self.public.shape}. {signature.sentence}"
        return f"<p>{escape(what)}</p>" + self.card._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Write the bundle, whole or not at all.

        Args:
            path: The folder; an older bundle there is replaced.

        Returns:
            The folder.

        Raises:
            BundleError: If there is something else in the folder, or another process is writing to it.
        """
        from noiseproof.releases.bundles import save

        return save(self, path)


class ModelRelease(Release):
    """A trained network whose weights may be public; predictions cost nothing more.

    Args:
        module: The trained network; it is put into evaluation mode.
        network: The recipe that it was built from.
        card: What is promised, proven and audited.
        public: What is public about the records.
        settings: The method's settings.

    Examples:
        >>> import noiseproof as npf
        >>> data = npf.load("digits")
        >>> release = npf.train("dp-sgd", data.train, epsilon=3, network="linear", epochs=1)
        >>> release.predict(data.test.features[:2]).shape  # class probabilities
        torch.Size([2, 10])
        >>> release.module  # an ordinary torch module
        Sequential(...
    """

    kind = "model"

    def __init__(
        self, module: nn.Module, network: Network, card: Card, public: Public, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(card, public, settings)
        self.module = module.eval()
        self.network: Network = network

    def training(self) -> Training | None:
        """That of ordinary training; what clips and noises gradients has no like without them."""
        if self.card.place != "none":
            return None
        steps = {name: self.settings[name] for name in ("batch_size", "lr") if name in self.settings}
        return Training(epochs=math.ceil(self.settings.get("epochs", Training.epochs)), **steps)

    @property
    def objective(self) -> Objective:
        """What the network's outputs mean."""
        return Objective.of(self.public, self.settings)

    def _predict(self, features: torch.Tensor) -> torch.Tensor:
        """Class probabilities, (records, classes); of a numeric target (records, 1) numbers in [0, 1].

        `public.in_units` puts numbers into the target's own units. Where the method was asked for intervals, their lower
        and upper ends stand behind: (records, 3).
        """
        answers = self.objective.answers(logits(self.module, check_features(features, self.public.shape)))
        if self.margin is None:
            return answers
        return torch.cat([answers, (answers - self.margin).clamp(min=0), (answers + self.margin).clamp(max=1)], dim=1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The network's parameters and buffers by name."""
        return {name: value.detach().cpu() for name, value in self.module.state_dict().items()}

    def description(self) -> dict[str, Any]:
        """The network's recipe."""
        return {"network": describe_network(self.network)}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same network with the same weights."""
        module = saved.network.build()
        saved.put_into(module)
        return cls(module, saved.network, saved.card, saved.public, saved.settings)


class PredictionRelease(Release):
    """Answers to a fixed number of queries; the weights stay inside.

    A batch is answered whole or not at all: what does not fit into the queries left, and records of the wrong shape or
    with NaN, are refused before anything is computed or spent; the spend is made before the answer. A bundle keeps how
    many queries were asked when it was saved. Whoever loads it twice can ask twice: to hold many processes to one
    budget, keep a ledger. A restored release draws from fresh `Secure` randomness unless told otherwise (`use`).

    Args:
        card: What is promised, proven and audited, for all its queries together.
        public: What is public about the records.
        settings: The method's settings.
        queries: How many answers the budget covers.
        rng: Where the noise of answers comes from.
        asked: How many of them were given already.

    Examples:
        >>> import noiseproof as npf
        >>> data = npf.load("digits")
        >>> release = npf.train("logits", data.train, epsilon=3, queries=100)
        >>> answers = release.predict(data.test.features[:5])
        >>> release.queries_left
        95
    """

    kind = "prediction"
    stays_inside = True

    def __init__(
        self, card: Card, public: Public, settings: Mapping[str, Any], *, queries: int, rng: Randomness, asked: int = 0
    ) -> None:
        super().__init__(card, public, settings)
        self.queries = queries
        self.asked = asked
        self._rng = rng
        self._lock = threading.Lock()

    @property
    def queries_left(self) -> int:
        """How many more answers the budget covers."""
        return self.queries - self.asked

    def _predict(self, features: torch.Tensor) -> torch.Tensor:
        """Noisy class probabilities, (records, classes), or (records, 1) numbers; spends one query a record, or refuses."""
        features = check_features(features, self.public.shape)
        count = features.shape[0]
        with self._lock:
            if count > self.queries_left:
                raise BudgetError(
                    f"{count} answers were asked for and the budget covers {self.queries_left} more; "
                    "nothing was answered and nothing spent."
                )
            self.asked += count
            return self.answer_paid(features, self._rng)

    def answer_paid(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Answers to queries that a ledger was paid for, with noise from `rng`; this release's own count stays."""
        if features.shape[0] <= _CHUNK:
            return self._answer(features, rng)
        answers = torch.empty(len(features), self.public.outputs)
        for part, answer in zip(features.split(_CHUNK), answers.split(_CHUNK), strict=True):
            answer.copy_(self._answer(part, rng))
        return answers

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What one answer does to the private records, for a ledger to charge; each of them alone describes it."""
        raise UnsupportedError(f"{self.method} does not say what one answer costs, so no ledger can charge for it.")

    def use(self, rng: Randomness) -> None:
        """Draw the noise of further answers from `rng`."""
        with self._lock:
            self._rng = rng

    def description(self) -> dict[str, Any]:
        """How many queries the budget covers, and how many are gone."""
        return {"queries": self.queries, "asked": self.asked}

    @staticmethod
    def _spent(saved: Saved) -> dict[str, Any]:
        """What a restored release's `__init__` must hear about its queries."""
        from noiseproof.privacy import Secure

        return {"queries": saved.description["queries"], "asked": saved.description["asked"], "rng": Secure()}

    @abstractmethod
    def _answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """The method's answer; already paid for."""


class DataRelease(Release):
    """Synthetic records, coded like the private ones they stand for.

    Args:
        dataset: The synthetic records.
        card: What is promised, proven and audited.
        settings: The method's settings.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> from noiseproof.data import from_arrays
        >>> people = from_arrays(torch.rand(400, 4), [0, 1] * 200, classes=["no", "yes"], low=0, high=1)
        >>> release = npf.train("marginals", people, epsilon=3)
        >>> release.dataset.public.classes
        ('no', 'yes')
    """

    kind = "data"

    def __init__(self, dataset: Dataset, card: Card, settings: Mapping[str, Any]) -> None:
        super().__init__(card, dataset.public, settings)
        self.dataset = dataset

    def tensors(self) -> dict[str, torch.Tensor]:
        """The synthetic features and labels."""
        return {"features": in_memory(self.dataset.features), "labels": self.dataset.labels}

    def description(self) -> dict[str, Any]:
        """The set's name."""
        return {"name": self.dataset.name}

    @classmethod
    def restore(cls, saved: Saved) -> DataRelease:
        """The same synthetic records."""
        tensors = saved.tensors
        records = Dataset(saved.description["name"], tensors["features"], tensors["labels"], saved.public)
        return cls(records, saved.card, saved.settings)


def logits(module: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """A network's outputs in evaluation mode, in bounded memory, leaving its mode as it was.

    Args:
        module: The network.
        features: Records, (records, *shape); they are moved to the module's device.

    Returns:
        The outputs, (records, outputs), in the processor's memory.

    Examples:
        >>> import torch
        >>> from noiseproof.releases import logits
        >>> logits(torch.nn.Linear(4, 3), torch.rand(10, 4)).shape
        torch.Size([10, 3])
    """
    device = next(module.parameters()).device
    training = module.training
    if training:
        module.eval()
    try:
        with torch.no_grad():
            parts = [module(chunk.to(device)).cpu() for chunk in features.split(_CHUNK)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
    finally:
        if training:
            module.train()


def accuracy(release: ModelRelease | PredictionRelease, dataset: Dataset) -> float:
    """Share of the records that a release labels right, for the eyes of their owner.

    `noiseproof.releases.evaluate` has other measures, also of a numeric target.

    Args:
        release: What answers. A `PredictionRelease` is rehearsed: answers with the noise of real ones, which must not leave
            and so cost nothing.
        dataset: Records that it did not learn from, with classes as labels.

    Returns:
        The share, from 0 to 1.

    Raises:
        SettingError: If the target is a number.
        DataError: If the records are not of the shape that the release learned from.

    Formal guarantee
    ----------------
    None: it is computed from private records without noise, and is no release itself.

    Examples:
        >>> import noiseproof as npf
        >>> data = npf.load("digits")
        >>> release = npf.train("dp-sgd", data.train, epsilon=3, network="linear", epochs=20)
        >>> npf.accuracy(release, data.test) > 0.5
        True
    """
    from noiseproof.privacy import Secure

    if dataset.public.task != "classification":
        raise SettingError(f"the target of a {dataset.public.task} has no accuracy; use evaluate, for R2 and errors.")
    if isinstance(release, PredictionRelease):
        answers = release.answer_paid(check_features(dataset.features, release.public.shape), Secure())
    else:
        answers = release.predict(dataset.features)
    return float((release.named(answers) == dataset.labels).double().mean())


def check_features(features: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The features, if they are finite records of that shape."""
    if features.shape[1:] != shape:
        raise DataError(f"records of shape {tuple(shape)} are expected, not {tuple(features.shape[1:])}.")
    if not all_finite(features):
        raise DataError("the records hold NaN or infinite values; fill or drop them first.")
    return features


def describe_network(network: Network) -> dict[str, Any]:
    """A network's recipe as JSON."""
    return {
        "name": network.name,
        "input_shape": list(network.input_shape),
        "classes": network.classes,
        "options": dict(network.options),
    }


def restore_network(description: Mapping[str, Any], module: nn.Module | None = None) -> Network:
    """The recipe that `describe_network` wrote."""
    return Network(
        description["name"],
        tuple(description["input_shape"]),
        description["classes"],
        description["options"],
        module=module,
    )

"""Two neighbouring data sets, the same randomness: of all that a bundle would hold, only what was noised may differ.

A method that is not in the table, or a new field of a card, is covered by `test_every_method_here_is_compared` and by
comparing every path there is: fields that may differ are listed, not those that may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
import torch

from noiseproof import methods
from noiseproof.data.dataset import Dataset, Public
from noiseproof.methods.predictions import Logits
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases.release import Release

PLACES = ("losses", "parameters", "predictions")
FEATURES, CLASSES, RECORDS = 6, 3, 90
PUBLIC = Public(shape=(FEATURES,), classes=("a", "b", "c"))
GAN = {"steps": 4, "generator_steps": 2, "generated": 20, "width": 8, "rows": 10}


@dataclass(frozen=True)
class Case:
    """A method, its settings, and which fields besides the tensors were computed from what was noised, or are declared.

    `declared` is a part of the note that says so, for methods that prove nothing.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    noised: tuple[str, ...] = ()
    declared: str = ""

    @property
    def id(self) -> str:
        return "-".join([self.name, *map(str, self.settings.values())][:4])


# After a score was released with noise, the noise and the number of steps follow it.
ANT = {"tuning": "ant", "decay": 0.5, "every": 1, "threshold": 0.9}
FOLLOWS = ("card.ran.steps", "card.ran.last sigma", "card.ran.numbers released", "events")
CASES = [
    Case("dp-gan", GAN),
    Case("dp-gan", {**GAN, "tuning": "exp"}),
    Case("dp-gan", {**GAN, "model": "dense", "steps": 6, "sample_rate": 0.5}),
    Case("dp-gan", {**GAN, **ANT}, FOLLOWS),
    Case("zero-gan", GAN),
    Case("zero-gan", {**GAN, **ANT}, FOLLOWS),
    Case("marginals", {"steps": 3, "components": 8, "rows": 10}),
    Case("moments", {"rows": 10}),
    Case("rdp-gan", {"iterations": 3, "rows": 10}, declared="Labels are generated in the exact shares"),
    Case(
        "rdp-gan",
        {"iterations": 6, "rows": 10, **ANT},
        ("card.ran.iterations", "card.ran.last sigma", "card.ran.formula (23)", "card.claimed.epsilon"),
        "followed a score of private records",
    ),
    Case("dp-pg", {"models": 4, "epochs": 2}),
    Case("dp-pg", {"models": 4, "epochs": 2, "threshold": 0.2}),
    Case("dp-pgp", {"models": 4, "epochs": 2}),
    Case("shard-mean", {"shards": 10}),
    Case("shard-pg", {"shards": 10}),
    Case("neuron-laplace", {"epochs": 2}),
    Case("neuron-gaussian", {"epochs": 2}),
    Case("neuron-gaussian", {"epochs": 2, "search": True}, ("card.ran.alpha",), "alpha was chosen by accuracies"),
    Case(
        "neuron-gaussian",
        {"epochs": 2, "peaks": "seen"},
        (
            *(f"card.ran.{name}" for name in ("rho", "d-omega", "d-z", "d-p", "oaro", "scale")),
            *("description.noise.neuron", "description.noise.probability"),
        ),
        "largest neuron values were read off",
    ),
    Case("logits", {"width": 20}),
    Case("logits", {"width": 20, "answer": "probabilities"}),
    Case("teachers", {"teachers": 5, "epochs": 3}),
    Case("teachers", {"epochs": 3, "answer": "probabilities"}),
    Case("votes"),
    Case("votes", {"answer": "probabilities"}),
]
PROVEN = [case for case in CASES if methods.get(case.name).proves]


def records() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (RECORDS,), generator=generator)
    features = torch.rand(RECORDS, FEATURES, generator=generator) * 0.3 + 0.7 * torch.eye(FEATURES)[labels]
    return Dataset("people", features, labels, PUBLIC)


def exchanged(dataset: Dataset, index: int, value: float | None) -> Dataset:
    """The same records but for one: of another class, and as unlike as can be, or `value` everywhere."""
    features, labels = dataset.features.clone(), dataset.labels.clone()
    features[index] = 1 - features[index] if value is None else value
    labels[index] = (labels[index] + 1) % CLASSES
    return replace(dataset, features=features, labels=labels)


def fitted(case: Case, dataset: Dataset) -> Release:
    method = methods.build(case.name, case.settings)
    network = Network("lu-mlp", (FEATURES,), CLASSES) if method.takes_network else None
    return method.fit(network, dataset, Budget(3.0, 1e-5, "replace-one", queries=5), rng=Reproducible(3))


def paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value of nested plain values by its path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from paths(part, f"{path}.{key}")
    else:
        yield path, value


def held(release: Release) -> dict[str, Any]:
    """All that a bundle would hold, by path; of tensors that were noised or stay inside, names, types and shapes."""
    tensors = {name: (value.dtype, tuple(value.shape)) for name, value in release.tensors().items()}
    parts = {
        "class": type(release).__name__,
        "kind": release.kind,
        "inside": release.stays_inside,
        "tensors": tensors,
        "description": release.description(),
        "settings": release.settings,
        "public": asdict(release.public),
        "card": release.card.model_dump(mode="json"),
        "events": repr(release.event_log),
    }
    return dict(found for name, part in parts.items() for found in paths(part, name))


def differing(first: Release, second: Release) -> set[str]:
    one, other = held(first), held(second)
    nothing = object()
    return {path for path in one.keys() | other.keys() if one.get(path, nothing) != other.get(path, nothing)}


def test_every_method_here_is_compared():
    here = {name for name, method in methods.registry().items() if method.place in PLACES}
    assert here == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_one_other_record_changes_nothing_of_a_bundle_but_what_was_noised(case):
    first, second = (fitted(case, each) for each in (records(), exchanged(records(), 7, None)))
    assert differing(first, second) <= set(case.noised)
    assert case.declared in " ".join(first.card.notes)


@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("case", PROVEN, ids=lambda case: case.id)
def test_a_record_that_nothing_can_be_computed_from_changes_no_more_than_any_other(case, value):
    """Neither does it keep a release from being made, nor an answer from being given."""
    first, second = (fitted(case, each) for each in (records(), exchanged(records(), 0, value)))
    assert differing(first, second) <= set(case.noised)
    if second.kind == "prediction":
        answers = second.predict(records().features[:5])
        torch.testing.assert_close(answers.sum(1), torch.ones(5))
    else:
        assert all(bool(torch.isfinite(part).all()) for part in second.tensors().values())


@pytest.mark.parametrize("case", [case for case in PROVEN if case.noised == ()], ids=lambda case: case.id)
def test_one_record_less_changes_the_number_of_records_and_nothing_else(case):
    """That number is public: every proof that states it says so."""
    fixed = replace(case, settings={**case.settings, "teachers": 5} if case.name == "teachers" else case.settings)
    everyone = records()
    first, second = (fitted(fixed, each) for each in (everyone, everyone.take(torch.arange(RECORDS - 1))))
    # The records of `votes` are in its bundle, which stays inside.
    assert differing(first, second) <= {"card.ran.records", "tensors.records", "tensors.labels"}


def test_what_holds_records_or_secret_networks_stays_inside():
    for case in CASES:
        release = fitted(case, records())
        assert release.stays_inside == (methods.get(case.name).place == "predictions")


def test_an_exact_number_on_a_card_would_be_found(monkeypatch):
    honest = Logits.card

    def leaking(self, dataset, *arguments, ran, **options):
        return honest(self, dataset, *arguments, ran={**ran, "gradient norm": float(dataset.features.sum())}, **options)

    monkeypatch.setattr(Logits, "card", leaking)
    case = Case("logits", {"width": 20})
    first, second = (fitted(case, each) for each in (records(), exchanged(records(), 7, None)))
    assert differing(first, second) == {"card.ran.gradient norm"}

"""An end-to-end audit refutes a leak of every kind that it was built to find, and no honest training."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof import methods
from noiseproof.audits import AuditError, audit_end_to_end, counting_bound, end_to_end, observed, worlds
from noiseproof.data import Dataset, Public, load, split
from noiseproof.data.draft import draft
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema
from noiseproof.data.tables import code
from noiseproof.errors import SettingError
from tests.audits import planted


def people(records: int = 120) -> Dataset:
    features = 0.2 * torch.rand(records, 8, generator=torch.Generator().manual_seed(0))
    return Dataset("people", features, torch.arange(records) % 2, Public((8,), ("no", "yes")))


def audited(train, **options):
    options = {"name": train.__name__, "delta": planted.DELTA, "trials": 40, "records": 120, "jobs": 1, **options}
    return audit_end_to_end(people(options["records"]), train, **options)


@pytest.mark.parametrize(
    "train",
    [
        planted.seeded,
        planted.reshuffled,
        planted.mixing,
        planted.cancelled,
        planted.guessed,
        planted.told,
        planted.padded,
    ],
    ids=lambda train: train.__name__,
)
def test_a_planted_leak_is_refuted(train):
    found = audited(train, records=800 if train in (planted.reshuffled, planted.guessed) else 120)
    assert found.verdict == "refuted"
    assert found.contradicts_proof
    assert found.epsilon > planted.EPSILON
    assert found.bound.counted == 24


def test_an_honest_training_is_not_refuted():
    # The bound holds with this confidence, so the test is wrong at most once in a million times.
    found = audited(planted.honest, confidence=1 - 1e-6)
    assert found.epsilon <= planted.EPSILON
    assert (found.verdict, found.claimed.epsilon, found.proven.epsilon) == ("proven", 1.0, 1.0)


def visitors(records: int = 120) -> Dataset:
    """The same people, with three records each."""
    return dataclasses.replace(people(records), groups=torch.arange(records) // 3)


def test_a_training_on_records_is_refuted_as_a_promise_to_persons_and_one_on_persons_is_not():
    options = {"delta": planted.DELTA, "trials": 40, "jobs": 1, "canary": (torch.ones(8), 1), "of_person": 25}
    caught = audit_end_to_end(visitors(), planted.by_record, name="by record", **options)
    assert (caught.unit, caught.claimed.unit, caught.contradicts_proof) == ("person", "person", True)
    assert "a person of 25 more" in caught.game
    # Wrong at most once in a million times.
    honest = audit_end_to_end(visitors(), planted.by_person, name="by person", confidence=1 - 1e-6, **options)
    assert honest.epsilon <= honest.proven.epsilon == planted.EPSILON


@pytest.mark.parametrize("kind", ["table", "arrays"])
def test_a_canary_person_is_one_person_more_who_is_trained_on_with_all_records(tmp_path, kind):
    dataset = visitors(60)
    if kind == "table":
        table = townspeople()
        dataset = dataclasses.replace(table, groups=torch.arange(len(table)) // 3)
    written = worlds.write_worlds(tmp_path, dataset, "add-or-remove", worlds.candidates(dataset), 0, 7)
    without, with_it = (load(written[name].data, schema=written[name].schema).train for name in ("without", "corner"))
    assert (with_it.persons - without.persons, len(with_it) - len(without)) == (1, 7)
    more = rows(with_it) - rows(without)
    assert (len(more), sum(more.values())) == (1, 7)
    with pytest.raises(SettingError, match="added or removed"):
        worlds.write_worlds(tmp_path, dataset, "replace-one", worlds.candidates(dataset), 0, 7)


def test_a_run_that_fails_in_one_world_is_reported_without_its_message():
    with pytest.raises(AuditError, match="with the canary failed \\(ValueError\\)") as caught:
        audited(planted.failing)
    assert caught.value.world == 1
    assert "47" not in str(caught.value)


def test_a_record_of_the_users_own_is_the_canary(tmp_path):
    found = audited(planted.told, canary=(torch.full((8,), 0.9), 1), folder=tmp_path)
    assert "(yours)" in found.game
    assert not list(tmp_path.glob("pilot*"))
    assert found.verdict == "refuted"


def test_an_interrupted_audit_goes_on_from_its_folder(tmp_path, monkeypatch):
    whole = audited(planted.told, folder=tmp_path)
    kept = sorted(tmp_path.glob("trial-*.npz"))
    assert len(kept) == 80
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    kept[3].unlink()
    played = []
    monkeypatch.setattr(end_to_end, "_run_once", lambda train, task: played.append(task.out) or once(train, task))
    again = audited(planted.told, folder=tmp_path)
    assert played == [kept[3]]
    assert again.epsilon == whole.epsilon
    with pytest.raises(SettingError, match="another audit"):
        audited(planted.told, folder=tmp_path, trials=60)


once = end_to_end._run_once


def test_too_few_trials_are_refused():
    with pytest.raises(SettingError, match="20 trials"):
        audited(planted.honest, trials=19)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_worlds_are_neighbouring_files_that_load_as_written(tmp_path, relation):
    frame = pd.DataFrame(
        {
            "age": range(60),
            "town": ["a", "b", None] * 20,
            "rooms": [1.0, None, 3.0] * 20,
            "sick": [0, 1] * 30,
        }
    )
    table, _ = code(frame, draft(frame, "sick", name="people"), name="people")
    for place, dataset in (("table", table), ("arrays", people(60))):
        folder = tmp_path / f"{place}-{relation}"
        folder.mkdir()
        chosen = worlds.candidates(dataset)
        written = worlds.write_worlds(folder, dataset, relation, chosen, 0)
        without = load(written["without"].data, schema=written["without"].schema, neighbours=relation)
        assert without.train.public.columns == dataset.public.columns
        assert without.train.public.bounds == dataset.public.bounds
        assert len(without.train) + len(without.test) == 60
        for name in chosen:
            there = load(written[name].data, schema=written[name].schema, neighbours=relation).train
            features, label = written[name].canary
            # The canary, perhaps moved a little, is among what the command trains on, and nobody else moved.
            assert (there.labels[(there.features - features).flatten(1).abs().amax(1) < 0.02] == label).any()
            assert len(there) - len(without.train) == (relation == "add-or-remove")
            assert len(rows(there) - rows(without.train)) == 1
            assert float((features - chosen[name][0]).abs().max()) < 0.1


def test_the_training_part_of_a_split_is_refused_for_what_it_is(tmp_path):
    part = split(people(60)).train  # the command would draw the same coins, which put all of them on one side
    with pytest.raises(SettingError, match="give the whole data set"):
        worlds.write_worlds(tmp_path, part, "add-or-remove", worlds.candidates(part), 0)


def rows(dataset: Dataset) -> Counter[tuple[float, ...]]:
    return Counter(
        (*row.flatten().tolist(), label) for row, label in zip(dataset.features, dataset.labels.tolist(), strict=True)
    )


def test_scores_of_other_trials_may_choose_the_event():
    rng = np.random.default_rng(0)
    worlds = rng.normal(0, 1, 50), rng.normal(9, 1, 50)
    bound = counting_bound(worlds, delta=1e-5, choosing=(rng.normal(0, 1, 30), rng.normal(9, 1, 30)))
    assert (bound.counted, bound.falsely, bound.missed) == (50, 0, 0)
    assert bound.epsilon == pytest.approx(np.log((1 - 1e-5 - bound_upper(50)) / bound_upper(50)), rel=0.5)


def bound_upper(trials: int) -> float:
    return 1 - 0.025 ** (1 / trials)


def test_a_number_that_the_number_of_records_determines_is_public():
    # Both worlds' cards tell how many records there were; the honest training is told by nothing else.
    runs = [[{"records": np.array([float(n)]), "noise": rng.normal(size=1)} for _ in range(20)] for n in (90, 91)]
    control = [{"records": np.array([91.0]), "noise": rng.normal(size=1)} for _ in range(3)]
    assert observed._names((runs[0], runs[1]), control) == ["noise"]
    assert observed._names((runs[0], runs[1]), []) == ["noise", "records"]


rng = np.random.default_rng(1)


LOUD = {"epochs": 1, "batch_size": 10**6, "max_grad_norm": 0.01, "lr": 1e5}
"""One step of a linear network with every record in it, all clipped, and so long that the random start does not matter. What
leaves is then the noised sum itself, which a canary moves as far as it can."""
ROWS = {"rows": 20_000, "generator_steps": 5, "generated": 50}
"""So many synthetic records that chance in drawing them hides little, of a generator that is hardly trained."""
SETUPS: dict[str, dict[str, object]] = {
    "adlm": {"epochs": 5, "relevance_epochs": 1, "batch_size": 10**6, "lr": 1.0},
    "ilm": {"epochs": 5, "batch_size": 10**6, "lr": 1.0},
    "functional": {"features": "raw"},
    "dp-gan": ROWS,
    "zero-gan": {**ROWS, "steps": 5},
    "rdp-gan": {"rows": 2000, "iterations": 5},
    "marginals": {"rows": 50_000, "steps": 60, "components": 64},
    # Each record alone in its shard: whichever shard that is, its clipped update is the same part of the mean.
    "shard-mean": {"shards": 20_000, "epochs": 1, "lr": 1e3},
    "shard-pg": {"shards": 2, "epochs": 1, "batch_size": 10**6, "lr": 1.0},
    "dp-pg": {"models": 3, "epochs": 2},
    "dp-pgp": {"models": 3, "epochs": 2},
    "logits": {"answer": "probabilities"},
    "votes": {"answer": "probabilities"},
    "teachers": {"answer": "probabilities", "teachers": 1, "members": 1, "epochs": 100, "batch_size": 10**6, "lr": 0.1},
    "neuron-laplace": {"epochs": 2},
    "neuron-gaussian": {"epochs": 2},
}
"""For each method a short training in which a canary shows as much as it can; `LOUD` for those that descend."""


def options_of(name: str, epsilon: float) -> list[str]:
    """A short training by the command, in which a canary shows as much as it can."""
    kind = methods.get(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    usual = ROWS if kind.place == "losses" else LOUD
    chosen = SETUPS.get(name) or {key: value for key, value in usual.items() if key in fields}
    words = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    asked = [] if kind.place == "losses" else ["--queries", "2"]
    return [
        "--epsilon",
        str(epsilon),
        *asked,
        *([] if name in SETUPS or not kind.takes_network else ["--network", "linear"]),
        *words,
    ]


def whole_runs(name: str, epsilon: float, *, trials: int, **options):
    """An end-to-end audit of a method by its command, with a record in a corner of the table for a canary."""
    from noiseproof.cli.audit import train_once

    town = townspeople()
    train = partial(train_once, name, options_of(name, epsilon))
    canary = worlds.candidates(town)["corner"]
    given = {"name": name, "delta": 1e-5, "records": 200, "canary": canary, "trials": trials, **options}
    return audit_end_to_end(town, train, **given)


UNSEEN = ("adlm", "ilm", "moments", "shard-pg", "teachers")
"""Methods that prove something and whose own randomness (starts, shards, samples) hides a record from whole runs, always or
in some audits (`teachers`: 1.55 in one, 0.43 in another)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, kind in methods.registry().items() if kind.proves and name not in UNSEEN]
)
def test_a_record_shows_in_whole_runs_where_there_is_next_to_no_noise(name):
    """Else that nothing is refuted would say nothing; 30 runs in each world can show 1.55 at most."""
    assert whole_runs(name, 10_000, trials=30, jobs=2).epsilon > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", list(methods.registry()))
def test_no_whole_run_refutes_what_its_card_proves(name):
    """The bound holds with this confidence, so that one of these tests is wrong at most once in a million times."""
    # With 60 counted runs a leak of everything is refuted up to 1.31 at this confidence, which is above what is asked for.
    found = whole_runs(name, 1, trials=100, confidence=1 - 1e-6, jobs=2)
    assert found.bound.counted == 60
    assert not found.contradicts_proof


def townspeople() -> Dataset:
    """A table of three columns: trainings on it are short."""
    random = np.random.default_rng(3)
    ages = random.integers(18, 90, 300)
    frame = pd.DataFrame(
        {
            "age": ages.astype(float),
            "hours": random.integers(0, 60, 300).astype(float),
            "city": random.choice(["a", "b", "c"], 300),
            "label": np.where(ages / 90 + 0.3 * random.standard_normal(300) > 0.5, "yes", "no"),
        }
    )
    columns = {"age": ColumnSchema(low=0, high=100), "hours": ColumnSchema(low=0, high=60)}
    columns["city"] = ColumnSchema(categories=("a", "b", "c"))
    return code(frame, Schema(columns=columns, target=TargetSchema(name="label", classes=("no", "yes"))), name="town")[
        0
    ]

"""Bounds that are bought: near what the records have, moved by one person no more than is paid for, and on every card."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import noiseproof as npf
from noiseproof.audits import audit
from noiseproof.data import bounds
from noiseproof.data.bounds import buy_bounds
from noiseproof.data.schema import Schema
from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.privacy import AboveThreshold, Claim, Game, Laplace, Proof, Reproducible, Secure
from noiseproof.releases import signing

OPEN = {
    "columns": {
        "dose [mg]": {"private": "bounds", "missing": True},
        "temperature": {"private": "bounds", "low": 0, "high": 60},
        "seen": {"private": "bounds", "low": "1900-01-01", "high": "2100-01-01"},
        "visits": {"private": "bounds", "integer": True},
        "ward": {"private": "categories"},
    },
    "target": {"name": "label", "classes": ["no", "yes"]},
}


def secure(seed=0):
    return Secure._for_test(bytes([seed] * 32))


def patients(rows=6000, seed=0, each=1):
    random = np.random.default_rng(seed)
    dose = np.where(random.random(rows) < 0.1, np.nan, random.normal(80, 10, rows))
    return pd.DataFrame(
        {
            "dose [mg]": dose,
            "temperature": random.normal(37, 0.5, rows),
            "seen": pd.to_datetime("2024-01-01") + pd.to_timedelta(random.integers(0, 700, rows), unit="D"),
            "visits": random.poisson(3, rows),
            "ward": random.choice(["heart", "lung", "skin"], rows, p=[0.6, 0.3, 0.1]),
            "label": np.where(dose > 85, "yes", "no"),
            "patient": np.arange(rows) // each,
        }
    )


def opened(**changes):
    return Schema.model_validate({**OPEN, "skip": ["patient"], **changes})


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("person", [None, "patient"])
def test_what_is_bought_is_near_what_nearly_all_records_have(neighbours, person):
    schema = opened(person=person, skip=[] if person else ["patient"])
    table = patients(each=1 if person is None else 2)
    found = buy_bounds(table, schema, epsilon=4.0, delta=1e-6, neighbours=neighbours, rng=secure())
    assert found.private == ()
    assert found.bought.columns == tuple(OPEN["columns"])
    assert (found.bought.epsilon, found.bought.delta) == (4.0, 1e-6)
    assert found.bought.unit == ("record" if person is None else "person")
    columns = found.columns
    assert columns["ward"].categories == ("heart", "lung", "skin")
    assert str(columns["seen"].low)[:3] == "202"
    for name, spread in (("dose [mg]", 80), ("temperature", 5), ("visits", 12)):
        low, high = columns[name].low, columns[name].high
        held = ((table[name] >= low) & (table[name] <= high)).sum() / table[name].notna().sum()
        assert held > 0.9
        assert high - low < spread
    assert columns["visits"].low == int(columns["visits"].low)
    split = npf.load(table, schema=found)
    assert (split.train.public.bounds, split.train.public.bought) == ("public", found.bought)


def test_a_numeric_target_is_bought_like_any_column():
    schema = opened(
        target={"name": "temperature", "private": "bounds"}, columns={"visits": {"low": 0, "high": 9}}, others="ignore"
    )
    assert schema.target.task == "regression"
    found = buy_bounds(patients(), schema, epsilon=0.5, rng=secure())
    assert 30 <= found.target.low < found.target.high <= 45
    assert npf.load(patients(), schema=found).train.public.target_bounds == found.target.bounds


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-1e308, 1e308)), min_size=2, max_size=30))
def test_one_person_moves_every_count_by_at_most_one_and_all_the_same_way(rows):
    persons, values = np.array([person for person, _ in rows]), np.array([value for _, value in rows])
    grid = bounds._grid(opened().columns["dose [mg]"])
    gone = persons != persons[0]

    def counts(kept):
        ids = np.unique(persons[kept], return_inverse=True)[1] if kept.any() else persons[kept]
        weights = bounds._weights(int(kept.sum()), ids) if kept.any() else np.zeros(0)
        return bounds._below(grid, values[kept], weights)

    moved = counts(np.ones(len(rows), bool)) - counts(gone)
    assert (moved >= 0).all()
    assert (moved <= 1).all()


def test_a_record_beyond_all_others_is_not_found_by_playing_for_it():
    """The game: so many records that the scan is about to stop, and in one world one more at the far end."""
    epsilon, delta = 1.0, 1e-6
    grid = bounds._grid(opened().columns["dose [mg]"])
    scan = AboveThreshold(1.0, epsilon, monotone=True)
    threshold = bounds.scan_threshold(scan)
    records = np.full(int(threshold), 3.0)

    def play(world, trials, generator):
        rng = Reproducible(int(torch.randint(2**62, (1,), generator=generator)))
        values = np.append(records, [1e38] * world)
        counts = torch.from_numpy(bounds._below(-grid[::-1], -values, np.ones(len(values)))[::-1].copy())
        return scan.release(-counts.expand(trials, -1), -threshold, rng).double()

    proven = Proof(epsilon=epsilon, delta=0.0, accountant="pure")
    claimed = Claim(epsilon=epsilon, delta=0.0, source="its proof")
    game = Game("bought bounds", play, "add-or-remove", delta, claimed, proven)
    result = audit(game, trials=4000, seed=0, timeout=None)
    assert result.audited.epsilon <= epsilon


@pytest.mark.parametrize("sensitivity", [1.0, 2.0])
def test_the_category_of_one_person_alone_is_kept_with_probability_delta_at_most(sensitivity):
    counts = pd.Series(1.0, index=[f"own{number}" for number in range(100_000)])
    kept = bounds._common(counts, Laplace(sensitivity, 0.5), 0.05, "ward", Reproducible(1))
    # Of exchanged persons two categories may show or vanish, each with half of delta. A false alarm once in 10^6.
    assert stats.binomtest(len(kept), 100_000, 0.05 / sensitivity).pvalue > 1e-6


def test_persons_with_many_categories_bring_one_of_them():
    series = pd.Series(["a", "b", "c", "a", "z"])
    assert bounds._counted(series, (), np.zeros(5, np.int64)).to_dict() == {"a": 1}
    assert bounds._counted(series, (), None).to_dict() == {"a": 2, "b": 1, "c": 1, "z": 1}
    assert bounds._counted(pd.Series(["NA", None, "b"]), ("NA",), np.arange(3)).to_dict() == {"b": 1}


@pytest.fixture(scope="module")
def bought():
    columns = {name: column for name, column in OPEN["columns"].items() if name != "ward"}
    schema = opened(columns=columns, skip=["patient", "ward"])
    return buy_bounds(patients(4000), schema, epsilon=1.0, rng=secure())


@pytest.mark.parametrize(("method", "quick"), [("functional", {}), ("dp-sgd", {"epochs": 1})])
def test_a_training_pays_for_its_bounds_out_of_its_one_budget(method, quick, bought, tmp_path):
    split = npf.load(patients(4000), schema=bought)
    release = npf.train(method, split.train, epsilon=3.0, delta=1e-6, **quick)
    card = release.card
    assert (card.verdict, card.claimed.epsilon) == ("proven", 3.0)
    assert 2.9 < card.proven.epsilon <= 3.0 * (1 + 1e-6)
    assert any("bought from the records" in note for note in card.notes)
    release.save(tmp_path / "model")
    again = signing.recompute(tmp_path / "model")
    assert again.holds
    assert 1.0 < again.epsilon <= 3.0 * (1 + 1e-6)


def test_with_intervals_on_top_all_three_add_up(bought):
    schema = bought.model_copy(update={"columns": dict(bought.columns)}).with_target("temperature")
    split = npf.load(patients(4000), schema=schema)
    release = npf.train("functional", split.train, epsilon=3.0, delta=1e-6, interval=0.9)
    assert release.card.proven.epsilon <= 3.0 * (1 + 1e-6)
    assert len(release.event_log) == 3


def test_what_cannot_account_for_bought_bounds_refuses(bought):
    split = npf.load(patients(4000), schema=bought)
    with pytest.raises(SettingError, match="leaves nothing"):
        npf.train("functional", split.train, epsilon=1.0)
    with pytest.raises(UnsupportedError, match="answer by answer"):
        npf.train("logits", split.train, epsilon=3.0)
    with pytest.raises(SettingError, match="bought for a record"):
        npf.train("functional", split.train, epsilon=3.0, neighbours="replace-one")
    persons = npf.load(patients(4000), schema=bought.model_copy(update={"skip": ("ward",), "person": "patient"}))
    with pytest.raises(SettingError, match="the run is for a person"):
        npf.train("functional", persons.train, epsilon=3.0)
    # The baseline promises nothing, so that nothing is taken from it.
    assert npf.train("none", split.train, epsilon=0.5, seed=0, epochs=1).card.proven is None


def test_seeded_bounds_prove_nothing():
    found = buy_bounds(patients(4000), opened(), epsilon=2.0, delta=1e-6, rng=Reproducible(0))
    assert found.drafted
    assert npf.load(patients(4000), schema=found).train.public.bounds == "data"


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"columns": {"visits": {"low": 0, "high": 9}}, "others": "ignore"}, {"epsilon": 1.0}, "nothing to be bought"),
        ({}, {"epsilon": 1.0}, "delta above 0"),
        ({}, {"epsilon": 0.001, "delta": 1e-6}, "beyond each bound"),
        ({}, {"epsilon": -1.0}, "greater than 0"),
        ({"skip": []}, {"epsilon": 1.0, "delta": 1e-6}, "does not name"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(changes, arguments, said):
    with pytest.raises((SettingError, DataError), match=said):
        buy_bounds(patients(500), opened(**changes), **arguments)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"private": "categories", "low": 0, "high": 1}, "not both"),
        ({"private": "bounds", "categories": ["a"]}, "not bought"),
        ({"private": "bounds", "low": 0}, "needs low and high"),
        ({"private": "bounds", "date": "%d.%m.%Y"}, "wide public range"),
    ],
)
def test_a_column_is_public_or_to_be_bought(column, said):
    with pytest.raises(ValueError, match=said):
        opened(columns={"x": column})


def test_a_schema_whose_bounds_are_still_open_is_not_trained_with():
    with pytest.raises(SettingError, match="still to be bought"):
        npf.load(patients(100), schema=opened())


def test_twin_files_differ_in_what_was_bought_alone(tmp_path):
    """The same draws, and one file has a record more that lies far outside: nothing else of the schema tells."""
    table = patients(4000)
    far = table.iloc[[0]].assign(**{"dose [mg]": 1e38, "temperature": -1e38, "ward": "moon", "visits": 10**9})
    documents = []
    for rows in (table, pd.concat([table, far])):
        found = json.loads(buy_bounds(rows, opened(), epsilon=2.0, delta=1e-6, rng=secure()).to_json())
        assert found["columns"]["ward"]["categories"] == ["heart", "lung", "skin"]
        for column in found["columns"].values():
            column.pop("low", None)
            column.pop("high", None)
        documents.append(found)
    assert documents[0] == documents[1]

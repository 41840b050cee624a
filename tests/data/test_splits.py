"""Splits, shards and neighbouring pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.data import Dataset, Public, Schema, from_arrays, load, neighbours, shards, split
from noiseproof.data.splits import coins, sides
from noiseproof.errors import DataError, SettingError


def _numbered(records: int) -> Dataset:
    """Records that can be told apart: each one's features hold its number."""
    features = torch.arange(records, dtype=torch.float32)[:, None].expand(records, 2) / records
    return Dataset("some", features.clone(), torch.arange(records) % 3, Public((2,), ("a", "b", "c")))


def _numbers(dataset: Dataset, records: int) -> list[int]:
    return (dataset.features[:, 0] * records).round().int().tolist()


def _multiset(dataset: Dataset) -> dict[tuple, int]:
    counts: dict[tuple, int] = {}
    for record in torch.cat([dataset.features, dataset.labels[:, None].float()], 1).tolist():
        counts[tuple(record)] = counts.get(tuple(record), 0) + 1
    return counts


def _distance(one: Dataset, other: Dataset) -> int:
    """How many records must be added or removed to come from one to the other, order aside."""
    first, second = _multiset(one), _multiset(other)
    return sum(abs(first.get(key, 0) - second.get(key, 0)) for key in first.keys() | second.keys())


@st.composite
def _with_repeats(draw, most=12):
    values = draw(st.lists(st.integers(0, 3), min_size=2, max_size=most))
    features = torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2) / 4
    labels = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values))))
    return Dataset("some", features.clone(), labels, Public((2,), ("a", "b", "c")))


_RELATIONS = st.sampled_from(["add-or-remove", "replace-one"])


def _both(dataset: Dataset, seed: int) -> bool:
    """Whether neither part is empty."""
    return 0 < int((coins(dataset, seed) < 0.4 * 2.0**64).sum()) < len(dataset)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 2**31), _RELATIONS)
def test_a_split_is_disjoint_and_covers_all(records, fraction, seed, relation):
    drawn = (
        coins(_numbered(records), seed) / 2.0**64
        if relation == "add-or-remove"
        else (np.arange(records) + 0.5) / records
    )
    held = int((drawn < fraction).sum())
    if held in (0, records):
        with pytest.raises(DataError, match="one part"):
            split(_numbered(records), seed=seed, test_fraction=fraction, relation=relation)
        return
    parts = split(_numbered(records), seed=seed, test_fraction=fraction, relation=relation)
    assert len(parts.test) == held
    assert sorted(_numbers(parts.train, records) + _numbers(parts.test, records)) == list(range(records))
    assert len(parts.train) >= 1
    assert len(parts.test) >= 1


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_parts_have_the_sizes_and_the_independence_of_coins(relation):
    # Six standard deviations of a binomial variable: a false alarm once in 5e8 times, three numbers a relation.
    held = [set(_numbers(split(_numbered(4000), seed=s, relation=relation).test, 4000)) for s in (0, 1)]
    for part in held:
        assert abs(len(part) - 1000) < 6 * (4000 * 0.25 * 0.75) ** 0.5
    assert abs(len(held[0] & held[1]) - 250) < 6 * (4000 / 16 * 15 / 16) ** 0.5


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.data(), st.integers(0, 2**31))
def test_a_record_more_anywhere_moves_nobody_else(data, seed):
    dataset = data.draw(_with_repeats(most=40))
    place = data.draw(st.integers(0, len(dataset)))
    record, label = torch.full((1, 2), data.draw(st.integers(0, 4)) / 4), torch.tensor([data.draw(st.integers(0, 2))])
    features = torch.cat([dataset.features[:place], record, dataset.features[place:]])
    labels = torch.cat([dataset.labels[:place], label, dataset.labels[place:]])
    more = Dataset("some", features, labels, dataset.public)
    here, there = (sides(one, seed, 0.4, "add-or-remove") if _both(one, seed) else None for one in (dataset, more))
    if here is not None and there is not None:
        assert sum(_distance(dataset.take(a), more.take(b)) for a, b in zip(here, there, strict=True)) == 1
        # And as sequences: the records that stay keep their order.
        kept = more.take(there[0])
        whole = dataset.take(here[0])
        if len(kept) == len(whole):
            assert torch.equal(kept.features, whole.features)
    cut = [shards(one, 2, seed) for one in (dataset, more)]
    assert sum(_distance(a, b) for a, b in zip(*cut, strict=True)) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "after"), [(0, 0), (17, 17), (199, 199), (0, 199), (150, 3)])
def test_a_record_that_is_exchanged_wherever_in_the_file_exchanges_one_of_the_training_part(before, after, seed):
    """A file may be sorted, so that another record comes in another place."""
    dataset, another = _numbered(200), torch.tensor([[0.77777]])
    others = torch.cat([dataset.features[:before], dataset.features[before + 1 :]])
    labels = torch.cat([dataset.labels[:before], dataset.labels[before + 1 :]])
    features = torch.cat([others[:after], another.expand(1, others.shape[1]), others[after:]])
    changed = Dataset("some", features, torch.cat([labels[:after], labels[:1], labels[after:]]), dataset.public)
    parts = [split(one, seed=seed, relation="replace-one") for one in (dataset, changed)]
    for one, other in zip(*((part.train, part.test) for part in parts), strict=True):
        assert len(one) == len(other)
        assert _distance(one, other) <= 2  # one fewer, and another more


def test_neighbouring_files_have_training_parts_that_differ_in_that_record_alone(tmp_path):
    rng = torch.Generator().manual_seed(0)
    rows = [f"{age},{'yes' if sick else 'no'}" for age, sick in torch.randint(0, 90, (4000, 2), generator=rng).tolist()]
    schema = Schema.model_validate(
        {"columns": {"age": {"low": 0, "high": 100}}, "target": {"name": "sick", "classes": ["no", "yes"]}}
    )
    worlds = []
    for name, table in (("without", rows), ("with", [*rows[:1234], "97,yes", *rows[1234:]])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sick", *table]) + "\n")
        worlds.append(load(tmp_path / f"{name}.csv", schema=schema))
    assert _distance(worlds[0].train, worlds[1].train) + _distance(worlds[0].test, worlds[1].test) == 1


def test_labels_stay_with_their_records():
    parts = split(_numbered(50))
    assert parts.train.labels.tolist() == [number % 3 for number in _numbers(parts.train, 50)]


def test_the_same_seed_gives_the_same_split_and_another_another():
    first, again, other = (split(_numbered(50), seed=seed) for seed in (1, 1, 2))
    assert first.train.fingerprint() == again.train.fingerprint()
    assert first.train.fingerprint() != other.train.fingerprint()


def test_under_replace_one_parts_have_sizes_that_depend_on_the_number_of_records_alone():
    sizes = {len(split(_numbered(50), seed=seed, relation="replace-one").test) for seed in range(20)}
    assert sizes == {12}


@pytest.mark.parametrize("fraction", [1, -0.1, 1.5, float("nan")])
def test_a_fraction_that_leaves_nothing_to_train_on_is_refused(fraction):
    with pytest.raises(SettingError, match="test fraction"):
        split(_numbered(5), test_fraction=fraction)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_without_a_test_part_all_records_are_trained_on(relation):
    parts = split(_numbered(5), test_fraction=0, relation=relation)
    assert sorted(_numbers(parts.train, 5)) == list(range(5))
    assert len(parts.test) == 0


def test_one_persons_records_cannot_be_split():
    one = from_arrays(
        torch.rand(20, 3), [0, 1] * 10, classes=2, low=0, high=1, groups=torch.zeros(20, dtype=torch.int64)
    )
    with pytest.raises(DataError, match="has 1 person; a split into training and test needs at least 2"):
        split(one)


def test_one_record_cannot_be_split():
    with pytest.raises(DataError, match="at least 2"):
        split(_numbered(1))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 60), st.data(), _RELATIONS)
def test_shards_partition_the_records(records, data, relation):
    k = data.draw(st.integers(1, records))
    parts = shards(_numbered(records), k, seed=data.draw(st.integers(0, 2**31)), relation=relation)
    assert len(parts) == k
    assert sorted(number for part in parts for number in _numbers(part, records)) == list(range(records))


def test_shards_are_about_even():
    # Seven standard deviations of a binomial variable, eight times: a false alarm once in 5e10 times.
    assert all(abs(len(part) - 1000) < 7 * (8000 / 8 * 7 / 8) ** 0.5 for part in shards(_numbered(8000), 8))


def test_shards_of_a_training_part_are_even_whatever_the_split_was():
    # Seven standard deviations of a binomial variable, eight times: a false alarm once in 5e10 times.
    train = split(_numbered(8000), seed=3).train
    assert all(abs(8 * len(part) - len(train)) < 7 * (7 * len(train)) ** 0.5 for part in shards(train, 8, seed=3))


def test_replacing_one_record_changes_one_shard_in_one_record():
    dataset = _numbered(40)
    features = dataset.features.clone()
    features[17] = 1.0
    changed = Dataset("some", features, dataset.labels, dataset.public)
    cut = [shards(one, 6, seed=3, relation="replace-one") for one in (dataset, changed)]
    differences = [int((one.features != other.features).any(1).sum()) for one, other in zip(*cut, strict=True)]
    assert sorted(differences) == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("k", [0, -1, 6])
def test_too_many_or_no_shards_are_refused(k):
    with pytest.raises(SettingError, match="cannot be cut"):
        shards(_numbered(5), k)


_CANARIES = st.none() | st.just((torch.tensor([1.0, 1.0]), 2)) | st.just((torch.tensor([0.25, 0.25]), 1))


@settings(deadline=None, derandomize=True, max_examples=80)
@given(_with_repeats(), st.integers(0, 2**31), _CANARIES)
def test_under_add_or_remove_d_has_exactly_one_record_more(dataset, seed, canary):
    more, fewer = neighbours(dataset, seed, relation="add-or-remove", canary=canary)
    assert len(more) == len(fewer) + 1
    assert _distance(more, fewer) == 1
    if canary is not None:
        assert torch.equal(more.features[-1], canary[0])
        assert int(more.labels[-1]) == canary[1]
        assert _distance(fewer, dataset) == 0


@settings(deadline=None, derandomize=True, max_examples=80)
@given(_with_repeats(), st.integers(0, 2**31), _CANARIES)
def test_under_replace_one_exactly_one_record_is_exchanged(dataset, seed, canary):
    if canary is None and len(_multiset(dataset)) == 1:
        return
    if canary is not None and set(_multiset(dataset)) == {(*canary[0].tolist(), float(canary[1]))}:
        return
    one, other = neighbours(dataset, seed, relation="replace-one", canary=canary)
    assert len(one) == len(other)
    assert _distance(one, other) == 2
    places = (one.features != other.features).any(1) | (one.labels != other.labels)
    assert int(places.sum()) == 1
    if canary is not None:
        assert torch.equal(other.features[places][0], canary[0])
        assert _distance(one, dataset) == 0


def test_neighbours_leave_the_data_set_alone():
    dataset = _numbered(6)
    before = dataset.fingerprint()
    for relation in ("add-or-remove", "replace-one"):
        for canary in (None, (torch.ones(2), 1)):
            neighbours(dataset, relation=relation, canary=canary)
    assert dataset.fingerprint() == before


def test_records_that_are_all_the_same_have_no_neighbour_under_replace_one():
    dataset = Dataset("some", torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), Public((2,), ("a", "b")))
    with pytest.raises(DataError, match="all records of some are the same"):
        neighbours(dataset, relation="replace-one")


@pytest.mark.parametrize(
    "canary", [(torch.ones(3), 0), (torch.ones(2), 3), (torch.ones(2), -1), (torch.tensor([0.0, 1.5]), 0)]
)
def test_a_canary_that_is_no_record_is_refused(canary):
    with pytest.raises(SettingError, match="the canary must"):
        neighbours(_numbered(5), canary=canary)


@pytest.mark.parametrize("canary", [None, (torch.ones(2), 0.25)])
def test_neighbours_of_numeric_targets_exchange_a_record_with_its_own_number(canary):
    targets = torch.linspace(0.1, 0.9, 6)
    dataset = from_arrays(torch.rand(6, 2), targets, low=0, high=1, task="regression", target_bounds=(0.0, 1.0))
    one, other = neighbours(dataset, relation="replace-one", canary=canary)
    (there,) = other.labels[one.labels != other.labels].tolist()
    assert there in (dataset.labels.tolist() if canary is None else [canary[1]])
    with pytest.raises(SettingError, match="a coded target"):
        neighbours(dataset, canary=(torch.ones(2), 1.5))


def test_an_unknown_relation_is_refused():
    with pytest.raises(SettingError, match="add-or-remove, replace-one"):
        neighbours(_numbered(5), relation="swap")


def test_a_single_record_has_no_neighbours():
    with pytest.raises(DataError, match="at least 2"):
        neighbours(_numbered(1))

"""moments: noisy means and covariances within the budget, and pictures drawn from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import train
from noiseproof.audits import audit
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses import Moments
from noiseproof.methods.losses.moments import Normals, Sums, covariances, low_frequencies, shrunk
from noiseproof.privacy import Budget, EventLog, Reproducible, accountants


def _sums(dataset, basis=None):
    width = dataset.features[0].numel()
    basis = torch.eye(width, dtype=torch.float64) if basis is None else basis
    return Sums(dataset, basis, "add-or-remove", _Silent(0), EventLog())


class _Silent(Reproducible):
    def add_gaussian(self, value, scale, *, out=None):
        return value.clone()


def test_synthetic_pictures_look_like_their_class_and_are_pictures(pictures):
    release = train("moments", pictures, epsilon=5, seed=0, rows=300)
    made = release.dataset
    assert made.features.shape == (300, 1, 8, 8)
    assert 0 <= float(made.features.min()) <= float(made.features.max()) <= 1
    upper, lower = (made.features[made.labels == label] for label in (0, 1))
    assert upper[:, :, :4].mean() > upper[:, :, 4:].mean() + 0.5
    assert lower[:, :, 4:].mean() > lower[:, :, :4].mean() + 0.5
    assert 0.4 < len(upper) / 300 < 0.6


def test_a_table_and_a_number_to_predict_come_back_within_their_bounds(table):
    release = train("moments", table, epsilon=5, seed=0, rows=100)
    assert release.dataset.features.shape == (100, *table.public.shape)
    public = replace(table.public, task="regression", classes=(), target_bounds=(0.0, 10.0))
    numbers = replace(table, labels=torch.rand(len(table)), public=public)
    made = train("moments", numbers, epsilon=5, seed=0, rows=100).dataset
    assert made.labels.is_floating_point()
    assert 0 <= float(made.labels.min()) <= float(made.labels.max()) <= 1


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_the_cards_epsilon_is_that_of_three_releases_and_the_budget(pictures, neighbours):
    release = train("moments", pictures, epsilon=2, seed=0, rows=10, neighbours=neighbours)
    assert sum(count for _, count in release.event_log) == 3
    log = EventLog()
    for event, count in release.event_log:
        log.append(event, count)
    spent = accountants.epsilon(log.event, 1e-5, neighbours=neighbours).epsilon
    assert release.card.proven.epsilon == pytest.approx(spent)
    assert 1.99 < spent <= 2


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 399), norm=st.floats(0.1, 20))
def test_a_record_moves_no_sum_by_more_than_its_norm(pictures, place, norm):
    fewer = pictures.take(torch.cat([torch.arange(place), torch.arange(place + 1, len(pictures))]))
    basis = low_frequencies((1, 8, 8), 5)
    one, other = (_sums(part, basis) for part in (pictures, fewer))
    counted = [torch.cat(part.noisy_counts(1.0)) for part in (one, other)]
    assert (counted[0] - counted[1]).norm().item() == pytest.approx(2**0.5)
    assert (one.means(norm, 1.0) - other.means(norm, 1.0)).norm() <= norm
    centres = torch.ones(2, basis.shape[1], dtype=torch.float64)
    moved = one.products(centres, norm, 1.0) - other.products(centres, norm, 1.0)
    assert moved.norm() <= norm**2


def test_a_person_counts_for_one_however_many_records_they_have(pictures):
    groups = torch.arange(len(pictures)).clamp(max=200)
    persons = replace(pictures, groups=groups)
    without = persons.take((groups < 200).nonzero().squeeze(1))
    one, other = _sums(persons), _sums(without)
    assert sum(float(part.sum()) for part in one.noisy_counts(1.0)) == pytest.approx(2 * 201)
    assert (torch.cat(one.noisy_counts(1.0)) - torch.cat(other.noisy_counts(1.0))).norm() <= 2**0.5
    centres = torch.zeros(2, 64, dtype=torch.float64)
    assert (one.products(centres, 2.0, 1.0) - other.products(centres, 2.0, 1.0)).norm() <= 4


def test_what_is_given_out_was_noted_before(pictures):
    class Broken(Reproducible):
        def add_gaussian(self, *arguments, **options):
            raise RuntimeError

    log = EventLog()
    sums = Sums(pictures, torch.eye(64, dtype=torch.float64), "add-or-remove", Broken(0), log)
    for release in (
        lambda: sums.counts(3.0),
        lambda: sums.means(1.0, 4.0),
        lambda: sums.products(torch.zeros(2, 64, dtype=torch.float64), 1.0, 5.0),
    ):
        with pytest.raises(RuntimeError):
            release()
    assert [event.noise_multiplier for event, _ in log.runs] == [3.0, 4.0, 5.0]


def test_the_more_noise_the_fewer_frequencies(pictures):
    shape = replace(pictures.public, shape=(1, 28, 28))
    widths = [Moments().basis(shape, 60_000, noise).shape[1] for noise in (0.5, 4.0, 40.0, 4e9)]
    assert widths[0] == 78
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 6


def test_classes_that_noise_hides_are_like_all_classes_and_others_are_themselves():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    counts = torch.tensor([100.0, 100.0, 100.0], dtype=torch.float64)
    exact, _ = shrunk(values, torch.full((3, 1), 1e-9, dtype=torch.float64), counts)
    hidden, pooled = shrunk(values, torch.full((3, 1), 1e9, dtype=torch.float64), counts)
    assert torch.allclose(exact, values)
    assert torch.allclose(hidden, pooled.expand(3, 1))
    roots = torch.randn(2, 4, 4, dtype=torch.float64, generator=generator)
    true = roots @ roots.mT + torch.eye(4, dtype=torch.float64)
    found = covariances(true, torch.full((2,), 1e-9, dtype=torch.float64), counts[:2])
    assert torch.allclose(found, true, rtol=1e-3)
    drawn, labels = Normals(torch.zeros(2, 4, dtype=torch.float64), found, counts[:2]).sample(40_000, generator)
    own = drawn[labels == 1]
    assert torch.allclose(own.T @ own / len(own), true[1], atol=0.35)


def test_what_does_not_fit_is_refused_before_anything_is_spent(pictures):
    with pytest.raises(SettingError, match="below 1 together"):
        Moments(counts=0.5, means=0.5)
    wide = replace(pictures.public, shape=(600,), kind="vector")
    with pytest.raises(DataError, match="600 are more than 512"):
        Moments().basis(wide, 1000, 1.0)


@settings(max_examples=25, deadline=None)
@given(places=st.tuples(st.integers(0, 399), st.integers(0, 399)), norm=st.floats(0.1, 20))
def test_an_exchange_moves_counts_and_products_by_the_root_of_two_and_sums_by_twice_the_norm(pictures, places, norm):
    rest = torch.arange(len(pictures))
    basis = low_frequencies((1, 8, 8), 5)
    worlds = (rest[rest != place] for place in places)
    one, other = (_sums(pictures.take(index), basis) for index in worlds)
    assert (one.counted() - other.counted()).norm() <= 2 + 1e-9
    assert (one.summed(norm) - other.summed(norm)).norm() <= 2 * norm
    centres = torch.ones(2, basis.shape[1], dtype=torch.float64)
    assert (one.multiplied(centres, norm) - other.multiplied(centres, norm)).norm() <= 2**0.5 * norm**2


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_an_audit_comes_near_the_proof_and_never_above(neighbours):
    found = audit(Moments().game(Budget(3.0, 1e-5, neighbours)), trials=1500, timeout=None)
    assert 1.8 < found.audited.epsilon <= 3
    assert found.verdict == "proven"

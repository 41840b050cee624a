"""shard-mean and shard-pg: one record touches one shard, sensitivities hold, proofs are the accountant's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import accuracy, methods
from noiseproof.data import load
from noiseproof.errors import SettingError
from noiseproof.methods.parameters import ShardMean, ShardPg, true_sensitivity
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, Secure, accountants
from noiseproof.privacy.events import GaussianDpEvent, PureDpEvent, ReplaceOneDpEvent, SelfComposedDpEvent


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def network(digits):
    return Network("linear", digits.train.public.shape, 10)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    shards=st.integers(2, 20),
    clip=st.floats(1e-3, 1e3),
    scale=st.floats(1e-4, 1e6),
    seed=st.integers(0, 10_000),
)
def test_a_shards_update_moves_the_mean_by_at_most_twice_the_clip_over_the_shards(shards, clip, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    updates = scale * torch.randn(shards, 30, generator=generator)
    other = updates.clone()
    other[0] = -scale * updates[0] * 3
    method = ShardMean(clip=clip)
    moved = (method.mean(updates) - method.mean(other)).double().norm()
    assert float(moved) <= method.mechanism(Budget(1.0), shards).sensitivity
    assert method.mechanism(Budget(1.0), shards).sensitivity == 2 * clip / shards


def test_updates_within_the_clip_are_averaged_as_they_are():
    updates = torch.tensor([[0.3, 0.4], [0.0, -0.2], [-0.3, 0.1]])
    assert torch.allclose(ShardMean(clip=1.0).mean(updates), updates.mean(0))


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_shard_means_proof_is_one_gaussian_mechanisms(digits, network, neighbours):
    budget = Budget(2.0, 1e-6, neighbours)
    card = ShardMean(epochs=1).fit(network, digits.train, budget, rng=Reproducible(0)).card
    event = GaussianDpEvent(card.ran["sigma"])
    expected = accountants.epsilon(
        ReplaceOneDpEvent(event) if neighbours == "replace-one" else event, 1e-6, neighbours=neighbours
    )
    assert card.proven.epsilon == expected.epsilon
    assert 2.0 * 0.999 < card.proven.epsilon <= 2.0
    assert (card.verdict, card.unit, card.neighbours) == ("rehearsal", "record", neighbours)
    assert card.ran["shards"] == len(digits.train) // 5


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_shard_pgs_proof_composes_every_parameters_draw_as_zcdp(digits, network, neighbours):
    budget = Budget(2.0, 1e-6, neighbours)
    card = ShardPg(epochs=1).fit(network, digits.train, budget, rng=Reproducible(0)).card
    one = card.ran["epsilon of a draw"]
    event = SelfComposedDpEvent(PureDpEvent(one, neighbours, bounded_range=True), 650)
    assert card.proven.epsilon == accountants.epsilon(event, 1e-6, accountant="zcdp", neighbours=neighbours).epsilon
    assert 2.0 * 0.999 < card.proven.epsilon <= 2.0
    assert card.ran["sensitivity"] >= true_sensitivity(card.ran["shards"], 1.0)
    assert card.verdict == "rehearsal"


def test_a_single_parameter_may_spend_all_of_epsilon_and_delta_0_is_divided():
    assert ShardPg().mechanism(Budget(1.0), 10, 1).epsilon >= 1.0
    pure = ShardPg().mechanism(Budget(1.0, 0.0), 10, 4)
    assert pure.epsilon == 0.25
    assert ShardPg().proof(Budget(1.0, 0.0), pure, 4, ()).epsilon == 1.0


def test_shard_mean_learns_the_digits(digits):
    network = Network("mlp", digits.train.public.shape, 10)
    release = ShardMean().fit(network, digits.train, Budget(8.0), rng=Reproducible(0))
    assert accuracy(release, digits.test) > 0.6


def test_shard_pg_learns_a_small_head(digits):
    """Two classes and the 64 pixels: far better than a coin, at an epsilon that 130 parameters can share."""
    both = (digits.train.labels < 2).nonzero().flatten()
    public = replace(digits.train.public, classes=("0", "1"))
    train = replace(digits.train, features=digits.train.features[both], labels=digits.train.labels[both], public=public)
    network = Network("linear", train.public.shape, 2)
    release = ShardPg(records_a_shard=2).fit(network, train, Budget(8.0), rng=Reproducible(1))
    assert accuracy(release, train) > 0.8


def test_one_record_changes_one_shard(digits, network, monkeypatch):
    """The updates that are published from differ in one row at most, whether a record is exchanged or taken away."""
    seen = []

    def watch(self, updates, *_):
        seen.append(updates.clone())
        raise InterruptedError

    monkeypatch.setattr(ShardMean, "_publish", watch)
    train = digits.train.take(torch.arange(100))
    exchanged = train.features.clone()
    exchanged[99] = 1 - exchanged[99]
    for records in (train, replace(train, features=exchanged), train.take(torch.arange(99))):
        with pytest.raises(InterruptedError):
            ShardMean(shards=10, epochs=2).fit(network, records, Budget(1.0), rng=Reproducible(3))
    for other in seen[1:]:
        rows = (seen[0] != other).any(1)
        assert int(rows.sum()) == 1


def test_a_network_that_diverges_counts_as_one_that_did_not_move(digits, network):
    release = ShardMean(lr=1e30, epochs=3).fit(network, digits.train, Budget(1.0), rng=Reproducible(0))
    assert all(bool(torch.isfinite(value).all()) for value in release.tensors().values())
    assert release.card.verdict == "rehearsal"


def test_too_many_parameters_are_told_of(digits):
    large = Network("mlp", digits.train.public.shape, 10, {"hidden": 64})
    few = {"shards": 20, "epochs": 1}
    for method in (ShardMean(**few), ShardPg(**few)):
        card = method.fit(large, digits.train, Budget(0.5), rng=Secure()).card
        assert any("too many" in note for note in card.notes)
        assert card.verdict == "proven"


def test_bounds_read_off_the_data_take_the_proof_away(digits, network):
    public = replace(digits.train.public, bounds="data")
    card = ShardMean(epochs=1).fit(network, replace(digits.train, public=public), Budget(1.0), rng=Reproducible(0)).card
    assert card.proven is None
    assert "read off" in card.why


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("shard-mean", {"shards": 1}),
        ("shard-mean", {"clip": 0}),
        ("shard-mean", {"gain": math.inf}),
        ("shard-mean", {"records_a_shard": 0}),
        ("shard-pg", {"radius": 0}),
        ("shard-pg", {"bandwidth": -1}),
    ],
)
def test_impossible_settings_are_refused(name, values):
    with pytest.raises(SettingError):
        methods.build(name, values)


def test_a_network_far_too_large_to_draw_is_refused_before_any_draw():
    with pytest.raises(SettingError, match="too many to draw"):
        ShardPg().mechanism(Budget(1.0, 0.0), 10, 10**7)

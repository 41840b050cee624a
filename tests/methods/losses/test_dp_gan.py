"""dp-gan and zero-gan: records like the private ones, within the budget under any schedule."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import load_bundle, methods, train
from noiseproof.audits import audit
from noiseproof.data.tables import decode
from noiseproof.errors import BudgetError, DataError, SettingError
from noiseproof.methods.losses import DpGan, ZeroGan
from noiseproof.methods.losses.filtered import FilteredGradients
from noiseproof.methods.losses.gan import NoiseTuning
from noiseproof.privacy import Budget, Filter, Reproducible, accountants
from noiseproof.privacy.events import ComposedDpEvent, GaussianDpEvent, sampled_gaussian
from noiseproof.releases.release import DataRelease

QUICK = {"generator_steps": 100, "generated": 100}


@pytest.fixture(scope="module")
def release(table):
    return train("dp-gan", table, epsilon=5, seed=0, **QUICK)


def test_synthetic_records_look_like_the_private_ones(release, table, test_table):
    from noiseproof.methods.losses.quality import quality

    found = quality(release.dataset, table, test_table)
    assert found.synthetic_to_real > 0.8
    assert found.pmf_errors["city"] < 0.2
    assert release.dataset.features.shape == table.features.shape


def test_a_constant_column_stays_constant_and_an_unseen_category_stays_rare(release, table):
    frame = decode(table.public, release.dataset.features, release.dataset.labels)
    assert list(frame.columns) == ["age", "city", "money", "same", "income"]
    assert set(frame["same"]) == {"always"}
    assert float((frame["city"] == "never").mean()) < 0.05
    assert frame["age"].dtype == "int64"


def test_the_cards_epsilon_is_the_accountants_for_the_steps_taken(release):
    ran = release.card.ran
    event = ComposedDpEvent(
        [
            GaussianDpEvent(ran["label sigma"]),
            sampled_gaussian(ran["sample_rate"], ran["noise_multiplier"], ran["steps"]),
        ]
    )
    assert release.card.proven.epsilon == pytest.approx(accountants.epsilon(event, 1e-5).epsilon, rel=1e-6)
    assert release.card.proven.epsilon <= 5
    assert release.card.verdict == "rehearsal"
    assert ran["steps"] == 3


def test_a_bundle_keeps_the_records_and_the_card(release, tmp_path):
    release.save(tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle")
    assert isinstance(again, DataRelease)
    assert torch.equal(again.dataset.features, release.dataset.features)
    assert torch.equal(again.dataset.labels, release.dataset.labels)
    assert again.card == release.card
    assert again.public == release.public


@pytest.mark.parametrize("name", ["dp-gan", "zero-gan"])
@pytest.mark.parametrize("tuning", ["constant", "time", "exp", "step", "ant"])
def test_every_schedule_ends_before_the_budget_does(pictures, name, tuning):
    fast = {"time": 1.0, "exp": 0.3, "step": 0.5, "ant": 0.5, "constant": None}[tuning]
    found = train(
        name, pictures, epsilon=1, seed=0, tuning=tuning, decay=fast, every=2, steps=12, generator_steps=1, width=8,
        generated=20, rows=10, threshold=0.5,
    )  # fmt: skip
    card = found.card
    assert card.proven.epsilon <= 1
    assert (card.ran["steps"] < 12) == (tuning != "constant")
    assert card.ran["last sigma"] <= card.ran["noise_multiplier"]
    scores = [event for event, _ in found.event_log[1:] if isinstance(event, GaussianDpEvent)]
    # zero-gan's steps are on all records: only their noise, not their kind, tells them from scores.
    assert (any(event.noise_multiplier == 8.0 for event in scores)) == (tuning == "ant")


@given(
    noise=st.lists(st.floats(0.3, 30), min_size=1, max_size=40),
    sample_rate=st.sampled_from([0.05, 0.4, 1.0]),
    epsilon=st.sampled_from([0.5, 2.0, 8.0]),
)
@settings(deadline=None, derandomize=True, max_examples=25)
def test_whatever_noise_is_asked_for_the_steps_that_were_taken_fit_the_budget(noise, sample_rate, epsilon):
    budget = Budget(epsilon, 1e-5)
    filter, tuning = Filter(budget, "rdp"), NoiseTuning("constant", noise[0])
    module = torch.nn.Linear(2, 1, bias=False)
    gradients = FilteredGradients(
        module, filter, tuning, max_grad_norm=1.0, sample_rate=sample_rate, rng=Reproducible(0)
    )
    records = torch.ones(10, 2)
    for sigma in noise:
        tuning.sigma = sigma
        if not gradients.affordable:
            continue
        for (batch,) in gradients.batches(records, steps=1):
            gradients.backward(module(batch).squeeze(1) if len(batch) else None)
    assert accountants.epsilon(gradients.events.event, 1e-5, accountant="rdp").epsilon <= epsilon * (1 + 1e-9)
    assert filter.spent.epsilon <= epsilon


def test_a_step_that_does_not_fit_releases_nothing():
    module = torch.nn.Linear(2, 1, bias=False)
    filter = Filter(Budget(0.1, 1e-5), "rdp")
    gradients = FilteredGradients(
        module, filter, NoiseTuning("constant", 0.5), max_grad_norm=1.0, sample_rate=1.0, rng=Reproducible(0)
    )
    batches = gradients.batches(torch.ones(3, 2), steps=1)
    (batch,) = next(batches)
    with pytest.raises(BudgetError):
        gradients.backward(module(batch).squeeze(1))
    assert module.weight.grad is None
    assert filter.spent.epsilon == 0


def test_public_reference_records_make_ants_looks_free(pictures):
    method = DpGan(tuning="ant", decay=0.5, every=1, steps=4, generator_steps=1, width=8, generated=20, rows=10)
    network = None
    paid, free = (
        method.fit(network, pictures, Budget(1.0), rng=Reproducible(0), reference=reference)
        for reference in (None, pictures.take(torch.arange(50)))
    )
    scored = [any(event == GaussianDpEvent(8.0) for event, _ in found.event_log) for found in (paid, free)]
    assert scored == [True, False]


@pytest.mark.parametrize("name", ["dp-gan", "zero-gan"])
def test_ants_proven_epsilon_is_the_filters_budget_whatever_was_drawn(pictures, name):
    """What a filter has spent depends on noised scores, and so holds for nobody who sees them."""
    few = {"steps": 12, "generator_steps": 1, "width": 8, "generated": 20, "rows": 10, "every": 2, "decay": 0.5}
    cards = [train(name, pictures, epsilon=2, seed=seed, tuning="ant", threshold=0.5, **few).card for seed in range(4)]
    assert [card.proven.epsilon for card in cards] == [2.0] * 4
    assert {card.proven.accountant for card in cards} == {"rdp filter"}
    assert not any("spent" in key for card in cards for key in card.ran)


@pytest.mark.parametrize("model", ["dense", "conv"])
def test_the_papers_networks_train_privately_too(table, model):
    found = train("dp-gan", table, epsilon=2, seed=0, model=model, steps=4, generated=50, rows=20)
    assert found.card.proven.epsilon <= 2
    assert found.card.ran["sampler"] == "poisson"
    assert len(found.dataset) == 20
    assert bool(found.dataset.features.isfinite().all())


def test_pictures_of_two_kinds_are_told_apart(pictures):
    from noiseproof.methods.losses.quality import quality

    found = train("dp-gan", pictures, epsilon=5, seed=0, **QUICK)
    assert quality(found.dataset, pictures, pictures).synthetic_to_real > 0.95


def test_zero_gan_learns_from_one_number_a_step(table, test_table):
    from noiseproof.methods.losses.quality import quality

    found = train("zero-gan", table, epsilon=8, seed=0, steps=300, generator_steps=1, generated=100)
    assert found.card.ran["numbers released"] == 300
    assert found.card.proven.epsilon <= 8
    assert quality(found.dataset, table, test_table).synthetic_to_real > 0.7


def test_the_same_seed_makes_the_same_records(pictures):
    few = {"steps": 2, "generator_steps": 2, "width": 8, "generated": 20}
    first, second = (train("dp-gan", pictures, epsilon=1, seed=3, **few).dataset for _ in range(2))
    assert torch.equal(first.features, second.features)


def test_fifty_records_are_enough_and_fewer_are_refused_before_anything_is_spent(table):
    few = {"steps": 2, "generator_steps": 2, "generated": 20}
    assert len(train("dp-gan", table.take(torch.arange(50)), epsilon=1, seed=0, **few).dataset) == 50
    with pytest.raises(DataError, match="50 or more"):
        train("dp-gan", table.take(torch.arange(49)), epsilon=1, seed=0)


def test_bounds_read_off_the_data_prove_nothing(table):
    from dataclasses import replace

    read_off = replace(table, public=replace(table.public, bounds="data"))
    card = train("dp-gan", read_off, epsilon=1, seed=0, steps=1, generator_steps=1).card
    assert card.proven is None
    assert "read off" in card.why


def test_replace_one_needs_more_noise(pictures):
    few = {"steps": 2, "generator_steps": 1, "width": 8, "generated": 20}
    cards = [
        train("dp-gan", pictures, epsilon=1, seed=0, neighbours=relation, **few).card
        for relation in ("add-or-remove", "replace-one")
    ]
    assert cards[1].ran["noise_multiplier"] == pytest.approx(2 * cards[0].ran["noise_multiplier"], rel=0.02)
    assert all(card.proven.epsilon <= 1 for card in cards)


def test_secure_randomness_makes_records_that_may_leave(pictures):
    few = {"steps": 2, "generator_steps": 2, "width": 8, "generated": 20, "rows": 10}
    for name in ("dp-gan", "zero-gan"):
        card = train(name, pictures, epsilon=1, **few).card
        assert card.randomness == "secure"
        assert not any("do not release" in note for note in card.notes)


def test_a_smaller_clipping_norm_is_undone_for_features_of_norm_one(pictures):
    few = {"steps": 1, "generator_steps": 3, "width": 8, "generated": 20, "noise_multiplier": 1e-3}
    large, small = (
        train("dp-gan", pictures, epsilon=1e8, seed=0, max_grad_norm=clip, **few).dataset for clip in (1.0, 0.25)
    )
    torch.testing.assert_close(large.features, small.features, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("dp-gan", {"rows": 0}),
        ("dp-gan", {"sample_rate": 1.5}),
        ("dp-gan", {"noise_multiplier": -1}),
        ("dp-gan", {"model": "transformer"}),
        ("dp-gan", {"tuning": "ant", "decay": 2}),
        ("zero-gan", {"model": "dense"}),
        ("rdp-gan", {"noise_on": "gradient"}),
        ("rdp-gan", {"model": "features"}),
        ("rdp-gan", {"order": 1}),
        ("rdp-gan", {"batch_size": 1}),
        ("dp-gan", {"generated": 1}),
    ],
)
def test_impossible_settings_are_refused(name, setting):
    with pytest.raises(SettingError):
        methods.build(name, setting)


def cost_of(game):
    """What a game's two worlds cost: with the same draws their scores differ by the variance of a Gaussian shift."""
    without, with_it = (game.play(world, 1, torch.Generator().manual_seed(1)) for world in (0, 1))
    shift = float(with_it - without) * (1 if game.neighbours == "add-or-remove" else 2)
    return accountants.epsilon(GaussianDpEvent(1 / math.sqrt(shift)), game.delta).epsilon


@pytest.mark.parametrize("method", [DpGan(), DpGan(max_grad_norm=0.1, tuning="exp"), ZeroGan()], ids=str)
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_the_siblings_games_lose_all_that_is_proven(method, neighbours):
    game = method.game(Budget(4.0, 1e-5, neighbours))
    assert 0.98 * game.proven.epsilon <= cost_of(game) <= game.proven.epsilon * (1 + 1e-3)
    assert 2.5 < game.proven.epsilon <= 4.0


@pytest.mark.slow
@pytest.mark.parametrize("method", [DpGan, ZeroGan])
def test_audits_come_near_the_siblings_proofs(method):
    game = method().game(Budget(4.0, 1e-5))
    # Over seeds the bound is 2.5 with a standard deviation of 0.29: below 1 is 5.2 of them.
    result = audit(game, trials=1000, timeout=None, confidence=1 - 1e-6)
    assert 1 < result.epsilon <= game.proven.epsilon


@pytest.mark.parametrize("method", [DpGan(), ZeroGan()], ids=lambda method: method.name)
def test_steps_that_are_not_paid_for_show_in_the_game(method, monkeypatch):
    """The game plays the whole training: that each step has its noise is not enough."""
    proven, prepare = method.game(Budget(4.0)).proven.epsilon, type(method)._prepare

    def greedy(self, *arguments):
        run = prepare(self, *arguments)
        run.limit, run.filter = 4 * run.limit, Filter(Budget(1e3))
        return run

    monkeypatch.setattr(type(method), "_prepare", greedy)
    assert cost_of(method.game(Budget(4.0))) > 2 * proven

"""rdp-gan: noise on the loss's value changes nothing; its card claims what the paper does and proves nothing."""

from __future__ import annotations

import pytest
import torch

from noiseproof import train
from noiseproof.methods.losses import claims
from noiseproof.methods.losses.rdp_gan import RdpGan, noised_loss
from noiseproof.privacy import Budget, Reproducible

FEW = {"iterations": 8, "rows": 30}


def _weights(pictures, **settings):
    kept = []

    def watch(iteration, gan):
        if iteration == 8:
            kept.append({name: value.clone() for name, value in gan.generator.state_dict().items()})

    method = RdpGan(iterations=8, rows=30, **settings)
    release = method.fit(None, pictures, Budget(0.5), rng=Reproducible(0), watch=watch)
    return kept[0], release


def test_noise_on_the_value_trains_to_the_very_weights_of_a_training_without_noise(pictures):
    noised, release = _weights(pictures, noise_on="value", sigma=10.0)
    plain, _ = _weights(pictures, noise_on="value", sigma=0.0)
    assert all(torch.equal(noised[name], plain[name]) for name in plain)
    assert "Nothing is protected" in release.card.why
    assert release.card.proven is None
    assert release.card.verdict == "nothing proven"


@pytest.mark.parametrize("reading", ["error", "scale"])
def test_noise_in_the_other_readings_does_change_the_weights(pictures, reading):
    noised, _ = _weights(pictures, noise_on=reading, sigma=10.0)
    plain, _ = _weights(pictures, noise_on=reading, sigma=0.0)
    assert any(not torch.equal(noised[name], plain[name]) for name in plain)


def test_where_the_noise_goes():
    scores = torch.tensor([0.3, -1.2, 2.0], requires_grad=True)
    plain = torch.autograd.grad(noised_loss(scores, "error", 0.0, Reproducible(0)), scores)[0]
    value, error, scale = (
        torch.autograd.grad(noised_loss(scores, reading, 5.0, Reproducible(0)), scores)[0]
        for reading in ("value", "error", "scale")
    )
    assert torch.equal(value, plain)
    noise = Reproducible(0).add_gaussian(torch.zeros(3), 5.0)
    torch.testing.assert_close(error, plain + noise / 3)
    ratio = scale / plain
    torch.testing.assert_close(ratio, ratio[0].expand(3))
    assert float((ratio[0] - 1).abs()) > 1e-3


def test_the_claim_is_theorem_fours_for_the_iterations_that_ran(pictures):
    card = train("rdp-gan", pictures, epsilon=0.5, seed=0, **FEW).card
    ran = card.ran
    per_iteration = claims.iteration(
        ran["rate"], ran["order"], ran["C"] / ran["batch_size"], ran["sigma"], ran["discriminator steps"], 1e-5
    )
    assert card.claimed.epsilon == pytest.approx(claims.total(per_iteration, ran["iterations"]))
    assert card.claimed.epsilon == pytest.approx(0.5)
    assert card.claimed.neighbours == "replace-one"
    assert ran["iterations"] == 8


@pytest.mark.parametrize(("tuning", "decay"), [("time", 0.5), ("exp", 0.2), ("step", 0.5), ("ant", 0.5)])
def test_falling_noise_ends_the_claimed_budget_sooner(pictures, tuning, decay):
    settings = {"iterations": 12, "rows": 10, "tuning": tuning, "decay": decay, "every": 2, "threshold": 0.9}
    card = train("rdp-gan", pictures, epsilon=0.5, seed=0, **settings).card
    assert card.ran["iterations"] < 12
    assert card.claimed.epsilon <= 0.5 * (1 + 1e-6)
    assert card.ran["last sigma"] < card.ran["sigma"]


@pytest.mark.parametrize("model", ["dense", "conv"])
def test_tables_are_generated_by_either_pair_of_networks(table, model):
    found = train("rdp-gan", table, epsilon=1, seed=0, model=model, **FEW)
    assert found.dataset.features.shape == (30, *table.public.shape)

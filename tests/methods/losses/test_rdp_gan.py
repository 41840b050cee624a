"""rdp-gan: noise on the loss's value changes nothing; its card claims what the paper does, digit by digit, and proves nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import train
from noiseproof.audits import audit
from noiseproof.errors import SettingError
from noiseproof.methods.losses import rdp_gan
from noiseproof.methods.losses.rdp_gan import RdpGan, loss_sensitivity, noised_loss, renyi_epsilon, theorem_2_applies
from noiseproof.privacy import Budget, Reproducible, renyi
from noiseproof.privacy.steps import Step

FEW = {"iterations": 8, "rows": 30}


def _weights(pictures, **settings):
    kept = []

    def callback(iteration, gan):
        if iteration == 8:
            kept.append({name: value.clone() for name, value in gan.generator.state_dict().items()})

    method = RdpGan(iterations=8, rows=30, **settings)
    release = method.fit(None, pictures, Budget(0.5), rng=Reproducible(0), callback=callback)
    return kept[0], release


def test_noise_on_the_value_trains_to_the_very_weights_of_a_training_without_noise(pictures):
    noised, release = _weights(pictures, noise_on="value", sigma=10.0)
    plain, _ = _weights(pictures, noise_on="value", sigma=0.0)
    assert all(torch.equal(noised[name], plain[name]) for name in plain)
    assert "Nothing is protected" in release.card.why
    assert release.card.proven is None
    assert release.card.verdict == "nothing proven"


@pytest.mark.parametrize("reading", ["sum", "error", "scale"])
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
    per_iteration = rdp_gan.iteration_epsilon(
        ran["rate"], ran["order"], ran["C"] / ran["batch_size"], ran["sigma"], ran["discriminator steps"], 1e-5
    )
    assert card.claimed.epsilon == pytest.approx(ran["iterations"] * per_iteration)
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


@pytest.mark.parametrize("reading", ["value", "sum", "error", "scale"])
def test_a_feature_that_one_record_has_refutes_the_papers_claim(reading):
    game = RdpGan(noise_on=reading).game(Budget(1.0))
    assert game.claimed.epsilon == pytest.approx(1.0)
    assert audit(game, trials=100, timeout=None).verdict == "refuted"


# The paper's arithmetic, and where it is false.


@pytest.mark.parametrize(
    ("bound", "batch", "expected"),
    [(20, 64, 0.3125), (23, 128, 0.1797), (28, 128, 0.2188), (25, 64, 0.3906)],
)
def test_table_two_sensitivities(bound, batch, expected):
    assert rdp_gan.loss_sensitivity(bound, batch) == pytest.approx(expected, abs=5e-5)


def test_the_printed_sensitivity_of_mnist_at_batch_64_is_that_of_batch_128():
    assert rdp_gan.loss_sensitivity(25, 128) == pytest.approx(0.1953, abs=5e-5)


def test_theorems_one_to_four_and_formula_23():
    renyi_epsilon = rdp_gan.renyi_epsilon(0.01, 2.0, 0.5, 2.0)
    assert renyi_epsilon == pytest.approx(0.01 * 4 * 0.25 / (2 * 4))
    per_iteration = rdp_gan.generator_epsilon(renyi_epsilon, 5, 1e-5)
    assert per_iteration == pytest.approx(4 * renyi_epsilon * math.sqrt(10 * math.log(1e5)))
    assert rdp_gan.moments_epsilon(0.01, 5, 1e-5, 2.0) == pytest.approx(0.01 * math.sqrt(5 * math.log(1e5)))


def test_one_formula_falls_with_the_square_of_the_noise_and_the_other_with_the_noise():
    assert rdp_gan.renyi_epsilon(0.1, 2, 1, 4) / rdp_gan.renyi_epsilon(0.1, 2, 1, 2) == pytest.approx(1 / 4)
    assert rdp_gan.moments_epsilon(0.1, 5, 1e-5, 4) / rdp_gan.moments_epsilon(0.1, 5, 1e-5, 2) == pytest.approx(1 / 2)


def test_step_d_is_false_at_sigma_005_and_order_8():
    # MNIST at batch 128: the theorem gives .187 where the truth is 69.5.
    rate, order, sensitivity, sigma = 128 / 60_000, 8.0, rdp_gan.loss_sensitivity(28, 128), 0.05
    assert rdp_gan.renyi_epsilon(rate, order, sensitivity, sigma) == pytest.approx(0.187, abs=5e-4)
    truth = float(renyi.curve([Step("gaussian", sigma / sensitivity, rate)], [order])[0])
    assert truth == pytest.approx(69.5, abs=0.05)


@given(st.floats(0.05, 50), st.floats(1e-4, 1.0), st.floats(1.1, 32.0), st.floats(0.01, 1.0))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_the_proofs_last_step_always_goes_the_wrong_way(sigma, rate, order, sensitivity):
    exponent = sensitivity**2 * order / (2 * sigma**2)
    if exponent < 600:
        before = order / (order - 1) * rate * math.expm1(exponent)
        assert rdp_gan.renyi_epsilon(rate, order, sensitivity, sigma) <= before * (1 + 1e-9)


@given(st.floats(0.01, 100), st.integers(1, 20), st.integers(1, 5000))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_calibration_inverts_theorem_four(epsilon, steps, iterations):
    terms = {"rate": 0.01, "order": 2.0, "sensitivity": 0.3}
    sigma = rdp_gan.claimed_sigma(epsilon, 1e-5, steps=steps, iterations=iterations, **terms)
    per_iteration = rdp_gan.iteration_epsilon(0.01, 2.0, 0.3, sigma, steps, 1e-5)
    assert iterations * per_iteration == pytest.approx(epsilon)


def test_no_noise_has_no_finite_claim_and_an_order_must_exceed_one():
    assert rdp_gan.renyi_epsilon(0.1, 2, 1, 0) == math.inf == rdp_gan.moments_epsilon(0.1, 5, 1e-5, 0)
    with pytest.raises(SettingError, match="order"):
        rdp_gan.renyi_epsilon(0.1, 1.0, 1, 1)


def test_one_draw_on_the_sum_adds_the_same_to_every_records_error():
    scores = torch.linspace(-1, 1, 8).requires_grad_()
    errors = [
        torch.autograd.grad(noised_loss(scores, "sum", sigma, Reproducible(0)), scores)[0] for sigma in (0.0, 10.0)
    ]
    added = errors[1] - errors[0]
    draw = Reproducible(0).add_gaussian(torch.zeros(1), 10.0)
    torch.testing.assert_close(added, (draw / 64).expand(8))


def test_theorem_2_asks_for_more_than_small_noise_gives():
    rate, sensitivity = 64 / 60_000, loss_sensitivity(25, 64)
    assert theorem_2_applies(renyi_epsilon(rate, 2.0, sensitivity, 10.0), 5, 1e-5)
    assert not theorem_2_applies(renyi_epsilon(1.0, 2.0, sensitivity, 0.1), 5, 1e-5)


def test_lemma_1_and_theorem_2_are_exceeded_by_one_gaussian_of_the_divergence_that_they_start_from():
    """Their proof takes 2 a n epsilon^2 for what n mechanisms of (a, epsilon)-RDP add up to, which holds of pure DP alone."""
    shift, delta = 0.1, 1e-5
    divergence = shift**2  # of order 2 between Normal(0, 1) and Normal(shift, 1)
    assert theorem_2_applies(divergence, 1, delta)
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    # Eq. 14, the event being values above 2.
    less, more = (float(normal.cdf(torch.tensor(at, dtype=torch.float64))) for at in (-2.0, shift - 2.0))
    assert math.exp(2 * divergence * math.sqrt(math.log(1 / less))) * less == pytest.approx(1.040 * less, rel=1e-3)
    assert more == pytest.approx(1.262 * less, rel=1e-3)
    # Eq. 15: at the epsilon that it gives, delta is a hundred times the one that it was given for.
    epsilon = rdp_gan.generator_epsilon(divergence, 1, delta)
    ends = torch.tensor([shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift], dtype=torch.float64)
    above, below = normal.cdf(ends).tolist()
    assert epsilon == pytest.approx(0.192, abs=5e-4)
    assert above - math.exp(epsilon) * below == pytest.approx(1.16e-3, abs=5e-6)


def test_remark_3_finds_room_for_eleven_iterations():
    assert math.log(1e5) == pytest.approx(11.5, abs=0.05)
    assert theorem_2_applies(1.0, 11, 1e-5)
    assert not theorem_2_applies(1.0, 12, 1e-5)


@pytest.mark.parametrize(
    ("bound", "batch", "sigma"), [(20, 64, 0.552), (23, 128, 0.183), (25, 64, 0.863), (28, 128, 0.271)]
)
def test_theorem_3_claims_less_than_formula_23_from_below_1_on_and_not_from_10(bound, batch, sigma):
    sensitivity = loss_sensitivity(bound, batch)
    even = 4 * math.sqrt(2) * sensitivity**2
    assert even == pytest.approx(sigma, abs=5e-4)
    for rate in (1e-3, 0.1):
        claimed = rdp_gan.iteration_epsilon(rate, 2.0, sensitivity, even, 5, 1e-5)
        assert claimed == pytest.approx(rdp_gan.moments_epsilon(rate, 5, 1e-5, even))

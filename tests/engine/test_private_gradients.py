"""DP-SGD's gradient is the noised sum of clipped per-record gradients, however the records come."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from noiseproof.engine import check_rule, register_rule
from noiseproof.engine.clipping import RecordGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.sampling import PoissonSampler, Schedule
from noiseproof.errors import NoiseproofError, UnsupportedError
from noiseproof.methods.gradients import AdaptiveGradients
from noiseproof.privacy import Reproducible, Secure, accountants
from noiseproof.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

QUIET = 1e-9
"""A noise multiplier so small that only the clipped sum is left."""


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def records(n=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def losses(network, x, y):
    return functional.cross_entropy(network(x), y, reduction="none")


def clipped_sum(network, x, y, max_grad_norm):
    total = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for i in range(len(x)):
        gradient = torch.autograd.grad(losses(network, x[i : i + 1], y[i : i + 1]).sum(), list(network.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradient))
        for t, g in zip(total, gradient, strict=True):
            t += g * min(1.0, max_grad_norm / norm)
    return total


@pytest.mark.parametrize("max_grad_norm", [0.05, 0.5, 50.0])
@pytest.mark.parametrize("micro_batch_size", [None, 1, 5])
def test_a_quiet_step_is_the_mean_of_clipped_gradients_whatever_the_micro_batch(max_grad_norm, micro_batch_size):
    network, (x, y) = module(), records()
    gradients = PrivateGradients(
        network, max_grad_norm=max_grad_norm, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
    )
    complete = [
        gradients.backward(losses(network, *batch))
        for batch in gradients.batches(x, y, steps=1, micro_batch_size=micro_batch_size)
    ]
    assert complete == [False] * (len(complete) - 1) + [True]
    for parameter, expected in zip(network.parameters(), clipped_sum(network, x, y, max_grad_norm), strict=True):
        torch.testing.assert_close(parameter.grad, expected / 12, rtol=1e-4, atol=1e-6)


def test_the_noise_has_standard_deviation_sigma_times_clip_once_a_step_whatever_the_micro_batch():
    network = nn.Linear(50, 40)
    for micro_batch_size in (None, 2):
        gradients = PrivateGradients(
            network, max_grad_norm=0.3, noise_multiplier=2.0, sample_rate=1.0, rng=Reproducible(3)
        )
        x, y = torch.zeros(8, 50), torch.zeros(8, dtype=torch.int64)
        network.weight.data.zero_(), network.bias.data.zero_()
        for batch in gradients.batches(x, y, steps=1, micro_batch_size=micro_batch_size):
            gradients.backward(losses(network, *batch))
        # Zero inputs: the weight's gradient is noise alone. Kolmogorov-Smirnov, false-alarm rate 1e-6.
        noise = (network.weight.grad * 8 / 0.6).flatten().numpy()
        assert stats.kstest(noise, "norm").pvalue > 1e-6
        gradients.close()


@pytest.mark.parametrize("rng", [Reproducible(5), Secure()], ids=["reproducible", "secure"])
def test_an_empty_batch_is_a_step_of_pure_noise_and_is_accounted_for(rng):
    network = module()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1e-9, rng=rng)
    for x, _ in gradients.batches(*records(), steps=3):
        assert len(x) == 0
        assert gradients.backward(None)
        assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())
    assert gradients.events.event == SelfComposedDpEvent(PoissonSampledDpEvent(1e-9, GaussianDpEvent(1.0)), 3)


def test_the_events_are_those_of_the_steps_taken_and_reading_epsilon_changes_nothing():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(
        network,
        max_grad_norm=1.0,
        noise_multiplier=Schedule(2.0, "step", 0.5, every=2),
        sample_rate=0.5,
        rng=Reproducible(0),
    )
    for batch in gradients.batches(x, y, steps=3):
        gradients.backward(losses(network, *batch))
    first = gradients.epsilon(1e-5)
    assert first == gradients.epsilon(1e-5)
    assert len(gradients.events) == 3
    expected = accountants.epsilon(gradients.events.event, 1e-5).epsilon
    assert first == expected
    sigmas = [
        event.event.event.noise_multiplier if hasattr(event, "count") else event.event.noise_multiplier
        for event in gradients.events.event.events
    ]
    assert sigmas == [2.0, 1.0]


def test_losses_from_a_batch_that_was_not_drawn_here_are_refused():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0))
    with pytest.raises(NoiseproofError, match="no batch drawn"):
        gradients.backward(losses(network, x, y))


def test_a_batch_with_a_record_left_out_or_a_mean_loss_is_refused():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))
    batches = gradients.batches(x, y, steps=1)
    bx, by = next(batches)
    with pytest.raises(NoiseproofError, match="12 records"):
        gradients.backward(losses(network, bx[1:], by[1:]))
    with pytest.raises(NoiseproofError, match="one loss a record"):
        gradients.backward(losses(network, bx, by).mean())


def test_a_batch_that_is_drawn_and_then_skipped_is_refused():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))
    with pytest.raises(NoiseproofError, match="not called"):
        for _ in gradients.batches(x, y, steps=2):
            pass


def test_a_users_loader_is_taken_if_it_samples_as_stated_and_refused_if_not():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0))
    with pytest.raises(UnsupportedError):
        next(gradients.load(DataLoader(TensorDataset(x, y), batch_size=6)))
    loader = DataLoader(TensorDataset(x, y), batch_sampler=PoissonSampler(12, 0.5, 4, Reproducible(2)))
    for batch in gradients.load(loader):
        gradients.backward(losses(network, *batch))
    assert gradients.steps == 4


def test_a_record_whose_gradient_is_not_finite_counts_as_zero():
    network, (x, y) = module(), records()
    reference = clipped_sum(network, x[:-1], y[:-1], 1.0)
    x[-1] = float("inf")
    gradients = PrivateGradients(
        network, max_grad_norm=1.0, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
    )
    for batch in gradients.batches(x, y, steps=1):
        gradients.backward(losses(network, *batch))
    for parameter, expected in zip(network.parameters(), reference, strict=True):
        torch.testing.assert_close(parameter.grad, expected / 12, rtol=1e-4, atol=1e-6)


def test_a_bounded_update_never_leaves_the_ball_and_costs_the_same():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(
        network, max_grad_norm=0.2, noise_multiplier=30.0, sample_rate=0.5, rng=Reproducible(0), bound=True
    )
    for batch in gradients.batches(x, y, steps=20):
        gradients.backward(losses(network, *batch))
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in network.parameters()))
        assert norm <= 0.2 * (1 + 1e-5)
    assert gradients.events.event.event == PoissonSampledDpEvent(0.5, GaussianDpEvent(30.0))


def test_the_adaptive_clipping_norm_finds_the_quantile():
    network = nn.Linear(4, 1, bias=False)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 4, generator=generator)
    norms = x.norm(dim=1)
    gradients = AdaptiveGradients(
        network,
        max_grad_norm=20.0,
        noise_multiplier=1.0,
        sample_rate=0.5,
        rng=Reproducible(0),
        count_sigma=20.0,
        quantile=0.7,
    )
    for (batch,) in gradients.batches(x, steps=60):
        gradients.backward(network(batch).squeeze(1))
    assert gradients.max_grad_norm == pytest.approx(float(norms.quantile(0.7)), rel=0.05)


def test_sum_and_count_together_have_the_stated_noise_multiplier():
    gradients = AdaptiveGradients(
        module(), max_grad_norm=1.0, noise_multiplier=1.1, sample_rate=0.5, rng=Reproducible(0), count_sigma=3.0
    )
    assert (gradients.sum_sigma**-2 + (2 * 3.0) ** -2) ** -0.5 == pytest.approx(1.1)
    assert gradients._event() == PoissonSampledDpEvent(0.5, GaussianDpEvent(1.1))


def test_a_gan_discriminator_takes_private_and_public_gradients_in_one_step():
    network, (x, y) = module(), records()
    public = torch.randn(5, 4)
    gradients = PrivateGradients(
        network, max_grad_norm=1.0, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
    )
    for batch in gradients.batches(x, y, steps=1):
        gradients.backward(losses(network, *batch))
        with gradients.paused():
            network(public).square().mean().backward()
    reference = copy.deepcopy(network)
    reference.zero_grad()
    reference(public).square().mean().backward()
    for parameter, private, other in zip(
        network.parameters(), clipped_sum(network, x, y, 1.0), reference.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter.grad, private / 12 + other.grad, rtol=1e-4, atol=1e-6)


def test_an_interrupted_step_leaves_nothing_for_the_next():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(
        network, max_grad_norm=0.5, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
    )
    for _ in range(5):
        for batch in gradients.batches(x, y, steps=1, micro_batch_size=4):
            gradients.backward(losses(network, *batch))
            break
    assert gradients.steps == len(gradients.events) == 0
    for batch in gradients.batches(x, y, steps=1, micro_batch_size=4):
        gradients.backward(losses(network, *batch))
    for parameter, expected in zip(network.parameters(), clipped_sum(network, x, y, 0.5), strict=True):
        torch.testing.assert_close(parameter.grad, expected / 12, rtol=1e-4, atol=1e-6)


def test_a_count_of_an_interrupted_step_is_not_added_to_the_next():
    network, (x, y) = module(), records()
    gradients = AdaptiveGradients(
        network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0), count_sigma=3.0
    )
    for batch in gradients.batches(x, y, steps=1, micro_batch_size=4):
        gradients.backward(losses(network, *batch))
        break
    gradients.forget_waiting()
    assert gradients._count == 0


def test_a_state_remembers_what_was_spent():
    network, (x, y) = module(), records()
    options = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5}
    first = PrivateGradients(network, **options, rng=Reproducible(0))
    for batch in first.batches(x, y, steps=5):
        first.backward(losses(network, *batch))
    first.close()
    second = PrivateGradients(network, **options, rng=Reproducible(1))
    second.restore(first.state())
    assert second.epsilon(1e-5) == first.epsilon(1e-5) > 1
    assert second.steps == 5
    # What is spent stays spent: going back to an older state gives nothing back.
    for batch in second.batches(x, y, steps=2):
        second.backward(losses(network, *batch))
    spent = second.epsilon(1e-5)
    second.restore(first.state())
    assert second.epsilon(1e-5) == spent


def test_what_two_objects_have_spent_is_added():
    network, (x, y) = module(), records()
    options = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5}
    spent = []
    for steps in (5, 3):
        gradients = PrivateGradients(network, **options, rng=Reproducible(steps))
        for batch in gradients.batches(x, y, steps=steps):
            gradients.backward(losses(network, *batch))
        gradients.close()
        spent.append(gradients)
    first, second = spent
    second.restore(first.state())  # it has seen the same records three times already
    assert (len(second.events), second.steps) == (8, 5)
    second.restore(first.state())
    assert len(second.events) == 8, "a state that is known already brings nothing"
    first.restore(second.state())
    assert len(first.events) >= 8


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_batch_of_a_loader_is_a_step_like_any_other(workers):
    network, (x, y) = module(), records(50)
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.02)
    sampler = PoissonSampler(50, 0.02, 30, Reproducible(2))
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler, num_workers=workers)
    sizes = []
    for bx, by in gradients.load(loader):
        sizes.append(len(bx))
        assert bx.shape[1:] == (4,)
        gradients.backward(losses(network, bx, by))
    assert 0 in sizes
    assert gradients.steps == 30
    assert loader.collate_fn.__module__.startswith("torch")  # the loader is as it was


def test_records_in_dictionaries_may_come_from_a_loader():
    network, (x, y) = module(), records()
    gradients = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.1)
    dataset = [{"x": one, "y": label} for one, label in zip(x, y, strict=True)]
    loader = DataLoader(dataset, batch_sampler=PoissonSampler(12, 0.1, 20, Reproducible(2)))
    for batch in gradients.load(loader):
        gradients.backward(losses(network, batch["x"], batch["y"]))
    assert gradients.steps == 20


def test_half_precision_parameters_get_gradients_of_their_type():
    network, (x, y) = module().bfloat16(), records()
    gradients = PrivateGradients(
        network, max_grad_norm=0.5, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
    )
    for bx, by in gradients.batches(x, y, steps=1):
        gradients.backward(functional.cross_entropy(network(bx.bfloat16()).float(), by, reduction="none"))
    total = torch.cat([parameter.grad.float().flatten() for parameter in network.parameters()])
    assert all(parameter.grad.dtype == torch.bfloat16 for parameter in network.parameters())
    expected = torch.cat([part.flatten() for part in clipped_sum(network.float(), x, y, 0.5)]) / 12
    torch.testing.assert_close(total, expected, rtol=0.1, atol=0.02 * float(expected.norm()))


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, inputs):
        return self.factor * inputs


def test_a_rule_of_the_users_own_is_used(agree):
    used = []

    @register_rule(Scale)
    def scale_rule(layer, inputs, errors):
        used.append(layer)
        return {"factor": inputs * errors}

    torch.manual_seed(0)
    agree(nn.Sequential(nn.Linear(4, 3), Scale(3), nn.Linear(3, 2)), torch.randn(5, 4))
    assert len(used) == 1
    check_rule(Scale(3), torch.randn(5, 3))


def test_a_rule_that_is_wrong_or_leaves_a_parameter_out_is_found_by_the_check():
    class Shifted(Scale):
        def __init__(self, width):
            super().__init__(width)
            self.shift = nn.Parameter(torch.zeros(width))

        def forward(self, inputs):
            return self.factor * inputs + self.shift

    register_rule(Shifted)(lambda layer, inputs, errors: {"factor": inputs * errors})
    with pytest.raises(UnsupportedError, match="no gradient for shift"):
        check_rule(Shifted(3), torch.randn(5, 3))
    register_rule(Shifted)(lambda layer, inputs, errors: {"factor": 2 * inputs * errors, "shift": errors})
    with pytest.raises(UnsupportedError, match="does not fit"):
        check_rule(Shifted(3), torch.randn(5, 3))
    register_rule(Shifted)(lambda layer, inputs, errors: {"factor": inputs * errors, "shift": errors})
    check_rule(Shifted(3), torch.randn(5, 3))


def test_another_default_type_changes_nothing():
    network, (x, y) = module(), records()
    torch.set_default_dtype(torch.float64)
    try:
        gradients = PrivateGradients(
            network, max_grad_norm=0.5, noise_multiplier=QUIET, sample_rate=1.0, rng=Reproducible(0)
        )
        for batch in gradients.batches(x, y, steps=1):
            gradients.backward(losses(network, *batch))
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter, expected in zip(network.parameters(), clipped_sum(network, x, y, 0.5), strict=True):
        torch.testing.assert_close(parameter.grad, expected / 12, rtol=1e-4, atol=1e-6)


def test_sums_of_clipped_gradients_have_full_precision_whatever_the_user_has_set(monkeypatch):
    found = []

    def noted(self, *args):
        found.append(torch.backends.mkldnn.matmul.fp32_precision)
        return own(self, *args)

    own = RecordGradients.clipped_vector
    monkeypatch.setattr(RecordGradients, "clipped_vector", noted)
    before = torch.get_float32_matmul_precision()
    network = nn.Linear(4, 2)
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))
    try:
        torch.set_float32_matmul_precision("medium")
        for (records,) in engine.batches(torch.randn(10, 4), steps=2):
            engine.backward(network(records).square().sum(1))
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(found) >= 2
    assert set(found) == {"ieee"}

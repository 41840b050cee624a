"""Gradients with correlated noise: who takes part when, what noise is added, what is charged."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from noiseproof.audits import audit
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.methods.common import proven_game
from noiseproof.privacy import Budget, Reproducible, Secure, accountants, calibration
from noiseproof.privacy.events import GaussianDpEvent, PoissonSampledDpEvent
from noiseproof.privacy.factorization import Participation
from noiseproof.privacy.strategies import strategy

QUIET = 1e-9


def linear(width=3):
    module = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


def engine(module, plan, *, noise_multiplier=QUIET, sample_rate=1.0, rng=None):
    return CorrelatedGradients(
        module,
        plan,
        max_grad_norm=1.0,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        rng=rng or Reproducible(0),
    )


def visits(gradients, records, steps):
    """The records of each step."""
    seen = []
    numbers = torch.arange(records)
    for x, index in gradients.batches(torch.ones(records, 3), numbers, steps=steps):
        seen.append(index.tolist())
        gradients.backward(gradients._engine.module(x)[:, 0] if len(x) else None)
    return seen


@pytest.mark.parametrize("sample_rate", [1.0, 0.4])
def test_no_record_takes_part_more_often_or_closer_together_than_the_strategy_is_for(sample_rate):
    plan = strategy("toeplitz", Participation(12, 3, 4))
    seen = visits(engine(linear(), plan, sample_rate=sample_rate), 50, 12)
    steps = [[step for step, batch in enumerate(seen) if record in batch] for record in range(50)]
    assert all(len(mine) <= 3 for mine in steps)
    assert all(later - earlier >= 4 for mine in steps for earlier, later in itertools.pairwise(mine))
    if sample_rate == 1:
        assert all(len(mine) == 3 for mine in steps)
    else:
        assert 0 < sum(map(len, steps)) < 150


@pytest.mark.parametrize("sample_rate", [1.0, 0.5])
def test_no_person_takes_part_more_often_or_closer_together_than_the_strategy_is_for(sample_rate):
    gradients = engine(linear(), strategy("banded", Participation(24, 4, 6)), sample_rate=sample_rate)
    groups = torch.arange(60) % 20
    steps = {person: [] for person in range(20)}
    for step, (x, whose) in enumerate(gradients.batches(torch.ones(60, 3), groups, steps=24, groups=groups)):
        for person in whose.unique().tolist():
            steps[person].append(step)
        gradients.backward(gradients.module(x)[:, 0] if len(x) else None)
    assert gradients.steps == 24
    assert any(steps.values())
    for taken in steps.values():
        assert len(taken) <= 4
        assert all(later - earlier >= 6 for earlier, later in itertools.pairwise(taken))
    assert "each person at most 4 times" in gradients.facts["sampler"]


def test_a_persons_gradient_is_clipped_as_one():
    module = linear()
    gradients = engine(module, strategy("banded", Participation(2, 2, 1)))
    x, groups = torch.full((5, 3), 100.0), torch.tensor([0, 0, 0, 1, 1])
    for (batch,) in gradients.batches(x, steps=1, groups=groups):
        gradients.backward(module(batch)[:, 0])
    assert float(module.weight.grad.norm()) == pytest.approx(1.0, rel=1e-4)  # two persons, each of norm 1, over two
    with pytest.raises(SettingError, match="visited as one"):
        CorrelatedGradients(
            linear(), strategy("tree", Participation(2)), max_grad_norm=1.0, noise_multiplier=1.0, group_size=2
        )


def test_a_step_without_noise_is_the_sum_of_its_records_over_a_public_constant():
    plan = strategy("banded", Participation(8, 2, 4))
    module = linear()
    gradients = engine(module, plan)
    for x, index in gradients.batches(torch.eye(3).repeat(10, 1), torch.arange(30), steps=8):
        gradients.backward(module(x)[:, 0] if len(x) else None)
        expected = torch.bincount(index % 3, minlength=3) / (30 / 4)
        assert module.weight.grad[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rng", [Reproducible(3), Secure()])
@pytest.mark.parametrize("name", ["toeplitz", "buffered", "tree"])
def test_iterates_have_the_strategys_noise(rng, name):
    """Mean squares of 20,000 coordinates within 6 standard errors of the law's: false alarms below 1e-7 for each step."""
    width, steps = 20_000, 6
    plan = strategy(name, Participation(steps, 2, 3), buffers=2)
    module = linear(width)
    gradients = engine(module, plan, noise_multiplier=2.0, rng=rng)
    gradients.expected_batch = 1.0
    total, seen = torch.zeros(width), []
    for (x,) in gradients.batches(torch.zeros(2, width), steps=steps):
        gradients.backward(module(x)[:, 0] if len(x) else None)
        total += module.weight.grad[0]
        seen.append(float(total.double().square().mean()))
    expected = plan.variances() * (2.0 * plan.sensitivity) ** 2
    assert np.array(seen) == pytest.approx(expected, rel=6 * math.sqrt(2 / width))


@pytest.mark.parametrize("rng", [Reproducible(3), Secure()])
@pytest.mark.parametrize("name", ["toeplitz", "banded", "dense", "buffered"])
def test_the_noise_of_all_steps_has_the_strategys_covariance(rng, name):
    """Each of 21 entries over 20,000 coordinates lies within 6 standard errors: false alarms below 1e-7 a test."""
    width, steps = 20_000, 6
    plan = strategy(name, Participation(steps, 2, 3, fixed=True), buffers=2)
    module = linear(width)
    gradients = engine(module, plan, noise_multiplier=2.0, rng=rng)
    gradients.expected_batch = 1.0
    released = []
    for (x,) in gradients.batches(torch.zeros(2, width), steps=steps):
        gradients.backward(module(x)[:, 0] if len(x) else None)
        released.append(module.weight.grad[0].double().clone())
    seen = torch.stack(released) @ torch.stack(released).T / width
    inverse = np.linalg.inv(plan.matrix()) * 2.0 * plan.sensitivity
    expected = inverse @ inverse.T
    spread = np.sqrt((np.outer(np.diagonal(expected), np.diagonal(expected)) + expected**2) / width)
    assert (np.abs(seen.numpy() - expected) < 6 * spread).all()
    assert (np.abs(expected - np.diag(np.diagonal(expected))) > 12 * spread).any()  # independent noise would be found


def test_the_whole_training_is_charged_before_its_first_step():
    plan = strategy("toeplitz", Participation(12, 3, 4))
    gradients = engine(linear(), plan, noise_multiplier=1.3)
    batches = gradients.batches(torch.ones(20, 3), steps=12)
    (x,) = next(batches)
    gradients.backward(gradients._engine.module(x)[:, 0] if len(x) else None)
    whole = accountants.epsilon(GaussianDpEvent(1.3), 1e-5).epsilon
    assert gradients.epsilon(1e-5) == pytest.approx(whole)
    batches.close()
    visits(gradients, 20, 11)
    assert gradients.epsilon(1e-5) == pytest.approx(whole)


def test_with_sampling_every_round_is_a_sampled_mechanism():
    plan = strategy("toeplitz", Participation(10, 3, 4))
    gradients = engine(linear(), plan, noise_multiplier=1.3, sample_rate=0.25)
    visits(gradients, 40, 10)
    sampled = [count for event, count in gradients.events.runs if isinstance(event, PoissonSampledDpEvent)]
    assert sum(sampled) == 3
    assert len(gradients.events) == 10


def test_noise_with_sampling_is_that_of_one_participation():
    plan = strategy("toeplitz", Participation(8, 2, 4))
    assert plan.largest_column < plan.sensitivity
    width = 20_000
    module = linear(width)
    gradients = engine(module, plan, noise_multiplier=2.0, sample_rate=0.5)
    gradients.expected_batch = 1.0
    for (x,) in gradients.batches(torch.zeros(2, width), steps=8):
        gradients.backward(module(x)[:, 0] if len(x) else None)
        break
    # 6 standard errors: false alarms below 1e-7.
    first = float(module.weight.grad.double().square().mean())
    assert first == pytest.approx((2 * plan.largest_column) ** 2, rel=6 * math.sqrt(2 / width))


@pytest.mark.parametrize("name", ["banded", "buffered", "tree"])
def test_a_training_goes_on_from_its_state_as_if_it_had_not_stopped(name):
    plan = strategy(name, Participation(8, 2, 4), buffers=2)
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(40)

    def run(stop):
        module = linear()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        gradients = engine(module, plan, noise_multiplier=1.0, rng=Reproducible(7))
        taken = 0
        while taken < 8:
            for batch, target in gradients.batches(x, y, steps=8 - taken):
                losses = functional.mse_loss(module(batch)[:, 0], target, reduction="none") if len(batch) else None
                gradients.backward(losses)
                optimizer.step()
                taken += 1
                if taken == stop:
                    break
            if taken == stop:
                stop = None
                state, random = copy.deepcopy(gradients.state()), gradients.randomness[0].state()
                gradients.close()
                rng = Reproducible(7)
                rng.restore(random)
                gradients = engine(module, plan, noise_multiplier=1.0, rng=rng)
                gradients.restore(state)
        return module.weight.detach().clone(), gradients.epsilon(1e-5)

    (whole, spent), (resumed, again) = run(None), run(3)
    assert torch.equal(whole, resumed)
    assert spent == again


def test_steps_that_were_lost_are_not_taken_again():
    plan = strategy("toeplitz", Participation(8, 2, 4))
    gradients = engine(linear(), plan, noise_multiplier=1.0)
    before = visits(gradients, 30, 2)
    state = copy.deepcopy(gradients.state())
    lost = visits(gradients, 30, 3)
    gradients.restore(state)  # what this object has spent stays spent
    rest = visits(gradients, 30, 3)
    assert rest == [before[1], *lost[:2]]  # steps 5 to 7 visit the places of steps 1 to 3
    with pytest.raises(NoiseproofError, match="all 8 steps of the strategy"):
        visits(gradients, 30, 1)


def test_a_tree_that_lost_steps_does_not_go_on():
    gradients = engine(linear(), strategy("tree", Participation(8, 2, 4)), noise_multiplier=1.0)
    visits(gradients, 30, 1)
    state = copy.deepcopy(gradients.state())
    visits(gradients, 30, 2)
    gradients.restore(state)
    with pytest.raises(UnsupportedError, match="take another strategy"):
        visits(gradients, 30, 1)


def test_sampling_without_a_proof_is_refused():
    with pytest.raises(SettingError, match="sampling is accounted for with banded strategies"):
        engine(linear(), strategy("buffered", Participation(8, 2, 4)), sample_rate=0.5)


def test_more_visits_than_the_strategy_is_for_are_refused():
    gradients = engine(linear(), strategy("toeplitz", Participation(8, 1, 4)))
    with pytest.raises(SettingError, match="visits in 8 steps"):
        next(gradients.batches(torch.ones(5, 3), steps=8))


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3,), float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return iter((index, torch.ones(3)) for index in range(24))


def in_own_order(gradients, loader, **options):
    for batch in gradients.load(loader, **options):
        x = batch if isinstance(batch, torch.Tensor) else batch[1]
        gradients.backward(gradients.module(x)[:, 0])


def test_a_loader_may_keep_its_own_order():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    for _ in range(2):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4, num_workers=0))
    assert gradients.steps == 12
    once = accountants.epsilon(GaussianDpEvent(1.0), 1e-5, neighbours="replace-one").epsilon
    assert gradients.epsilon(1e-5, neighbours="replace-one") == pytest.approx(once)
    with pytest.raises(SettingError, match="replace-one"):
        gradients.epsilon(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["banded", "dense"])
def test_an_audit_of_a_loaders_own_order_stays_below_the_proof(name):
    """One record of a loader is another one, at both of its visits; all releases, weighted as tells most."""
    plan = strategy(name, Participation(4, 2, 2, fixed=True))
    matrix = torch.from_numpy(plan.matrix())
    weights = matrix[:, [0, 2]].sum(1) @ matrix
    budget = Budget(3.0, 1e-5, "replace-one")
    sigma = calibration.sigma(3.0, 1e-5, 1.0, 1, neighbours="replace-one").sigma

    def play(world, trials, generator):
        records = torch.zeros(4, 3)
        records[0, 0] = 1e3 if world else -1e3
        loader, scores = DataLoader(records, batch_size=2), []
        for seed in torch.randint(2**62, (trials,), generator=generator).tolist():
            gradients = engine(linear(), plan, noise_multiplier=sigma, rng=Reproducible(seed))
            gradients.expected_batch, released = 1.0, []
            for _ in range(2):
                for x in gradients.load(loader):
                    gradients.backward(gradients.module(x)[:, 0])
                    released.append(float(gradients.module.weight.grad[0, 0]))
            scores.append(float(weights @ torch.tensor(released, dtype=torch.float64)))
            gradients.close()
        return torch.tensor(scores, dtype=torch.float64)

    proof = accountants.epsilon(GaussianDpEvent(sigma), 1e-5, neighbours="replace-one").proof()
    found = audit(proven_game("own order", play, budget, proof, gaussian=True), trials=1000, confidence=1 - 1e-6)
    assert 1 < found.epsilon <= 3


def test_a_record_that_comes_too_early_is_refused_before_anything_is_released():
    module = linear()
    gradients = engine(module, strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    in_own_order(gradients, DataLoader(Numbers(), batch_size=4))
    module.weight.grad = None
    with pytest.raises(NoiseproofError, match="another order than in the first epoch"):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4, sampler=range(23, -1, -1)))
    assert module.weight.grad is None
    assert gradients.steps == 6


def test_a_record_that_comes_too_often_is_refused():
    gradients = engine(linear(), strategy("banded", Participation(18, 2, 6)), noise_multiplier=1.0)
    for _ in range(2):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4))
    with pytest.raises(NoiseproofError, match="more than 2 times"):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4))


def test_a_record_twice_in_a_batch_is_refused():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    with pytest.raises(NoiseproofError, match="came again"):
        in_own_order(gradients, DataLoader(Numbers(), batch_sampler=[[1, 1]]))


def test_an_epoch_that_was_left_goes_on_where_it_was():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    loader, seen = DataLoader(Numbers(), batch_size=4), []
    for most in (2, 12, 3, 12):
        for batch in itertools.islice(gradients.load(loader), most):
            seen.append(int(batch[0, 0]))
            gradients.backward(gradients.module(batch)[:, 0])
    assert seen == [0, 4, 8, 12, 16, 20] * 2


def test_a_shuffle_that_changes_is_refused_with_the_first_record_out_of_its_order():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))
    in_own_order(gradients, loader)
    with pytest.raises(NoiseproofError, match="shuffle=False, or one fixed shuffle"):
        in_own_order(gradients, loader)
    assert gradients.steps == 6


def test_one_fixed_shuffle_is_an_order():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    for _ in range(2):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4, sampler=order))
    assert gradients.steps == 12


def test_an_epoch_shorter_than_the_separation_is_refused():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    with pytest.raises(NoiseproofError, match="fewer than 6 steps"):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=8))


def test_a_strategy_for_one_fixed_order_refuses_epochs_of_another_length_and_records_at_another_place():
    plan = strategy("dense", Participation(12, 2, 6, fixed=True))
    gradients = engine(linear(), plan, noise_multiplier=1.0)
    with pytest.raises(NoiseproofError, match="for epochs of 6 batches"):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=3))
    options = {"ids": lambda batch: batch[0], "records": 24}
    in_own_order(gradients, DataLoader(Stream(), batch_size=4), **options)
    gradients.visits.last -= 1  # as if all had come one step earlier
    with pytest.raises(NoiseproofError, match="another place in its epoch"):
        in_own_order(gradients, DataLoader(Stream(), batch_size=4), **options)
    assert gradients.steps == 6


def test_a_state_that_is_resumed_twice_visits_nobody_early_and_ends_with_the_strategy():
    """What a first resumption has charged is left out by the second, which goes on after it in the same order."""
    plan = strategy("banded", Participation(12, 2, 6))
    loader, gradients = DataLoader(Numbers(), batch_size=4), engine(linear(), plan, noise_multiplier=1.0)

    def some(steps):
        seen = []
        for batch in itertools.islice(gradients.load(loader), steps):
            seen.append(int(batch[0, 0]))
            gradients.backward(gradients.module(batch)[:, 0])
        return seen

    assert some(2) == [0, 4]
    state = copy.deepcopy(gradients.state())
    assert some(3) == [8, 12, 16]
    gradients.restore(state)
    assert some(3) == [20]
    assert some(6) == [0, 4, 8, 12, 16, 20]
    gradients.restore(state)
    with pytest.raises(NoiseproofError, match="more than 2 times"):
        some(1)


def test_streamed_records_after_a_state_resumed_twice_are_refused():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    stream, options = DataLoader(Stream(), batch_size=4), {"ids": lambda batch: batch[0], "records": 24}
    for batch in itertools.islice(gradients.load(stream, **options), 2):
        gradients.backward(gradients.module(batch[1])[:, 0])
    state = copy.deepcopy(gradients.state())
    for batch in itertools.islice(gradients.load(DataLoader(list(Stream())[8:], batch_size=4), **options), 2):
        gradients.backward(gradients.module(batch[1])[:, 0])
    gradients.restore(state)
    with pytest.raises(NoiseproofError, match="go on from the newest checkpoint"):
        in_own_order(gradients, stream, **options)


def test_streamed_records_are_told_apart_by_their_ids():
    gradients = engine(linear(), strategy("buffered", Participation(12, 2, 6)), noise_multiplier=1.0)
    loader = DataLoader(Stream(), batch_size=4)
    with pytest.raises(SettingError, match="give `ids`"):
        in_own_order(gradients, loader)
    in_own_order(gradients, loader, ids=lambda batch: batch[0], records=24)
    in_own_order(gradients, loader, ids=lambda batch: batch[0], records=24)
    with pytest.raises(NoiseproofError, match="more than 2 times"):
        in_own_order(gradients, loader, ids=lambda batch: batch[0], records=24)


def test_going_back_to_a_state_does_not_make_anybody_due_again():
    gradients = engine(linear(), strategy("banded", Participation(12, 2, 6)), noise_multiplier=1.0)
    state = copy.deepcopy(gradients.state())
    in_own_order(gradients, DataLoader(Numbers(), batch_size=4))
    gradients.restore(state)
    with pytest.raises(NoiseproofError, match="another order than in the first epoch"):
        in_own_order(gradients, DataLoader(Numbers(), batch_size=4, sampler=range(23, -1, -1)))

"""Stacks of networks come out the same wherever they are trained."""

from __future__ import annotations

import pytest
import torch

from noiseproof.networks import Network, Training, fit_stack
from noiseproof.networks.fitting import fit_stacks
from noiseproof.parallel.tasks import WITHIN, Placement, placed

NETWORK = Network("mlp", (6,), 3, {"hidden": 5})
TRAINING = Training(epochs=3, batch_size=10)
SEEDS = list(range(6))


def records():
    generator = torch.Generator().manual_seed(0)
    members = [torch.randperm(50, generator=generator)[:20] for _ in SEEDS]
    return torch.rand(50, 6, generator=generator), torch.randint(3, (50,), generator=generator), members


def weights(stack):
    return torch.cat([value.flatten(1) for value in stack.parameters.values()], dim=1)


def test_outside_a_placed_block_and_within_a_task_all_are_one_stack():
    one = weights(fit_stack(NETWORK, *records(), TRAINING, seeds=SEEDS))
    assert torch.equal(weights(fit_stacks(NETWORK, *records(), TRAINING, seeds=SEEDS)), one)
    with placed(WITHIN):
        assert torch.equal(weights(fit_stacks(NETWORK, *records(), TRAINING, seeds=SEEDS)), one)


def test_stacks_of_four_are_the_networks_of_one_stack_but_for_rounding():
    one = weights(fit_stack(NETWORK, *records(), TRAINING, seeds=SEEDS))
    with placed(Placement(jobs=1)):
        placed_here = weights(fit_stacks(NETWORK, *records(), TRAINING, seeds=SEEDS))
    torch.testing.assert_close(placed_here, one, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter():
    with placed(Placement(jobs=1)):
        one = weights(fit_stacks(NETWORK, *records(), TRAINING, seeds=SEEDS))
    with placed(Placement(jobs=2)):
        two = weights(fit_stacks(NETWORK, *records(), TRAINING, seeds=SEEDS))
    assert torch.equal(one, two)

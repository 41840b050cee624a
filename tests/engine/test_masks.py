"""What a loop of the user's own draws from torch's generator comes from the run's randomness."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import PrivateGradients
from noiseproof.privacy import Reproducible, Secure


class Dropping(nn.Module):
    """Keeps the masks that it has drawn."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.layer, self.rate, self.seen = nn.Linear(40, 2), rate, []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        dropped = F.dropout(inputs, self.rate) if self.rate else inputs
        mask = dropped.detach() != 0
        if not self.rate or not mask.all():  # a few records are also run by themselves, without dropout
            self.seen.append(mask)
        return self.layer(dropped)


def masks(rng, steps: int = 6, rate: float = 0.5) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The masks of a training with torch's generator at a known seed, and what that generator gives afterwards."""
    torch.manual_seed(0)
    network = Dropping(rate)
    torch.manual_seed(1)
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=rng)
    for (inputs,) in engine.batches(torch.ones(3, 40), steps=steps):
        engine.backward(network(inputs).sum(1))
    return network.seen, torch.rand(3)


def test_masks_do_not_come_from_torchs_own_seed():
    (first, _), (second, _) = masks(Secure()), masks(Secure())
    assert all(not torch.equal(left, right) for left, right in zip(first, second, strict=True))
    assert len({tuple(mask.flatten().tolist()) for mask in first}) == 6


def test_masks_of_a_reproducible_run_are_reproducible():
    (first, _), (second, _), (other, _) = masks(Reproducible(0)), masks(Reproducible(0)), masks(Reproducible(1))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
    assert not torch.equal(first[5], other[5])


def test_torchs_generator_goes_on_as_if_nothing_had_been_drawn():
    torch.manual_seed(1)
    expected = torch.rand(3)
    assert torch.equal(masks(Secure())[1], expected)
    assert torch.equal(masks(Secure(), rate=0.0)[1], expected)

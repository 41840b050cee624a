"""Numbers of each record and step: from a key of 256 bits, the same whoever else is there, with dropout's law."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from noiseproof.networks.dropout import RecordRandomness
from noiseproof.privacy import Reproducible, Secure
from noiseproof.tensors import generator_state


def drawn(module, records, step=0, rng=None, inputs=None, rank=0):
    random = RecordRandomness(rng or Reproducible(1), module, rank)
    records = torch.tensor(records)
    with random.installed():
        random.begin(step, records)
        return module(torch.ones(len(records), *inputs) if inputs else torch.ones(len(records), 50)), random.words(4)


class Own(nn.Module):
    """A network with weights, so that it has a device."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.weight = layer, nn.Parameter(torch.ones(1))

    def forward(self, values):
        return self.layer(values) * self.weight


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.Dropout2d(0.3)])
def test_masks_belong_to_the_record_and_the_step(layer):
    module, inputs = Own(layer).train(), (20, 3, 3)
    together, words = drawn(module, [4, 7, 9], inputs=inputs)
    alone, own = drawn(module, [7], inputs=inputs)
    assert torch.equal(together[1:2], alone)
    assert torch.equal(words[1:2], own)
    for other in (drawn(module, [7], step=1, inputs=inputs), drawn(module, [7], rank=1, inputs=inputs)):
        assert not torch.equal(other[0], alone)
        assert not torch.equal(other[1], own)
    if isinstance(layer, nn.Dropout2d):
        assert torch.equal(alone.amax((2, 3)), alone.amin((2, 3)))


def test_dropout_keeps_its_law():
    # 200,000 coins of probability 0.3 stray by more than 5 standard deviations once in 1.7 million draws of another key.
    module = Own(nn.Dropout(0.3)).train()
    values, _ = drawn(module, list(range(4000)))
    dropped = float((values == 0).double().mean())
    assert abs(dropped - 0.3) < 5 * (0.21 / 200_000) ** 0.5
    assert torch.equal(values[values != 0], torch.tensor(1 / 0.7).expand(int((values != 0).sum())))
    assert torch.equal(drawn(module.eval(), [1])[0], torch.ones(1, 50))


def test_functional_dropout_draws_from_a_state_that_no_seed_gives():
    class Functional(Own):
        def forward(self, values):
            return nn.functional.dropout(values, 0.5, self.training) * self.weight

    module = Functional(None).train()
    before = torch.get_rng_state()
    values = drawn(module, [1, 2])[0]
    assert torch.equal(values, drawn(module, [1, 2])[0])
    assert not torch.equal(values, drawn(module, [1, 2], rng=Reproducible(2))[0])
    assert not torch.equal(values, drawn(module, [1, 2], step=3)[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_every_bit_of_a_generators_state_counts():
    drawn = []
    for last in (623, 623 ^ 1 << 31):
        state, words = generator_state()
        words[:] = [*range(623), last]
        generator = torch.Generator()
        generator.set_state(state)
        drawn.append(torch.rand(1000, generator=generator))
    assert not torch.equal(*drawn)


def test_a_secure_runs_key_has_256_bits_of_the_systems_entropy(monkeypatch):
    asked = []

    def entropy(count):
        asked.append(count)
        return os.urandom(count)

    rng = Secure()
    monkeypatch.setattr(Secure, "spawn", lambda self, key: rng)
    monkeypatch.setattr(rng, "_entropy", entropy)
    random = RecordRandomness(rng, Own(nn.Dropout()))
    assert asked == [32]
    assert len(random._key) == 32
    assert RecordRandomness(Secure(), Own(nn.Dropout()))._key != random._key


def test_a_secure_runs_generator_has_more_states_than_can_be_tried():
    """A seed leaves torch 32 bits; what is drawn must not be what any seed gives."""
    state = Secure().generator.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    seeded = torch.Generator().manual_seed(int(state[0])).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert state[0] == seeded[0]
    assert (state != seeded).sum() > 600  # words agree by chance once in 2^32

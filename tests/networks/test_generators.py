"""Generators and discriminators fit records of every shape."""

from __future__ import annotations

import pytest
import torch

from noiseproof.networks.generators import (
    ConvDiscriminator,
    ConvGenerator,
    DenseDiscriminator,
    DenseGenerator,
    TableGenerator,
)

LABELS = torch.arange(6) % 3


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 17, 30)])
def test_pictures_of_any_size_are_generated_and_judged(shape):
    pictures = ConvGenerator(shape, 3)(torch.randn(6, 100), LABELS).detach()
    assert pictures.shape == (6, *shape)
    assert 0 <= float(pictures.min()) <= float(pictures.max()) <= 1
    assert ConvDiscriminator(shape, 3)(pictures, LABELS).shape == (6,)
    assert DenseDiscriminator(shape, 3)(pictures, LABELS).shape == (6,)


def test_the_papers_dense_pair_has_its_layers():
    generator, discriminator = DenseGenerator((784,), 10), DenseDiscriminator((784,), 10)
    widths = [layer.out_features for layer in generator.layers if isinstance(layer, torch.nn.Linear)]
    assert widths == [256, 256, 784]
    assert [layer.out_features for layer in discriminator.layers if isinstance(layer, torch.nn.Linear)] == [256, 256, 1]


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_every_column_of_a_table_is_a_distribution(temperature):
    records = TableGenerator((2, 5), 3, temperature=temperature)(torch.randn(6, 100), LABELS)
    for part in records.split([2, 5], dim=1):
        torch.testing.assert_close(part.sum(1), torch.ones(6))


def test_a_record_of_a_table_is_judged_as_a_square_matrix():
    judge = ConvDiscriminator((222,), 2)
    assert judge.side == 15
    assert judge(torch.rand(6, 222), LABELS % 2).shape == (6,)


def test_what_is_generated_depends_on_the_label():
    generator = DenseGenerator((4,), 2)
    noise = torch.randn(1, 100).expand(2, -1)
    first, second = generator(noise, torch.tensor([0, 1]))
    assert not torch.equal(first, second)

"""Public features have norm at most 1, and means by matrix products are means of records."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from noiseproof.data.dataset import Column, Public
from noiseproof.errors import SettingError
from noiseproof.methods.losses.coding import Coding
from noiseproof.methods.losses.critics import Fourier, LinearCritic, LowFrequencies, features_for
from noiseproof.methods.losses.zero_gan import directions
from noiseproof.privacy import Reproducible


def test_a_whole_record_of_a_table_has_norm_one_and_one_with_gaps_less(table):
    coding = Coding(table.public)
    features = features_for(coding)
    coded = coding.encode(table.features[:50])
    norms = features(coded).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(50))
    coded[0, : coding.sizes[0]] = 0
    assert float(features(coded[:1]).norm()) < 1


def test_fourier_features_have_norm_one(pictures):
    features = features_for(Coding(pictures.public), width=64)
    assert isinstance(features, Fourier)
    torch.testing.assert_close(features(pictures.features).norm(dim=1), torch.ones(len(pictures)))


@pytest.mark.parametrize("pairs", [True, False])
def test_means_of_marginals_are_the_mean_over_records(table, pairs):
    coding = Coding(table.public)
    features = features_for(coding, pairs=pairs)
    records, labels = coding.encode(table.features[:100]), functional.one_hot(table.labels[:100], 2).float()
    torch.testing.assert_close(features.means(records, labels), labels.T @ features(records) / 100)


def test_the_gradient_of_a_real_record_is_minus_its_features_in_the_row_of_its_label(table):
    coding = Coding(table.public)
    critic = LinearCritic(features_for(coding), 2)
    record, label = coding.encode(table.features[:1]), table.labels[:1]
    (-critic(record, label)).sum().backward()
    gradient = critic.weights.weight.grad
    torch.testing.assert_close(gradient[label[0]], -critic.features(record)[0])
    assert float(gradient[1 - label[0]].abs().sum()) == 0


def test_pairs_beyond_what_a_critic_can_hold_are_refused():
    columns = tuple(Column(name, categories=tuple(map(str, range(1500)))) for name in "ab")
    public = Public(shape=(3000,), classes=("a", "b"), kind="table", columns=columns, target="y")
    with pytest.raises(SettingError, match="2250000 pairs"):
        features_for(Coding(public))
    assert features_for(Coding(public), pairs=False).width == 3000


def test_low_frequencies_have_norm_at_most_one_and_hold_smooth_pictures_whole():
    features = LowFrequencies((1, 8, 8))
    assert features.width == 28
    generator = torch.Generator().manual_seed(0)
    corners = (torch.rand(500, 1, 8, 8, generator=generator) > 0.5).float()
    assert float(features(corners).norm(dim=1).max()) <= 1
    torch.testing.assert_close(features(torch.ones(1, 1, 8, 8)).norm(), torch.tensor(1.0))
    assert LowFrequencies((3, 8, 8))(torch.rand(2, 3, 8, 8)).shape == (2, 84)


def test_directions_are_orthogonal_until_there_are_no_more_and_as_long_as_normal_ones():
    looks = directions(torch.Size((2, 5)), Reproducible(0))
    block = torch.stack([next(looks).flatten() for _ in range(10)])
    torch.testing.assert_close(block @ block.T, 10 * torch.eye(10), atol=1e-4, rtol=0)
    assert next(looks).shape == (2, 5)

"""Private k-means finds clusters when the budget is large, and its noise is what its epsilon says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2

from noiseproof.errors import SettingError
from noiseproof.guarantees import Reproducible
from noiseproof.parameters import kmeans as module
from noiseproof.parameters.kmeans import private_kmeans


@pytest.fixture(scope="module")
def values():
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(500, generator=generator) * 0.02 + place for place in (-0.8, -0.3, 0.1, 0.7)])


def test_with_next_to_no_noise_it_is_lloyds_algorithm(values):
    found = private_kmeans(values, 4, 1e9, 1.0, Reproducible(0), rounds=20)
    start = np.array([[-0.75], [-0.25], [0.25], [0.75]])
    centres, labels = kmeans2(values.double().numpy()[:, None], start, iter=20, minit="matrix")
    assert found.centres.numpy() == pytest.approx(centres[:, 0], abs=1e-6)
    assert np.array_equal(found.cluster.numpy(), labels)


def test_at_a_real_epsilon_it_still_finds_the_clusters(values):
    found = private_kmeans(values, 4, 1.0, 1.0, Reproducible(1))
    assert found.centres.tolist() == pytest.approx([-0.8, -0.3, 0.1, 0.7], abs=0.1)


def test_every_value_is_in_the_cluster_of_its_nearest_centre(values):
    found = private_kmeans(values, 6, 0.1, 1.0, Reproducible(2))
    nearest = (values.double()[:, None] - found.centres).abs().argmin(1)
    distance = (values.double() - found.centres[found.cluster]).abs()
    assert torch.allclose(distance, (values.double() - found.centres[nearest]).abs())
    assert bool((found.centres.diff() >= 0).all())
    assert float(found.centres.abs().max()) <= 1.0


def test_all_of_epsilon_is_spent_on_counts_and_sums_of_sensitivity_one(values, monkeypatch):
    made = []
    plain = module.Laplace

    def watched(sensitivity, epsilon):
        made.append((sensitivity, epsilon))
        return plain(sensitivity, epsilon)

    monkeypatch.setattr(module, "Laplace", watched)
    private_kmeans(values, 4, 2.0, 1.0, Reproducible(0), rounds=5)
    (one, counts), (other, sums) = made
    assert one == other == 1.0
    assert 5 * (counts + sums) == pytest.approx(2.0)
    # Su et al., 4.2: the counts get (4 d rho^2)^(1/3) of what a dimension's sum gets.
    assert counts / sums == pytest.approx(0.587, abs=1e-3)


def test_values_beyond_the_bound_count_as_the_bound():
    inside = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    found = [private_kmeans(10.0**power * inside, 2, 1e9, 1.0, Reproducible(0)).centres for power in (0, 6)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1.0, 1.0), "cluster"),
        ((2, 0.0, 1.0), "epsilon"),
        ((2, 1.0, 0.0), "bound"),
        ((2, 1.0, float("nan")), "bound"),
    ],
)
def test_impossible_settings_are_refused(arguments, words):
    with pytest.raises(SettingError, match=words):
        private_kmeans(torch.zeros(3), *arguments, Reproducible(0))

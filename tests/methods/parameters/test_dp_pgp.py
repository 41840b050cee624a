"""Grouping takes each layer's largest parameters, and publishes them around themselves, or mirrored as printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2
from scipy.stats import kstest, laplace

from noiseproof.errors import SettingError
from noiseproof.methods.parameters import dp_pgp as module
from noiseproof.methods.parameters.dp_pgp import DpPgp, private_kmeans, publish_grouped, select_largest
from noiseproof.privacy import Reproducible

VALUES = torch.linspace(-1, 1, 400)


def test_the_largest_fifth_of_each_layer_is_selected(collection):
    target = collection.mean()
    selected = select_largest(target, collection.layout, 0.2)
    assert {layer: len(places) for layer, places in selected.items()} == {"0": 8, "2": 4}
    for layer, places in selected.items():
        inside = collection.layout.layers[layer]
        others = [index for index in range(inside.start, inside.stop) if index not in places.tolist()]
        assert all(inside.start <= index < inside.stop for index in places.tolist())
        assert float(target[places].abs().min()) >= float(target[others].abs().max())


def test_nothing_or_everything_can_be_selected(collection):
    target = collection.mean()
    assert sum(map(len, select_largest(target, collection.layout, 0.0).values())) == 0
    assert sum(map(len, select_largest(target, collection.layout, 1.0).values())) == 60


def test_with_next_to_no_noise_a_parameter_is_itself_or_mirrored_at_its_centre_as_printed():
    corrected = publish_grouped(VALUES, 4, 1e9, 1e9, Reproducible(0))
    assert torch.allclose(corrected, VALUES, atol=1e-6)
    printed = publish_grouped(VALUES, 4, 1e9, 1e9, Reproducible(0), as_printed=True)
    found = private_kmeans(VALUES, 4, 1e9, 1.0, Reproducible(0))
    assert torch.allclose(printed.double(), 2 * found.centres[found.cluster] - VALUES.double(), atol=1e-6)


def test_both_readings_get_the_same_noise_with_the_same_seed():
    corrected, printed = (
        publish_grouped(VALUES.double(), 4, 1.0, 1.0, Reproducible(3), as_printed=flag) for flag in (False, True)
    )
    found = private_kmeans(VALUES, 4, 1.0, 1.0, Reproducible(3))
    centres = found.centres[found.cluster]
    assert torch.allclose(corrected - VALUES.double(), printed - 2 * centres + VALUES.double(), atol=1e-9)


def test_the_noise_is_laplace_with_the_clusters_radius_over_epsilon():
    """A Kolmogorov-Smirnov test over 40,000 values; false alarm 1e-7."""
    values = 2 * torch.rand(40_000, generator=torch.Generator().manual_seed(0)).double() - 1
    published = publish_grouped(values, 3, 1e6, 2.0, Reproducible(1))
    found = private_kmeans(values, 3, 1e6, float(values.abs().max()), Reproducible(1))
    distance = (values - found.centres[found.cluster]).abs()
    radius = torch.stack([distance[found.cluster == index].max() for index in range(3)])
    noise = (published - values) / (radius[found.cluster] / 2.0)
    assert kstest(noise.numpy(), laplace.cdf).pvalue > 1e-7
    assert np.isfinite(noise.numpy()).all()


def test_a_layer_of_zeros_stays_as_it_is():
    assert torch.equal(publish_grouped(torch.zeros(5), 8, 1.0, 1.0, Reproducible(0)), torch.zeros(5))
    assert len(publish_grouped(torch.zeros(0), 8, 1.0, 1.0, Reproducible(0))) == 0


@pytest.mark.parametrize(("settings", "words"), [({"gamma": 1.1}, "gamma"), ({"clusters": 0}, "cluster")])
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        DpPgp(**settings)


# Private k-means finds clusters when the budget is large, and its noise is what its epsilon says.


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
def test_impossible_settings_are_refused_of_kmeans(arguments, words):
    with pytest.raises(SettingError, match=words):
        private_kmeans(torch.zeros(3), *arguments, Reproducible(0))

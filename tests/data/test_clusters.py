"""Labels by clustering."""

from __future__ import annotations

import numpy as np
import pytest

from noiseproof.data import cluster_labels
from noiseproof.errors import SettingError


def test_groups_that_lie_apart_get_a_label_each():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 200)
    features = np.eye(3)[group] * 10 + rng.normal(0, 0.1, (600, 3))
    labels = cluster_labels(features, 3)
    assert len({(one, other) for one, other in zip(group.tolist(), labels.tolist(), strict=True)}) == 3
    assert set(labels.tolist()) == {0, 1, 2}


def test_the_same_seed_gives_the_same_labels():
    features = np.random.default_rng(0).integers(0, 2, (500, 20))
    assert cluster_labels(features, 5, seed=1).tolist() == cluster_labels(features, 5, seed=1).tolist()


@pytest.mark.parametrize("k", [0, 1, 11])
def test_too_many_or_too_few_clusters_are_refused(k):
    with pytest.raises(SettingError, match="cannot be put into"):
        cluster_labels(np.zeros((10, 2)), k)

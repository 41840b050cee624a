"""Labels for records that have none, by clustering them."""

from __future__ import annotations

from typing import Any

import numpy as np

from noiseproof.errors import SettingError


def cluster_labels(features: np.ndarray[Any, Any], k: int, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One of `k` labels a record, by k-means (in mini-batches, so that large sets take seconds).

    Formal guarantee
    ----------------
    None: every label depends on all the records. Whatever is proven of a method that is trained on these labels is
    proven for the labelled records as they are, not for the clustering that labelled them.
    """
    from sklearn.cluster import MiniBatchKMeans

    if not 2 <= k <= len(features):
        raise SettingError(f"{len(features)} records cannot be put into {k} clusters.")
    # Random starts, not k-means++: that starts at outliers, and a few huge baskets would become classes of one record.
    means = MiniBatchKMeans(k, init="random", batch_size=4096, n_init=3, random_state=seed)
    labels: np.ndarray[Any, np.dtype[np.int64]] = means.fit_predict(features.astype(np.float32)).astype(np.int64)
    return labels

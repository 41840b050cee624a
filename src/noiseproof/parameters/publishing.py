"""Publishing: files of trained networks and a method in, a release with its accuracies and warnings out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError
from noiseproof.guarantees import Reproducible, Secure
from noiseproof.networks import Network
from noiseproof.parameters.alignment import disagreement
from noiseproof.parameters.collection import Collection
from noiseproof.parameters.files import read_networks
from noiseproof.parameters.layout import Layout
from noiseproof.parameters.method import PublishingMethod
from noiseproof.parameters.weights import WeightsRelease
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import ModelRelease, Release, logits

if TYPE_CHECKING:
    from noiseproof.guarantees import Budget


@dataclass(frozen=True, eq=False)
class Publishing:
    """What came of it. Accuracies are for the owner's eyes and no part of the release."""

    release: Release
    accuracy: float | None
    baseline_accuracy: float | None
    """The mean accuracy of the networks that were given."""
    disagreement: float
    """The largest share of hidden units of a network that are more like another unit of the first network."""
    warnings: tuple[str, ...] = ()


def publish_files(
    method: PublishingMethod,
    paths: Sequence[Path],
    budget: Budget,
    *,
    network: str | Network | None = None,
    test: Dataset | None = None,
    seed: int | None = None,
    progress: Progress = SILENT,
) -> Publishing:
    """Publish a network drawn from those in the files; with `network` and `test` accuracies are measured too.

    Without a `seed` the randomness is secure. Networks that look permuted are published all the same, with a warning:
    what is drawn from them means little.

    Formal guarantee
    ----------------
    The method's: none for records. Nothing is known here of how the networks were trained.
    """
    collection, constants = read_networks(paths)
    warnings: tuple[str, ...] = ()
    found = disagreement(collection)
    if found.permuted:
        warnings += (
            f"{100 * found.share:.0f}% of the hidden units of {paths[found.network]} are more like another unit of "
            f"{paths[0]} than like their own: these networks look permuted, as networks from different initialisations "
            "are, and a parameter drawn across them means little; train all from one initialisation.",
        )
    architecture = None
    if network is not None and test is not None:
        architecture = Network(network, test.public.shape, test.classes) if isinstance(network, str) else network
        if set(Layout.of_module(architecture.build()).tensors) != set(collection.layout.tensors):
            raise DataError(
                f"the files do not hold the parameters of a {architecture.name} for records of shape {test.public.shape} "
                f"and {test.classes} classes; name the network that they were saved from."
            )

    def accuracy(vector: torch.Tensor) -> float:
        assert architecture is not None
        assert test is not None
        answers = logits(collection.layout.module(architecture.build(), vector), test.features)
        return float((answers.argmax(1) == test.labels).double().mean())

    measured = None if architecture is None else accuracy
    rng = Secure() if seed is None else Reproducible(seed)
    published = method.publish(collection, budget, rng=rng, accuracy=measured, progress=progress)
    settings = {**method.settings(), "models": len(collection)}
    if architecture is None or test is None:
        tensors = {**collection.layout.unflatten(published.vector), **constants}
        release: Release = WeightsRelease(tensors, published.card, Public((), ()), settings)
        return Publishing(release, None, None, found.share, warnings)
    module = collection.layout.module(architecture.build(), published.vector)
    release = ModelRelease(module, architecture, published.card, test.public, settings)
    return Publishing(release, accuracy(published.vector), _mean(collection, accuracy), found.share, warnings)


def _mean(collection: Collection, accuracy: Callable[[torch.Tensor], float]) -> float:
    return sum(accuracy(row) for row in collection.rows) / len(collection)

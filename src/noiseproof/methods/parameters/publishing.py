"""Publishing: files of trained networks and a method in, a release with its accuracies and warnings out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError
from noiseproof.methods.parameters.collection import Collection, ParameterLayout, disagreement
from noiseproof.methods.parameters.dp_pg import PublishingMethod, accuracy_of
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Card, Reproducible, Secure
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, Release, Saved

_PERMUTED = 0.1
"""From this share of disagreeing units on, networks look permuted."""


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
    """Publish a network drawn from those in the files.

    Networks that look permuted are published all the same, with a warning: what is drawn from them means little.

    Args:
        method: dp-pg or dp-pgp.
        paths: Two files or more, of networks of one architecture.
        budget: Its epsilon is that of one parameter's draw.
        network: The architecture; with it and `test`, accuracies are measured.
        test: Records to measure accuracies on.
        seed: Of reproducible randomness; without it the randomness is secure.
        progress: What to tell of it.

    Returns:
        The release, accuracies and warnings.

    Raises:
        DataError: If the files hold no networks of one architecture, or not those of `network`.

    Formal guarantee
    ----------------
    The method's: none for records. Nothing is known here of how the networks were trained.
    """
    collection, constants = read_networks(paths)
    share, worst = disagreement(collection)
    warned: tuple[str, ...] = ()
    if share > _PERMUTED:
        warned = (
            f"{100 * share:.0f}% of the hidden units of {paths[worst]} are more like another unit of "
            f"{paths[0]} than like their own: these networks look permuted, as networks from different initialisations "
            "are, and a parameter drawn across them means little; train all from one initialisation.",
        )
    layout, accuracy = collection.layout, None
    if network is not None and test is not None:
        architecture = Network(network, test.public.shape, test.classes) if isinstance(network, str) else network
        if set(ParameterLayout.of(architecture.build()).tensors) != set(layout.tensors):
            raise DataError(
                f"the files do not hold the parameters of a {architecture.name} for records of shape {test.public.shape} "
                f"and {test.classes} classes; name the network that they were saved from."
            )
        accuracy = accuracy_of(architecture, layout, test)
    rng = Secure() if seed is None else Reproducible(seed)
    published = method.publish(collection, budget, rng=rng, accuracy=accuracy, progress=progress)
    settings = {**method.settings(), "models": len(collection)}
    if test is None or accuracy is None:
        tensors = {**layout.unflatten(published.vector), **constants}
        bare = WeightsRelease(tensors, published.card, Public((), ()), settings)
        return Publishing(bare, None, None, share, warned)
    module = layout.load(architecture.build(), published.vector)
    release = ModelRelease(module, architecture, published.card, test.public, settings)
    mean = sum(accuracy(row) for row in collection.rows) / len(collection)
    return Publishing(release, accuracy(published.vector), mean, share, warned)


def read_networks(paths: Sequence[Path]) -> tuple[Collection, dict[str, torch.Tensor]]:
    """The collection of networks in these files, checked, and the whole-number tensors that all of them share.

    Formal guarantee
    ----------------
    None: the networks stay on the trusted side. No code of a file is run.
    """
    if len(paths) < 2:
        raise DataError("one network alone has no distribution to draw from; give at least 2 files.")
    names = [str(path) for path in paths]
    states = [read_network(path) for path in paths]
    whole = [{name: value for name, value in state.items() if not value.is_floating_point()} for state in states]
    for name, path in ((name, path) for constants, path in zip(whole, names, strict=True) for name in constants):
        values = [constants.get(name) for constants in whole]
        if any(value is None or not torch.equal(value, whole[0].get(name, torch.empty(0))) for value in values):
            raise DataError(
                f"{name} of {path} holds whole numbers and is not the same in all networks; it cannot be drawn."
            )
    floats = [{name: value for name, value in state.items() if value.is_floating_point()} for state in states]
    return Collection.of(floats, names), whole[0]


def read_network(path: Path) -> dict[str, torch.Tensor]:
    """One network's tensors: a safetensors file, or a state dict that torch saved, read with weights_only."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                # torch warns of pickles that it then refuses or reads all the same.
                warnings.simplefilter("ignore", UserWarning)
                state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever it is: torch does not say what it raises on bytes that somebody made up
        raise DataError(
            f"{path} is neither a safetensors file nor a state dict that torch reads with weights_only; save "
            "`module.state_dict()`."
        ) from None
    if isinstance(state, Mapping) and set(state) == {"state_dict"}:
        state = state["state_dict"]
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(value, torch.Tensor) for value in state.values())
    ):
        raise DataError(f"{path} does not hold tensors by name; save `module.state_dict()`.")
    return {str(name): value for name, value in state.items()}


class WeightsRelease(Release):
    """Tensors by name, to be loaded into the user's own module (`load_state_dict(release.tensors())`)."""

    kind = "weights"

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], card: Card, public: Public, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(card, public, settings)
        self._tensors = dict(tensors)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The published weights."""
        return dict(self._tensors)

    def description(self) -> dict[str, Any]:
        """Nothing more is needed."""
        return {}

    @classmethod
    def restore(cls, saved: Saved) -> WeightsRelease:
        """The same weights; a `module` gets them too."""
        if saved.module is not None:
            saved.module.load_state_dict(dict(saved.tensors))
        return cls(saved.tensors, saved.card, saved.public, saved.settings)

"""Feature maps: public functions of one record, fitted on nothing, and their composition."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from noiseproof.data.dataset import Dataset
from noiseproof.data.library import cache_folder
from noiseproof.data.scattering import ScatteringMap as ScatteringMap
from noiseproof.data.upright import UprightMap as UprightMap
from noiseproof.errors import SettingError
from noiseproof.files import write_whole
from noiseproof.progress import SILENT, Progress


class FeatureMap(Protocol):
    """A function from a record's features to others, that depends on no other record.

    Formal guarantee
    ----------------
    None is needed: it acts on each record alone, so neighbouring data sets stay neighbouring.
    """

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a mapped record."""

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The mapped records."""


@dataclass(frozen=True)
class MirrorMap:
    """Scattering coefficients, averaged with those of the picture's mirror image; the half that is then redundant is left out.

    A linear network on them gives a picture and its mirror image the same answer: what training on both views of every
    record (augmentation multiplicity) would converge to, with half the parameters and so half the noise. For pictures
    whose class does not depend on left and right; letters and digits are not such. The mirror is the one in which the
    coarse grid is its own image, so that no further transform is needed.
    """

    scales: int = 2
    angles: int = 8

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Half of the columns, the middle one included."""
        return (*shape[:2], (shape[2] + 1) // 2)

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The averaged records."""
        order = self._order(features.shape[1]).to(features.device)
        kept = self.shape(tuple(features.shape[1:]))[2]
        # The columns that are kept see those that are not, from the other side.
        parts = [(chunk + chunk[:, order].flip(-1))[..., :kept].div_(2) for chunk in features.split(1024)]
        return torch.cat(parts)

    def _order(self, channels: int) -> torch.Tensor:
        """For each coefficient, the one of the mirrored wavelets."""
        # Angles run down from just below a right angle, in steps of pi / angles, and a mirror turns their sign.
        turned = (self.angles - 2 - torch.arange(self.angles)) % self.angles
        order, start = [torch.zeros(1, dtype=torch.int64)], 1
        for _ in range(self.scales):
            order.append(start + turned)
            start += self.angles
        for _ in range(self.scales * (self.scales - 1) // 2):
            order.append((start + turned[:, None] * self.angles + turned[None, :]).flatten())
            start += self.angles**2
        if channels % start:
            raise SettingError(
                f"a mirror takes scattering coefficients of {self.scales} scales and {self.angles} angles, {start} for "
                f"each colour, not {channels} channels."
            )
        paths = torch.cat(order)
        return (torch.arange(0, channels, start)[:, None] + paths).flatten()


@dataclass(frozen=True)
class OpponentMap:
    """Red, green and blue as brightness and two differences of colours, each of length 1, at every pixel.

    The three colours of a picture are nearly the same picture, so that features of each of them say the same three times, and
    what a colour alone says is lost among it. Opponent colours come apart before the features are made.
    """

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Unchanged."""
        if len(shape) != 3 or shape[0] != 3:
            raise SettingError(
                f"opponent colours are made of pictures of three colours, not of records of shape {shape}."
            )
        return shape

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The records in opponent colours."""
        self.shape(tuple(features.shape[1:]))
        ways = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]]).to(features)
        ways = ways / torch.linalg.vector_norm(ways, dim=1, keepdim=True)
        return torch.cat([torch.einsum("dc,nchw->ndhw", ways, chunk) for chunk in features.split(4096)])


@dataclass(frozen=True)
class GroupNormMap:
    """Each record's groups of channels shifted and scaled to mean 0 and variance 1 by that record's own values."""

    groups: int = 27

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Unchanged."""
        return shape

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The normalised records."""
        channels = features.shape[1]
        groups = math.gcd(self.groups, channels)
        return torch.cat([torch.nn.functional.group_norm(chunk, groups) for chunk in features.split(4096)])


@dataclass(frozen=True)
class RmsNormMap:
    """Each record scaled to root mean square 1, in the shape it has: bounded features for proofs that need them."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Unchanged."""
        return shape

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The scaled records; one that is zero everywhere stays so."""
        parts = []
        for chunk in features.split(4096):
            norms = torch.linalg.vector_norm(chunk.flatten(1), dim=1) / math.sqrt(math.prod(chunk.shape[1:]))
            parts.append(chunk / norms.clamp_min(1e-12).view(-1, *[1] * (chunk.dim() - 1)))
        return torch.cat(parts)


@dataclass(frozen=True)
class UnitNormMap:
    """Each record flattened, a constant appended, and scaled to norm 1: bounded features for proofs that need them."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One vector, one longer."""
        return (math.prod(shape) + 1,)

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The records on the unit sphere."""
        flat = features.flatten(1)
        flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
        return flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True)


@dataclass(frozen=True)
class RandomFourierMap:
    """Random Fourier features of a Gaussian kernel (Rahimi and Recht 2007); the directions come from a public seed."""

    width: int = 1000
    length: float = 1.0
    """The kernel's length scale, in units of the features."""
    seed: int = 0

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A vector of the chosen width."""
        return (self.width,)

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """sqrt(2 / width) cos(Wx + b), whose inner products approach the kernel."""
        generator = torch.Generator().manual_seed(self.seed)
        inputs = math.prod(features.shape[1:])
        directions = torch.randn(inputs, self.width, generator=generator) / self.length
        phases = 2 * math.pi * torch.rand(self.width, generator=generator)
        directions, phases = directions.to(features.device), phases.to(features.device)
        mapped = [torch.addmm(phases, chunk.flatten(1), directions).cos_() for chunk in features.split(8192)]
        return torch.cat(mapped).mul_(math.sqrt(2 / self.width))


@dataclass(frozen=True)
class BinsMap:
    """Each number in [0, 1] replaced by one-hot bins at public edges: equal steps, and halvings towards 0.

    No quantiles are read off the data: halvings give fine bins where amounts of money and the like crowd. `places` are
    the features that are such numbers, if not all are; the others (a table's one-hot categories) stay as they are.
    """

    bins: int = 16
    halvings: int = 12
    places: tuple[int, ...] | None = None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The features that stay, and as many as there are bins for every number."""
        features = math.prod(shape)
        numbers = features if self.places is None else len(self.places)
        return (features - numbers + numbers * (self.bins + self.halvings + 1),)

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The coded records."""
        flat = features.flatten(1)
        numbers, others = flat, flat[:, :0]
        if self.places is not None:
            chosen = torch.zeros(flat.shape[1], dtype=torch.bool, device=flat.device)
            chosen[list(self.places)] = True
            numbers, others = flat[:, chosen], flat[:, ~chosen]
        steps = torch.linspace(0, 1, self.bins + 1)[1:-1]
        powers = 2.0 ** -torch.arange(self.halvings, 0, -1)
        coded = []
        for edges in (steps, powers):
            place = torch.bucketize(numbers.contiguous(), edges.to(flat.device), right=True)
            coded.append(torch.nn.functional.one_hot(place, len(edges) + 1).to(flat))
        return torch.cat([others, torch.cat(coded, dim=2).flatten(1)], dim=1)


@dataclass(frozen=True)
class Chain:
    """One map after another."""

    maps: Sequence[FeatureMap]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The last map's shape."""
        for one in self.maps:
            shape = one.shape(shape)
        return shape

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The maps' composition."""
        for one in self.maps:
            features = one(features, progress)
        return features


VERSION = 1
"""Raised when a map's result changes, so that old files are not taken for new ones."""

CACHE = "NOISEPROOF_CACHE_FEATURES"
"""The environment variable that allows mapped records to be kept on disk."""


def apply(
    dataset: Dataset, feature_map: FeatureMap, *, cache: bool | None = None, progress: Progress = SILENT
) -> Dataset:
    """The data set with mapped features; labels and what is public stay.

    Args:
        dataset: Private records.
        feature_map: What maps each of them.
        cache: Whether to read the mapped records from, or write them to, the cache folder, under a hash of the records
            and the map. They are as private as the records and stay there until you delete them (the folder
            `features` in the cache folder, readable by its owner alone), so this is off unless you ask for it here or
            set the environment variable NOISEPROOF_CACHE_FEATURES to 1.
        progress: Hears how far it is.

    Returns:
        The mapped data set.

    Formal guarantee
    ----------------
    None is needed: see `FeatureMap`.
    """
    public = replace(dataset.public, shape=feature_map.shape(dataset.public.shape), kind="vector", columns=())
    path = None
    if cache or (cache is None and os.environ.get(CACHE, "") not in ("", "0")):
        key = f"{VERSION} {feature_map!r} {dataset.fingerprint()}"
        path = cache_folder() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    features = None if path is None else _read(path, (len(dataset), *public.shape))
    if features is None:
        features = feature_map(dataset.features, progress)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, save({"features": features.contiguous()}), mode=0o600)
    return replace(dataset, features=features, public=public)


def _read(path: Path, shape: tuple[int, ...]) -> torch.Tensor | None:
    try:
        features = load_file(path)["features"]
    except (SafetensorError, KeyError, OSError):
        return None
    return features if tuple(features.shape) == shape else None


# Feature maps as plain values, so that a bundle can say which one comes before its network.


_KINDS: dict[str, type] = {
    "scattering": ScatteringMap,
    "mirror": MirrorMap,
    "group-norm": GroupNormMap,
    "rms-norm": RmsNormMap,
    "unit-norm": UnitNormMap,
    "fourier": RandomFourierMap,
    "bins": BinsMap,
    "upright": UprightMap,
    "opponent": OpponentMap,
}


def describe(feature_map: FeatureMap) -> list[dict[str, Any]]:
    """The maps that a map is made of, in order, each as `{"map": name, **settings}`."""
    if isinstance(feature_map, Chain):
        return [step for one in feature_map.maps for step in describe(one)]
    for name, kind in _KINDS.items():
        if type(feature_map) is kind:
            return [{"map": name, **asdict(feature_map)}]  # type: ignore[call-overload]
    raise SettingError(f"{type(feature_map).__name__} is no feature map of the package, so a bundle cannot name it.")


def restore(description: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]) -> FeatureMap:
    """The map that `describe` described."""
    maps: list[FeatureMap] = []
    for step in description:
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in step.items() if name != "map"}
        if step.get("map") not in _KINDS:
            raise SettingError(f"there is no feature map {step.get('map')!r}; there are {', '.join(_KINDS)}.")
        try:
            maps.append(_KINDS[step["map"]](**settings))
        except TypeError:
            raise SettingError(
                f"the feature map {step['map']!r} does not have these settings: {', '.join(settings)}."
            ) from None
    return Chain(tuple(maps))

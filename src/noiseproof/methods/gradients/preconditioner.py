"""Preconditioner: private statistics of the features, and the affine map by which a linear network learns faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.data.lazy import StoredTensor
from noiseproof.engine import clip_weights
from noiseproof.engine.ranks import ALONE, Ranks
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import Gaussian, Neighbours, gaussian_dp

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy import Randomness
    from noiseproof.privacy.events import DpEvent, EventLog


_VALUES = 1 << 24
"""Features that are worked on at once, for memory."""

_WIDEST = 4096
"""Channels, or places, of which a matrix of second moments is still of a size to release."""

_LEAST = 0.01
"""The share of the records' energy that is taken to be left, however little the noisy statistics say."""


@dataclass(frozen=True)
class Statistics:
    """How much noise the two releases of statistics have, as multipliers; see `Preconditioner.release`."""

    sides: float
    """Of the first: the mean, and second moments of channels and of places."""
    joint: float
    """Of the second: the second moment in the subspace that the first one shows."""

    @classmethod
    def within(cls, share: float, epsilon: float, delta: float, neighbours: Neighbours) -> Statistics:
        """The noise at which both together spend that share of a budget, counted in mu^2 of Gaussian DP.

        Each of the first release's three parts then has the noise of the second release.
        """
        mu = gaussian_dp.mu_within(epsilon, delta) * math.sqrt(share) / (2 if neighbours == "replace-one" else 1)
        return cls(sides=math.sqrt(4 / 3) / mu, joint=2 / mu)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What the releases are, for accountants."""
        return tuple(mechanism.event for mechanism in self.mechanisms)

    @property
    def mechanisms(self) -> tuple[Gaussian, Gaussian]:
        """The releases, in order."""
        return Gaussian(math.sqrt(3), self.sides), Gaussian(1.0, self.joint)


@dataclass(frozen=True)
class Preconditioner:
    """z = s T (x - m): records without their common mean, and with their strongest directions made weaker.

    A linear network learns slowly along directions in which features vary little, the more so under noise, which is the
    same along all. T is the identity but for a subspace, spanned by the main directions of the channels and of the places
    of a record: there, a direction with the share l of all variance is multiplied by ((l + floor) / floor)^(-power / 2), and
    left alone if l does not stand out from the noise. s makes the transformed features' mean square 1. What was learned
    on z is a linear network on x (`fold`), so that what is released does not change its form.
    """

    mean: torch.Tensor
    """m, as channels x places; records and mean over the norm bound."""
    channels: torch.Tensor
    """The main directions of channels, as orthonormal columns."""
    places: torch.Tensor
    """The main directions of places, as orthonormal columns."""
    change: torch.Tensor
    """T less the identity, in the subspace of `channels` x `places`."""
    scale: float

    @classmethod
    def release(
        cls,
        features: torch.Tensor,
        noise: Statistics,
        events: EventLog,
        *,
        rng: Randomness,
        ranks: Ranks = ALONE,
        weights: torch.Tensor | None = None,
        power: float = 2.0,
        floor: float = 0.02,
        directions: int = 16,
    ) -> Preconditioner:
        """Release statistics of private records, and make a preconditioner of them.

        Formal guarantee
        ----------------
        Two Gaussian mechanisms, `noise.events`, which are appended to `events` before their values exist; all else is
        post-processing. Records of norm above sqrt(features), that is of root mean square above 1, are scaled down to
        it, and those that are not finite count as zero. In units of that bound a record adds to the first release its
        values x and the upper triangles (off-diagonals times sqrt 2, which makes lengths Frobenius norms) of X X^T over
        channels and X^T X over places: three vectors of L2 norm at most 1, so sqrt 3 in all. To the second it adds the
        triangle of y y^T, of norm at most 1, where y are its coordinates in a subspace computed from the first. With
        `weights` that sum to 1 for each person, a person adds the means over their records, which are no longer. Unit:
        record, or with weights person. Neighbours: add-or-remove (replace-one doubles the sensitivity; the accountant
        is told). Public: the number of records, their shape, the norm bound. Assumes that sums are exact, as
        `PrivateGradients` does. Secure randomness raises the noise by what rounding to its lattice adds to the
        sensitivity.
        """
        if isinstance(features, StoredTensor):
            raise UnsupportedError("records on disk cannot be transformed beforehand; set precondition to 0.")
        ranks.agree("the noise of statistics", noise)
        records = ranks.records(len(features) if weights is None else round(float(weights.sum())))
        channels, places = sides(tuple(features.shape[1:]))
        own = ranks.part(lambda: torch.arange(len(features)))
        first, second = noise.mechanisms

        def noised(mechanism: Gaussian, total: torch.Tensor) -> torch.Tensor:
            events.append(mechanism.event)
            scale = mechanism.scale(rng, total.numel())
            return ranks.noised(total, lambda part: rng.add_gaussian(part, scale, out=part)) / records

        sizes = [channels * places, channels * (channels + 1) // 2, places * (places + 1) // 2]
        mean, across, along = noised(first, _summed(side_moments, features, own, weights)).split(sizes)
        spread = math.sqrt(3) * first.sigma / records
        # Positive-part James-Stein: a mean that is mostly noise would do more harm than none.
        kept = 1 - channels * places * spread**2 / float(mean.square().sum())
        mean = mean.mul(max(0.0, kept)).view(channels, places)
        across, along = matrix(across, channels), matrix(along, places)
        variance = min(1.0, max(_LEAST, float(across.trace() - mean.square().sum())))
        wide = min(directions, channels)
        main = _main(across - mean @ mean.T, wide)
        # Records without channels have all their directions among the places.
        others = _main(along - mean.T @ mean, min(directions**2 // wide, places))
        # Ranks may decompose the same matrix differently, in signs and last digits.
        ranks.align((mean, main, others))

        def joint_moments(records: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
            return svec(_squares(_coordinates(_weighted(records, weights), main.float(), others.float())).double())

        joint = noised(second, _summed(joint_moments, features, own, weights))
        size = main.shape[1] * others.shape[1]
        inner = _coordinates(mean[None], main, others)
        values, vectors = torch.linalg.eigh(matrix(joint, size) - _squares(inner))
        # The eigenvalues of noise alone fill a half circle of this radius: what lies within it says nothing.
        values = values.where(values > second.sigma / records * math.sqrt(2 * size), 0.0)
        weights = (1 + values / (floor * variance)) ** (-power / 2)
        left = max(_LEAST * variance, variance - float((values * (1 - weights.square())).sum()))
        change = (vectors * (weights - 1)) @ vectors.T
        scale = torch.tensor(math.sqrt(channels * places / left)).double()
        ranks.align((change, scale))
        return cls(mean, main, others, change, float(scale))

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """The transformed records, in the shape they have."""
        changed = torch.empty_like(features)
        bound = math.sqrt(self.mean.numel())
        for where in _parts(features):
            there = features[where].reshape(-1, *self.mean.shape) / bound - self.mean.to(features)
            changed[where] = self._turned(there).reshape(changed[where].shape)
        return changed

    def applied(self, dataset: Dataset) -> Dataset:
        """The data set with transformed records."""
        return replace(dataset, features=self(dataset.features))

    def fold(self, module: nn.Module) -> None:
        """Make a linear network for transformed records one for records as they were, with the same scores."""
        layer = linear_layer(module)
        with torch.no_grad():
            rows = layer.weight.double().cpu().view(len(layer.weight), *self.mean.shape)
            turned = self._turned(rows).flatten(1)
            layer.bias.sub_((turned @ self.mean.flatten()).to(layer.bias))
            layer.weight.copy_(turned / math.sqrt(self.mean.numel()))

    def _turned(self, records: torch.Tensor) -> torch.Tensor:
        """s T of channels x places."""
        main, others = self.channels.to(records), self.places.to(records)
        inner = _coordinates(records, main, others) @ self.change.to(records)
        return (records + main @ inner.view(-1, main.shape[1], others.shape[1]) @ others.T).mul_(self.scale)


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Channels and places of records of that shape; a vector is one channel."""
    channels = shape[0] if len(shape) > 1 else 1
    places = math.prod(shape) // max(1, channels)
    if not 0 < max(channels, places) <= _WIDEST:
        raise SettingError(
            f"records of shape {shape} are too wide for a preconditioner, which takes up to {_WIDEST} channels, of up to "
            f"{_WIDEST} places each; set precondition to 0."
        )
    return channels, places


def linear_layer(module: nn.Module) -> nn.Linear:
    """The one layer of a linear network; other networks are refused."""
    layers = list(module.children()) if type(module) is nn.Sequential else [module]
    *before, last = layers or [module]
    # Flattening keeps the order of a record's values, whatever the dimension from which on it flattens them.
    if type(last) is not nn.Linear or last.bias is None or any(type(layer) is not nn.Flatten for layer in before):
        raise SettingError(
            "a preconditioner can be folded into a linear network alone, which this one is not; choose the network "
            "`linear`, or set precondition to 0."
        )
    return last


def svec(symmetric: torch.Tensor) -> torch.Tensor:
    """The upper triangle as a vector, off-diagonals times sqrt 2: its length is the matrix's Frobenius norm."""
    rows, columns = torch.triu_indices(*symmetric.shape)
    return symmetric[rows, columns] * _twice(rows != columns, symmetric)


def matrix(vector: torch.Tensor, size: int) -> torch.Tensor:
    """The symmetric matrix of which this is the `svec`."""
    rows, columns = torch.triu_indices(size, size)
    full = vector.new_empty(size, size)
    full[rows, columns] = full[columns, rows] = vector / _twice(rows != columns, vector)
    return full


def _twice(where: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """sqrt 2 for what is in a symmetric matrix twice, else 1."""
    return (1 + where.to(like)).sqrt()


def side_moments(records: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """What records (each channels x places) add to the first release: their sum, and second moments of both sides."""
    channels, places = records.shape[1:]
    total = records.double().sum(0) if weights is None else torch.einsum("r,rcp->cp", weights, records.double())
    records = _weighted(records, weights)
    across, along = records.transpose(0, 1).reshape(channels, -1), records.permute(2, 0, 1).reshape(places, -1)
    return torch.cat([total.flatten(), *(svec((side @ side.T).double()) for side in (across, along))])


def _weighted(records: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Records whose products with themselves have these weights."""
    return records if weights is None else records * weights.sqrt().to(records)[:, None, None]


def _squares(rows: torch.Tensor) -> torch.Tensor:
    return rows.T @ rows


def _coordinates(records: torch.Tensor, main: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Of records (channels x places each) in the subspace of those directions."""
    return (main.T @ records @ others).flatten(1)


def _main(moments: torch.Tensor, count: int) -> torch.Tensor:
    """The directions of most variance, as columns."""
    return torch.linalg.eigh(moments).eigenvectors[:, -count:]


def _parts(features: torch.Tensor) -> Iterator[slice]:
    """Records, so many at a time that memory stays bounded."""
    size = max(1, _VALUES // max(1, math.prod(features.shape[1:])))
    yield from (slice(start, start + size) for start in range(0, len(features), size))


def bounded(records: torch.Tensor) -> torch.Tensor:
    """Records as channels x places over the norm bound: none is longer than 1, whatever is in it."""
    shape = sides(tuple(records.shape[1:]))
    part = records.reshape(-1, *shape).cpu().float() / math.sqrt(math.prod(shape))
    part = part.where(part.isfinite().all(2).all(1)[:, None, None], 0.0)
    return part.mul_(clip_weights(part.square().sum((1, 2)), 1.0)[:, None, None])


def _summed(
    moments: Callable[..., torch.Tensor], features: torch.Tensor, own: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """What the records at `own` add to a release, if there are any."""
    total = moments(torch.zeros(1, *sides(tuple(features.shape[1:]))))
    for where in _parts(features):
        if len(index := own[where]):
            some = bounded(features.index_select(0, index.to(features.device)))
            total += moments(some, None if weights is None else weights[index])
    return total

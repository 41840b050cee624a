"""moments: noisy means and covariances of each class's low frequencies, and pictures drawn from normal laws that have them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError, SettingError
from noiseproof.methods import register
from noiseproof.methods.common import BelowOne, Count, claim_of, initial_seed, proven_game, seeded_by
from noiseproof.methods.losses.coding import Coding, check_records
from noiseproof.methods.losses.counts import count_event
from noiseproof.methods.losses.critics import cosines
from noiseproof.methods.losses.gan import BINS, Synthesizer, as_classes
from noiseproof.networks import Network
from noiseproof.privacy import (
    Budget,
    EventLog,
    Game,
    Gaussian,
    Neighbours,
    Randomness,
    Reproducible,
    accountants,
    calibration,
)
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, GaussianDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease
from noiseproof.tensors import seeded_generator

ASSUMPTIONS = (
    "the number of records is public: how many frequencies are measured and the number of rows follow from it",
    "sums of clipped features are exact (floating-point error of the sum is not accounted for)",
)
_MOST_FEATURES = 512
_NORMS = 48
"""Bins of the features' norms, evenly on a logarithmic scale, from a thousandth of the largest possible norm to that."""
_QUANTILE = 0.95
"""About so many records are not cut."""
_LEAST_VARIANCE = 0.1
"""A class's variance in any direction, as a share of that of all classes, at least."""
_HAIR = 1 - 1e-9
_CHUNK = 8192


@register
@dataclass(frozen=True)
class Moments(Synthesizer):
    """Noisy mean and covariance of each class's low frequencies; pictures are drawn from normal distributions with these.

    Three looks at all records: how many there are of each class and how long their features are, each class's mean, and
    its covariance around the noisy mean. What noise hides of a class's covariance is filled in by that of all classes.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP of the budget for the synthetic records: three Gaussian mechanisms, whose noise is fixed beforehand.
    A record adds 1 to two counts (L2 norm sqrt(2)), features clipped to a norm C to its class's sum, and the outer product
    of its difference from the noisy mean, clipped to a norm D, to its class's sum of products (Frobenius norm D^2). C and D
    follow from what was released before. Exchanging two records moves the sums by 2 C, but counts and products, which
    never point in opposite directions (their inner products are not negative), by sqrt(2) times what one adds. Unit:
    record, or person: a person adds the mean over their records. Neighbours: as the budget says. Dwork, Talwar, Thakurta
    and Zhang 2014 (Analyze Gauss) release second moments so.
    Costs: seconds; memory for one block of products a class.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> pictures = torch.rand(200, 8, 8)
        >>> records = npf.data.from_arrays(pictures, torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("moments", records, epsilon=3, rows=100)
        >>> release.card.verdict
        'proven'
        >>> release.dataset.features.shape
        torch.Size([100, 1, 8, 8])
    """

    name: ClassVar[str] = "moments"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record"

    frequencies: Count = 12
    """Vertical and horizontal frequency of a picture are below this together; fewer where noise would hide them."""
    counts: BelowOne = 0.05
    """The share of the budget (in zCDP) for counts of classes and norms."""
    means: BelowOne = 0.1
    """The share for the classes' means; what is left is for covariances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts <= 0 or self.means <= 0 or self.counts + self.means >= 1:
            raise SettingError("moments' shares counts and means must be above 0, and below 1 together.")

    def noise(self, budget: Budget) -> tuple[float, float, float]:
        """The noise multipliers of counts, means and covariances: together as exact as one Gaussian mechanism."""
        all_of_it = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
        # Against rounding when the shares are added up again.
        shares = (self.counts, self.means, 1 - self.counts - self.means)
        first, second, third = (all_of_it * (1 + 1e-12) / math.sqrt(share) for share in shares)
        # An exchange moves counts and products by sqrt(2) times what a record adds, where the calibration takes it for 2.
        less = math.sqrt(2) if budget.neighbours == "replace-one" else 1.0
        return first / less, second, third / less

    def basis(self, public: Public, records: int, noise: float) -> torch.Tensor:
        """Orthogonal features, (features of a record, features): the more frequencies, the more records and budget."""
        if not public.is_picture:
            width = math.prod(Coding(public).shape)
            if width > _MOST_FEATURES:
                raise DataError(
                    f"moments releases every product of two features, and {width} are more than {_MOST_FEATURES}; take "
                    "marginals for tables."
                )
            return torch.eye(width, dtype=torch.float64)
        reach = self.frequencies
        found = low_frequencies(public.shape, reach)
        # Noise on the covariance of all classes must not be larger than what a frequency varies by on average.
        classes = max(1, len(public.classes))
        while reach > 3 and (
            found.shape[1] > _MOST_FEATURES
            or math.sqrt(2 * classes * found.shape[1]) * noise * found.shape[1] > max(1, records)
        ):
            reach -= 1
            found = low_frequencies(public.shape, reach)
        return found

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> DataRelease:
        """Release counts, means and covariances within the budget, and draw `rows` synthetic records from them."""
        given, dataset = dataset, as_classes(dataset)
        check_records(dataset)
        sigmas = self.noise(budget)
        basis = self.basis(dataset.public, dataset.persons, sigmas[2])
        log = EventLog()
        sums = Sums(dataset, basis, budget.neighbours, rng, log)
        with progress.task(self.name, 3) as task:
            counts, norm = sums.counts(sigmas[0])
            task.advance()
            means = sums.means(norm, sigmas[1]) / counts[:, None]
            means, pooled = shrunk(means, (sigmas[1] * norm / counts).square()[:, None], counts)
            task.advance()
            # Records are as far from their class's mean as the norm less the mean's allows.
            spread = norm * math.sqrt(max(0.1, 1 - float(pooled.square().sum()) / norm**2))
            products = sums.products(means, spread, sigmas[2]) / counts[:, None, None]
            noise = sigmas[2] * spread**2 / math.sqrt(2) / counts
            normals = Normals(means, covariances(products, noise, counts), counts)
            task.advance()
        spent = accountants.epsilon(log.event, budget.delta, neighbours=budget.neighbours)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=claim_of(budget),
            proven=spent.proof(*ASSUMPTIONS, *rng.assumptions),
            ran={
                "features": basis.shape[1],
                **dict(zip(("count sigma", "mean sigma", "covariance sigma"), sigmas, strict=True)),
            },
        )
        rows = dataset.persons if self.rows is None else self.rows
        synthetic = self._draw(normals, basis, given, rows, seeded_generator(initial_seed(rng)))
        return DataRelease(synthetic, card, self.settings()).logged(log.runs)

    def _draw(
        self, normals: Normals, basis: torch.Tensor, dataset: Dataset, rows: int, generator: torch.Generator
    ) -> Dataset:
        """Synthetic records, coded like the private ones."""
        public = dataset.public
        back = torch.linalg.pinv(basis)
        coding = Coding(as_classes(dataset.take(torch.arange(0))).public)
        features, labels = [torch.zeros(0, *public.shape)], [dataset.labels[:0]]
        for start in range(0, rows, _CHUNK):
            drawn, label = normals.sample(min(_CHUNK, rows - start), generator)
            coded = (drawn @ back).float().view(-1, *coding.shape)
            features.append(coding.decode(coded, generator).view(-1, *public.shape))
            if public.task != "classification":
                label = ((label + torch.rand(len(label), generator=generator)) / BINS).float()
            labels.append(label)
        return Dataset(f"synthetic {dataset.name}", torch.cat(features), torch.cat(labels), public)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A canary of a class and a length of its own, in everything that a training releases; and who leaves for it."""
        public = Public(shape=(2,), classes=("no", "yes"))
        near, sigmas, basis = budget.neighbours, self.noise(budget), torch.eye(2, dtype=torch.float64)
        centres = torch.zeros(2, 2, dtype=torch.float64)

        def summed(world: int, rng: Randomness) -> Sums:
            there = canaries if world or near == "replace-one" else 0
            features = torch.cat([torch.zeros(20, 2), torch.tensor([1.0, float(world)]).expand(there, 2)])
            labels = torch.cat([torch.zeros(20), torch.full((there,), float(world))]).long()
            groups = torch.arange(20 + there).clamp(max=20) if canaries > 1 else None
            return Sums(Dataset("canary", features, labels, public, groups), basis, near, rng, EventLog())

        def weighed(counts: torch.Tensor, means: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
            """All of it in units of its noise."""
            parts = (counts / (math.sqrt(2) * sigmas[0]), means / sigmas[1], products / sigmas[2])
            return torch.cat([part.flatten() for part in parts])

        def exact(world: int) -> torch.Tensor:
            sums = summed(world, Reproducible(0))
            return weighed(sums.counted(), sums.summed(1.0), sums.multiplied(centres, 1.0))

        # What differs, each part weighed by its exactness, is the sufficient statistic.
        difference = exact(1) - exact(0)

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            sums = summed(world, seeded_by(generator))
            scores = [
                weighed(
                    torch.cat(sums.noisy_counts(sigmas[0])),
                    sums.means(1.0, sigmas[1]),
                    sums.products(centres, 1.0, sigmas[2]),
                )
                @ difference
                for _ in range(trials)
            ]
            return torch.stack(scores)

        proven = accountants.epsilon(_event(sigmas, near), budget.delta, neighbours=near).proof()
        name = f"{self.name}: a canary of a class of its own"
        return proven_game(name, play, budget, proven, source="the accountant", gaussian=True, canaries=canaries)


def _event(sigmas: tuple[float, float, float], neighbours: Neighbours) -> DpEvent:
    counts, means, products = sigmas
    return ComposedDpEvent([count_event(counts, neighbours), GaussianDpEvent(means), count_event(products, neighbours)])


def low_frequencies(shape: tuple[int, ...], reach: int) -> torch.Tensor:
    """A picture's lowest frequencies, (pixels, features): cosines, the higher ones weighted more, since they vary less."""
    channels, *sides = shape
    waves = [cosines(side).double() for side in sides]
    places = [(i, j) for i in range(sides[0]) for j in range(sides[1]) if i + j < reach]
    pictures = torch.stack([(1 + i + j) * torch.outer(waves[0][i], waves[1][j]) for i, j in places])
    return torch.block_diag(*[pictures.flatten(1)] * channels).T


class Sums:
    """The private records' sums by class; each is noted in the log before it is given out with noise."""

    def __init__(
        self, dataset: Dataset, basis: torch.Tensor, neighbours: Neighbours, rng: Randomness, log: EventLog
    ) -> None:
        self._dataset, self._coding = dataset, Coding(dataset.public)
        self._basis, self._near, self._rng, self._log = basis, neighbours, rng, log
        self._classes, self._width = len(dataset.public.classes), basis.shape[1]
        weights = dataset.weights
        self._weights = torch.ones(len(dataset), dtype=torch.float64) if weights is None else weights
        longest = math.sqrt(len(basis)) * float(torch.linalg.matrix_norm(basis, 2))
        self.edges = longest * torch.logspace(-3, 0, _NORMS, dtype=torch.float64)
        """Where the bins of norms end; no record is longer than the last."""

    def _features(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Features, labels and weights of some records at a time."""
        for index in torch.arange(len(self._dataset)).split(_CHUNK):
            coded = self._coding.encode(self._dataset.features[index]).flatten(1).double().nan_to_num().clamp(0, 1)
            yield coded @ self._basis, self._dataset.labels[index], self._weights[index]

    # Without noise: private.

    def counted(self) -> torch.Tensor:
        """How many records each class has, and each bin of norms: a record adds 1 to one of either."""
        total = torch.zeros(self._classes + _NORMS, dtype=torch.float64)
        for features, labels, weights in self._features():
            bins = torch.bucketize(features.norm(dim=1), self.edges).clamp(max=_NORMS - 1)
            total.index_add_(0, labels, weights).index_add_(0, self._classes + bins, weights)
        return total

    def summed(self, norm: float) -> torch.Tensor:
        """Each class's sum of features that are clipped to a norm, (classes, features)."""
        total = torch.zeros(self._classes, self._width, dtype=torch.float64)
        for features, labels, weights in self._features():
            total.index_add_(0, labels, weights[:, None] * _clipped(features, norm))
        return total

    def multiplied(self, centres: torch.Tensor, norm: float) -> torch.Tensor:
        """Each class's sum of outer products of what differs from its centre, clipped: (classes, features, features)."""
        total = torch.zeros(self._classes, self._width, self._width, dtype=torch.float64)
        for features, labels, weights in self._features():
            differences = _clipped(features - centres[labels], norm)
            for label in range(self._classes):
                own = labels == label
                total[label] += (weights[own, None] * differences[own]).T @ differences[own]
        return total

    # With noise.

    def noisy_counts(self, sigma: float) -> tuple[torch.Tensor, torch.Tensor]:
        """How many records each class has, and each bin of norms."""
        self._log.append(count_event(sigma, self._near))
        noisy = Gaussian(math.sqrt(2), sigma).release(self.counted(), self._rng)
        return noisy[: self._classes], noisy[self._classes :]

    def counts(self, sigma: float) -> tuple[torch.Tensor, float]:
        """How many records each class has, at least 1, and a norm that most features do not exceed."""
        labels, norms = self.noisy_counts(sigma)
        reached = norms.cumsum(0) >= _QUANTILE * norms.sum()
        return labels.clamp_min(1.0), float(self.edges[int(reached.int().argmax()) if bool(reached.any()) else -1])

    def means(self, norm: float, sigma: float) -> torch.Tensor:
        """Each class's noisy sum of features that are clipped to a norm."""
        self._log.append(GaussianDpEvent(sigma))
        return Gaussian(norm, sigma).release(self.summed(norm), self._rng)

    def products(self, centres: torch.Tensor, norm: float, sigma: float) -> torch.Tensor:
        """Each class's noisy sum of outer products; off the diagonal, the noise's deviation is sigma norm^2 / sqrt(2)."""
        # A product's Frobenius norm is that of its upper half with everything off the diagonal times sqrt(2).
        rows, columns = torch.triu_indices(self._width, self._width)
        scale = torch.where(rows == columns, 1.0, math.sqrt(2)).double()
        # Products of real vectors are positive semidefinite, and so never point in opposite directions, as counts do not.
        self._log.append(count_event(sigma, self._near))
        total = self.multiplied(centres, norm)
        noisy = Gaussian(norm**2, sigma).release(total[:, rows, columns] * scale, self._rng) / scale
        found = torch.zeros_like(total)
        found[:, rows, columns] = found[:, columns, rows] = noisy
        return found


def _clipped(features: torch.Tensor, norm: float) -> torch.Tensor:
    return features * (_HAIR * norm / features.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp(max=_HAIR)


# What is made of the noisy sums: post-processing.


def shrunk(values: torch.Tensor, noise: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes' noisy values moved towards that of all, the more the larger their noise's variance; and the value of all.

    Args:
        values: One a class and entry.
        noise: The noise's variance of each.
        counts: How many records each class has.

    Returns:
        The values, and their mean over all records.
    """
    weights = (counts / counts.sum()).view(-1, *[1] * (values.ndim - 1))
    pooled = (weights * values).sum(0)
    differences = values - pooled
    between = (differences.square() - noise).mean(0).clamp_min(0)
    return pooled + differences * between / (between + noise).clamp_min(1e-300), pooled


def covariances(products: torch.Tensor, noise: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each class's covariance: what noise hides of it is that of all classes, and what it hides of that is small.

    Args:
        products: Noisy mean products of differences, (classes, features, features).
        noise: The noise's standard deviation off the diagonal, by class.
        counts: How many records each class has.

    Returns:
        Positive definite matrices.
    """
    shares = counts / counts.sum()
    pooled = (shares[:, None, None] * products).sum(0)
    variances, directions = torch.linalg.eigh(pooled)
    unseen = float((shares * noise).square().sum().sqrt()) * math.sqrt(len(variances))
    variances = variances.clamp_min(max(unseen, 1e-6 * float(variances[-1]), 1e-12))
    whitened = directions / variances.sqrt()
    products = whitened.T @ products @ whitened
    hidden = noise.square()[:, None, None] / torch.outer(variances, variances)
    same = torch.eye(len(variances), dtype=products.dtype)
    found = same + shrunk(products - same, hidden, counts)[0]
    values, vectors = torch.linalg.eigh(found)
    found = vectors @ torch.diag_embed(values.clamp_min(_LEAST_VARIANCE)) @ vectors.mT
    back = directions * variances.sqrt()
    return back @ found @ back.T


class Normals:
    """A normal distribution for every class."""

    def __init__(self, means: torch.Tensor, covariances: torch.Tensor, counts: torch.Tensor) -> None:
        self._means, self._shares = means, counts / counts.sum()
        values, vectors = torch.linalg.eigh(covariances)
        self._roots = vectors * values.clamp_min(0).sqrt()[:, None, :]

    def sample(self, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of so many records, the labels in their shares."""
        labels = torch.multinomial(self._shares, rows, replacement=True, generator=generator)
        drawn = torch.randn(rows, self._means.shape[1], dtype=torch.float64, generator=generator)
        found = self._means[labels].clone()
        for label in range(len(self._means)):
            own = labels == label
            found[own] += drawn[own] @ self._roots[label].T
        return found, labels

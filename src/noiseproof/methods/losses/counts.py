"""Private counts of a table's columns and pairs of columns: values as slots, rare ones joined, noise on what is given out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.data.lazy import in_memory
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses.coding import Coding
from noiseproof.methods.losses.differences import Differences
from noiseproof.methods.losses.mixture import Columns, Measurement, evenly
from noiseproof.methods.losses.ranges import halves, slot_counts, smoothed
from noiseproof.privacy import EventLog, Exponential, Gaussian, Neighbours, Randomness
from noiseproof.privacy.events import DpEvent, GaussianDpEvent, ReplaceOneDpEvent

_FINE, _COARSE = 64, 16
"""Equal parts of a number's range: of few columns, and of so many that their slots would be too many otherwise."""
_MOST_FEATURES, _LEVELS = 128, 8
"""Features of a vector or a picture that make columns, at most, and the levels that each of them has."""
_SLACK = 1 + 1e-6
"""What one record moves a pair's error by, rounding included."""
_NOISE_FLOOR = 1.0
"""Slots whose noisy count is below so many standard deviations are joined with others."""
_TELLING, _GRID = 16, 256
"""Categories from which on they tell how common each other are, and different counts that are told apart for it, at most."""
_ROWS = 1 << 15


def count_event(sigma: float, neighbours: Neighbours) -> DpEvent:
    """Gaussian noise on counts: a unit adds shares of 1 to cells, so that exchanging two moves them by sqrt(2) at most.

    So it is with everything to which no two units add in opposite directions: their inner product is not negative.
    """
    if neighbours == "replace-one":
        return ReplaceOneDpEvent(GaussianDpEvent(sigma / math.sqrt(2)))
    return GaussianDpEvent(sigma)


class View:
    """Records as places of slots, one a column, the target last; of vectors and small pictures, every feature a column.

    Columns that come after others by a public rule (`orders`, as `Conditions.orders` has them) are known by the difference.
    """

    def __init__(self, public: Public, orders: Sequence[tuple[str, str]] = ()) -> None:
        self._differences = Differences(public, orders)
        public = self._differences.public
        if public.kind == "table" and public.columns:
            described = public
        elif math.prod(public.shape) <= _MOST_FEATURES:
            names = (f"feature {place}" for place in range(math.prod(public.shape)))
            columns = tuple(Column(name, low=0.0, high=_LEVELS - 1, integer=True) for name in names)
            described = replace(public, kind="table", columns=columns, shape=(len(columns),))
        else:
            raise DataError(
                f"marginals counts every pair of columns, and {math.prod(public.shape)} features are more than "
                f"{_MOST_FEATURES}; take moments for pictures."
            )
        try:
            self.coding = Coding(described, steps=_FINE)
        except SettingError:
            self.coding = Coding(described, steps=_COARSE)
        self.sizes: tuple[int, ...] = (*self.coding.sizes, len(public.classes))
        self.widths: tuple[torch.Tensor | None, ...] = (*self.coding.widths, None)
        """How wide each slot of a number is; None for categories."""

    def ranges(self, sigmas: Sequence[float], records: int) -> list[torch.Tensor | None]:
        """What a record in each slot of a number adds to every range that is counted.

        None where slots themselves are: those of categories, and of numbers whose slots would show above the noise if all
        were as common.
        """
        return [
            None if width is None or sigma * size <= records else halves(len(width), missing=size > len(width))
            for size, width, sigma in zip(self.sizes, self.widths, sigmas, strict=True)
        ]

    def slots(self, dataset: Dataset) -> torch.Tensor:
        """(records, columns), the smallest whole numbers that hold them."""
        found = torch.empty(len(dataset), len(self.sizes), dtype=torch.int16)
        for part, out in zip(dataset.features.split(_ROWS), found.split(_ROWS), strict=True):
            out[:, :-1] = self.coding.slots(self._differences.apart(in_memory(part).flatten(1)))
        found[:, -1] = dataset.labels
        return found

    def features(self, slots: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Coded records, (records, features), with these slots of all columns but the target."""
        return self._differences.together(self.coding.from_slots(slots, generator))


class Groups:
    """Slots that are told apart in pairs: rare ones are joined, and neighbouring numbers until enough records have them.

    Formal guarantee
    ----------------
    None is needed: it reads noisy counts and public sizes.
    """

    def __init__(
        self,
        noisy: list[torch.Tensor],
        widths: Sequence[torch.Tensor | None],
        ranges: Sequence[torch.Tensor | None],
        sigmas: Sequence[float],
        records: int,
        most: int,
    ) -> None:
        self.fine: list[torch.Tensor] = []
        """The shares of every slot."""
        self.of_slot: list[torch.Tensor] = []
        """The group of every slot, by column."""
        self._sigmas: list[float] = []
        for counts, width, adds, sigma in zip(noisy, widths, ranges, sigmas, strict=True):
            floor = _NOISE_FLOOR * sigma
            covariance: torch.Tensor | None = None
            if width is None:
                found = denoised(counts, sigma, records)
                groups = _rare_joined(found, floor)
            else:
                if adds is None:
                    found = smoothed(counts, width, sigma**2 * torch.eye(len(counts), dtype=torch.float64))
                else:
                    slots, covariance = slot_counts(counts, adds, sigma, records)
                    found = smoothed(slots, width, covariance, doubted=True)
                groups = _neighbours_joined(found, len(width), max(floor, records / most))
            noise = sigma * math.sqrt(len(groups) / (int(groups.max()) + 1))
            if covariance is not None:
                member = functional.one_hot(groups).double()
                noise = math.sqrt(float((member.T @ covariance @ member).diagonal().mean().clamp_min(1e-12)))
            self.fine.append(_on_simplex(found / max(1, records)))
            self.of_slot.append(groups)
            self._sigmas.append(noise)
        self.sizes = tuple(int(groups.max()) + 1 for groups in self.of_slot)

    def measured(self, records: int) -> list[Measurement]:
        """The shares of every column's groups, of so many records."""
        return [
            Measurement((column,), torch.zeros(size).index_add(0, groups, fine.float()), noise / records)
            for column, (fine, groups, size, noise) in enumerate(
                zip(self.fine, self.of_slot, self.sizes, self._sigmas, strict=True)
            )
        ]

    def slot(self, column: int, group: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A slot for every group that was drawn, by the slots' own shares."""
        order = self.of_slot[column].argsort(stable=True)
        shares = self.fine[column][order] + 1e-12
        ends = shares.cumsum(0)
        size = torch.zeros(self.sizes[column], dtype=torch.float64).index_add(0, self.of_slot[column][order], shares)
        high = size.cumsum(0)
        drawn = high[group] - size[group] * evenly(group, generator)
        return order[torch.searchsorted(ends, drawn.clamp(max=float(ends[-1]))).clamp(max=len(order) - 1)]


def denoised(counts: torch.Tensor, sigma: float, records: int) -> torch.Tensor:
    """Noisy counts of categories, each nearer to those that are about as common: what all of them say that it likely is.

    How common categories are is estimated from all counts (the nonparametric maximum likelihood of Kiefer and Wolfowitz,
    by expectation-maximization), and each count becomes its posterior mean. Few categories tell too little of each other:
    theirs are only made as even as noise explains, where it hides them.
    """
    if len(counts) < _TELLING:
        return _evened(counts, sigma, records) if sigma * len(counts) > records else counts
    grid = counts.clamp_min(0).unique()
    if len(grid) > _GRID:
        grid = grid.quantile(torch.linspace(0, 1, _GRID, dtype=grid.dtype))
    grid = torch.cat([grid.new_zeros(1), grid])
    fits = -((counts[:, None] - grid) / sigma).square() / 2
    common = torch.full_like(grid, -math.log(len(grid)))
    for _ in range(100):
        common = (fits + common).log_softmax(1).logsumexp(0) - math.log(len(counts))
    return (fits + common).softmax(1) @ grid


def _evened(counts: torch.Tensor, sigma: float, records: int) -> torch.Tensor:
    """As much nearer to even counts as noise makes up of the difference (James and Stein), or of one of half the records."""
    noise, more = (len(counts) - 1) * sigma**2, counts - counts.mean()
    seen = max(0.0, 1 - noise / max(float(more.square().sum()), 1e-300))
    likely = (records / 2) ** 2 / ((records / 2) ** 2 + noise)
    return records / len(counts) + min(seen, likely) * more


def _neighbours_joined(counts: torch.Tensor, numbers: int, floor: float) -> torch.Tensor:
    """Groups of neighbouring numbers with at least `floor` records each, by their noisy counts; what is missing is alone."""
    groups, group, mass = torch.zeros(len(counts), dtype=torch.int64), 0, 0.0
    for place, count in enumerate(counts[:numbers].clamp_min(0).tolist()):
        groups[place] = group
        mass += count
        if mass >= floor:
            group, mass = group + 1, 0.0
    last = int(groups.max())
    if mass and last == group:
        groups.clamp_(max=max(0, last - 1))
    groups[numbers:] = int(groups.max()) + 1
    return groups


def _rare_joined(counts: torch.Tensor, floor: float) -> torch.Tensor:
    """A group for every slot above the floor, and one for all the others."""
    rare = counts < floor
    if int(rare.sum()) <= 1:
        return torch.arange(len(counts))
    common = len(counts) - int(rare.sum())
    return torch.where(rare, common, (~rare).cumsum(0) - 1)


def _on_simplex(values: torch.Tensor) -> torch.Tensor:
    """The nearest shares: not negative, and 1 together."""
    ordered = values.double().sort(descending=True).values
    over = ordered.cumsum(0) - 1
    places = torch.arange(1, len(values) + 1)
    last = int((ordered - over / places > 0).sum())
    return (values.double() - over[last - 1] / last).clamp_min(0)


class Counts:
    """The private records' counts; each is noted in the log before it is given out with noise."""

    def __init__(
        self,
        dataset: Dataset,
        view: View,
        neighbours: Neighbours,
        rng: Randomness,
        log: EventLog,
        ranges: Sequence[torch.Tensor | None] = (),
    ) -> None:
        self._slots = view.slots(dataset)
        self._sizes = view.sizes
        self._ranges: Sequence[torch.Tensor | None] = ranges or (None,) * len(view.sizes)
        weights = dataset.weights
        self._weights = None if weights is None else weights.numpy()
        self._near, self._rng, self._log = neighbours, rng, log
        self.records = dataset.persons
        self._counted: dict[Columns, torch.Tensor] = {}

    def group(self, groups: Groups) -> None:
        """Tell only groups of slots apart from now on."""
        parts = [groups.of_slot[place].short()[column.long()] for place, column in enumerate(self._slots.unbind(1))]
        self._slots, self._sizes, self._ranges = torch.stack(parts, dim=1), groups.sizes, (None,) * len(parts)
        self._counted.clear()

    def _exact(self, columns: Columns) -> torch.Tensor:
        """The count of every cell: a record, or a person, adds 1 to one cell, or shares of 1 to several."""
        if columns not in self._counted:
            sizes = [self._sizes[column] for column in columns]
            cells = np.ravel_multi_index([self._slots[:, column].numpy() for column in columns], sizes)
            counted = np.bincount(cells, self._weights, minlength=math.prod(sizes)).astype(np.float64)
            self._counted[columns] = torch.from_numpy(counted).view(*sizes)
        return self._counted[columns]

    def exact(self, columns: Columns) -> torch.Tensor:
        """What noise is added to: the count of every cell, or of every range of a single number's values."""
        ranges = self._ranges[columns[0]] if len(columns) == 1 else None
        return self._exact(columns) if ranges is None else ranges @ self._exact(columns)

    def noised(self, columns: Columns, sigma: float, times: int = 1) -> torch.Tensor:
        """The noisy counts of every cell of some columns, so many times over."""
        self._log.append(count_event(sigma, self._near), times)
        exact = self.exact(columns)
        return Gaussian(1.0, sigma).release(exact.expand(times, *exact.shape).contiguous(), self._rng)

    def measure(self, columns: Columns, sigma: float) -> Measurement:
        """The noisy counts of some columns as shares of the records."""
        shares = self.noised(columns, sigma)[0] / self.records
        return Measurement(columns, shares.float(), sigma / self.records)

    def choose(
        self, pairs: list[Columns], count: int, model: dict[Columns, torch.Tensor], sigma: float, epsilon: float
    ) -> list[Columns]:
        """Take so many pairs out of `pairs` that the model is most wrong about, beyond what noise of `sigma` would add."""
        errors = torch.stack([(self._exact(pair) - self.records * model[pair]).abs().sum() for pair in pairs])
        cells = torch.tensor([self._sizes[one] * self._sizes[other] for one, other in pairs], dtype=torch.float64)
        scores = errors - math.sqrt(2 / math.pi) * sigma * cells
        mechanism = Exponential(_SLACK * (2 if self._near == "replace-one" else 1), epsilon, self._near)
        found = []
        for _ in range(count):
            self._log.append(mechanism.event)
            place = int(mechanism.release(scores.unsqueeze(0), self._rng))
            found.append(pairs.pop(place))
            scores = torch.cat([scores[:place], scores[place + 1 :]])
        return found

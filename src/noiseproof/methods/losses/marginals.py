"""marginals: noisy counts of columns and pairs of columns, chosen by a private look, and a mixture fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch

from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.errors import DataError, SettingError
from noiseproof.methods import register
from noiseproof.methods.common import BelowOne, Count, Positive, claim_of, initial_seed, proven_game, seeded_by
from noiseproof.methods.losses.coding import Coding, check_records
from noiseproof.methods.losses.conditions import Conditions
from noiseproof.methods.losses.gan import BINS, Synthesizer, as_classes
from noiseproof.methods.losses.mixture import Columns, Measurement, Mixture
from noiseproof.networks import Network
from noiseproof.privacy import Budget, EventLog, Exponential, Game, Gaussian, Randomness, accountants, calibration
from noiseproof.privacy.budget import Neighbours
from noiseproof.privacy.card import Unit
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, GaussianDpEvent, PureDpEvent, SelfComposedDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease
from noiseproof.tensors import seeded_generator

ASSUMPTIONS = (
    "the number of records is public: how many pairs are counted and the number of rows follow from it",
    "counts and the errors that pairs are chosen by are exact up to a millionth of a record",
)
_FINE, _COARSE = 64, 16
"""Equal parts of a number's range: of few columns, and of so many that their slots would be too many otherwise."""
_MOST_FEATURES, _LEVELS = 128, 8
"""Features of a vector or a picture that make columns, at most, and the levels that each of them has."""
_SLACK = 1 + 1e-6
"""What one record moves a pair's error by, rounding included."""
_NOISE_FLOOR = 3.0
"""Slots whose noisy count is below so many standard deviations are joined with others."""
_ROWS = 1 << 16


@dataclass(frozen=True)
class Plan:
    """How noisy everything will be, from public numbers alone."""

    columns: int
    pairs: int
    """Pairs of columns that are counted, those with the target among them."""
    chosen: int
    """How many of them are chosen by a private look; 0 where all are counted."""
    one_way: float
    """The noise's standard deviation on counts of one column's slots."""
    pair: float
    """The same on pairs of columns."""
    target: float
    """The same on pairs with the target, of which there are one fewer than columns, or fewer where pairs are."""
    choice: float
    """The epsilon of one choice."""
    neighbours: Neighbours

    @property
    def with_target(self) -> int:
        """How many of the pairs are with the target."""
        return min(self.pairs, self.columns - 1)

    @property
    def event(self) -> DpEvent:
        """All that is done to the records."""
        parts: list[DpEvent] = [SelfComposedDpEvent(GaussianDpEvent(self.one_way), self.columns)]
        if self.with_target:
            parts.append(SelfComposedDpEvent(GaussianDpEvent(self.target), self.with_target))
        if self.pairs > self.with_target:
            parts.append(SelfComposedDpEvent(GaussianDpEvent(self.pair), self.pairs - self.with_target))
        if self.chosen:
            parts.append(
                SelfComposedDpEvent(PureDpEvent(self.choice, self.neighbours, bounded_range=True), self.chosen)
            )
        return ComposedDpEvent(parts)


@register
@dataclass(frozen=True)
class Marginals(Synthesizer):
    """Noisy counts of columns and of pairs of columns; a mixture of simple distributions is fitted to all of them.

    Every column is counted by itself, and with the target. Which other pairs are counted is chosen in a few rounds, by the
    exponential mechanism, where the model so far is most wrong; where the budget is ample, all are. Values that are too rare
    for the noise are joined for counting pairs. What is fitted, sampled and joined follows from noisy counts alone.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP of the budget for the synthetic records. Each table of counts is a Gaussian mechanism: a record
    lies in one cell, so that it adds 1. Each choice is an exponential mechanism over the L1 distances between a pair's
    counts and the model's, which a record moves by at most 1. How many there are and their noise is fixed beforehand from
    public numbers, so that adaptive composition applies as it is. Unit: record, or person, whose records then count for
    1 together. Neighbours: as the budget says. McKenna, Mullins, Sheldon and Miklau 2022 (AIM) choose and measure so;
    Liu, Vietri and Wu 2021 fit a generator.
    Costs: seconds to a minute, whatever the number of records.
    """

    name: ClassVar[str] = "marginals"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record"

    where: str = ""
    """What every synthetic row must meet, such as `age >= 60 and discharge >= admission`: a condition or a public rule."""
    pairs: Count | None = None
    """Pairs of columns to count; None by the number of records, columns and the budget."""
    one_way: BelowOne = 0.15
    """The share of the budget (in zCDP) for counts of single columns."""
    choice: BelowOne = 0.1
    """The share for choosing pairs, where not all are counted."""
    emphasis: Positive = 3.0
    """How many times the budget of another pair one with the target has."""
    rounds: Count = 6
    components: Count = 512
    """Product distributions that the mixture is made of."""
    values: Count = 24
    """Groups of a number's values that pairs are counted over, at most about so many."""
    steps: Count = 120
    """Steps of fitting in a round; three times as many at the end."""
    lr: Positive = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one_way <= 0 or self.choice <= 0 or self.one_way + self.choice >= 1:
            raise SettingError("marginals' shares one_way and choice must be above 0, and below 1 together.")
        Conditions.read(self.where)

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> DataRelease:
        """Count within the budget, fit the mixture and release `rows` synthetic records."""
        given, dataset = dataset, as_classes(dataset)
        check_records(dataset)
        view = View(dataset.public)
        conditions = Conditions.read(self.where).of(given.public)
        plan = self.plan(view.sizes, dataset.persons, budget)
        log = EventLog()
        counts = Counts(dataset, view, budget, rng, log)
        groups, measured = self._one_way(counts, plan, view)
        counts.group(groups)
        mixture = Mixture(groups.sizes, self.components, seeded_generator(initial_seed(rng)))
        mixture.start_at([one.shares for one in measured])
        with progress.task(self.name, self.rounds + 1) as task:
            for pairs in self._pairs(counts, plan, mixture):
                measured += counts.measure(pairs, plan)
                loss = mixture.fit(measured, self.steps, self.lr)
                task.advance(pairs=len(measured) - plan.columns, loss=loss)
            task.advance(loss=mixture.fit(measured, 3 * self.steps, self.lr))
        spent = accountants.epsilon(log.event, budget.delta, accountant="rdp", neighbours=budget.neighbours)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=claim_of(budget),
            proven=spent.proof(*ASSUMPTIONS, *rng.assumptions),
            ran={
                "pairs counted": plan.pairs,
                "pairs chosen": plan.chosen,
                "one-way sigma": plan.one_way,
                "pair sigma": plan.pair,
                "target pair sigma": plan.target,
            },
        )
        rows = dataset.persons if self.rows is None else self.rows
        synthetic = sample(mixture, groups, view, given, rows, conditions)
        release = DataRelease(synthetic, card, self.settings())
        release.event_log = log.runs
        return release

    def plan(self, sizes: tuple[int, ...], records: int, budget: Budget) -> Plan:
        """How many pairs are counted and with how much noise: more pairs for more records, a larger budget, fewer cells."""
        columns = len(sizes)
        everything = columns * (columns - 1) // 2
        cells = sum(min(size, self.values) for size in sizes) ** 2 / columns**2
        rho = 0.5 / calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma ** 2
        # So many that the noise alone moves a pair's shares by a fifth or less: the mixture evens most of it out.
        affordable = 2 * rho * (1 - self.one_way - self.choice) * (records / (2 * cells)) ** 2
        pairs = min(everything, self.pairs or max(columns - 1, math.floor(min(affordable, 1e9))))
        chosen = 0 if pairs == everything else max(0, pairs - (columns - 1))
        choice = self.choice if chosen else 0.0
        # Pairs with the target are what classifiers learn from: each has the budget of several others.
        shares = pairs + (self.emphasis - 1) * min(pairs, columns - 1)

        def at(noise: float) -> Plan:
            return Plan(
                columns,
                pairs,
                chosen,
                one_way=noise * math.sqrt(columns / self.one_way),
                pair=noise * math.sqrt(max(1, shares) / (1 - self.one_way - choice)),
                target=noise * math.sqrt(max(1, shares) / (1 - self.one_way - choice) / self.emphasis),
                choice=2 / noise * math.sqrt(choice / max(1, chosen)),
                neighbours=budget.neighbours,
            )

        def epsilon(noise: float) -> float:
            near = budget.neighbours
            return accountants.epsilon(at(noise).event, budget.delta, accountant="rdp", neighbours=near).epsilon

        return at(calibration.calibrate(epsilon, budget.epsilon, low=1e-3))

    def _one_way(self, counts: Counts, plan: Plan, view: View) -> tuple[Groups, list[Measurement]]:
        """Every column's noisy counts, and its rare values joined."""
        noisy = [counts.noised((column,), plan.one_way)[0] for column in range(plan.columns)]
        groups = Groups(noisy, view.ordered, plan.one_way, counts.records, self.values)
        return groups, [
            Measurement((column,), shares, plan.one_way * math.sqrt(joined) / counts.records)
            for column, (shares, joined) in enumerate(zip(groups.shares, groups.joined, strict=True))
        ]

    def _pairs(self, counts: Counts, plan: Plan, mixture: Mixture) -> Iterator[list[Columns]]:
        """The pairs to count, some at a time: all with the target first."""
        target = plan.columns - 1
        first: list[Columns] = [(column, target) for column in range(min(target, plan.pairs))]
        others: list[Columns] = [(one, other) for one, other in combinations(range(target), 2)]
        yield first
        if not plan.chosen:
            yield others[: plan.pairs - len(first)]
            return
        rounds = min(self.rounds, plan.chosen)
        for turn in range(rounds):
            take = plan.chosen // rounds + (turn < plan.chosen % rounds)
            yield counts.choose(others, take, mixture, plan)

    def game(self, budget: Budget) -> Game:
        """A canary whose value nobody else has, in every count of a training that counts four columns and their pairs."""
        return self._game(budget, 1)

    def _game(self, budget: Budget, canaries: int) -> Game:
        columns = tuple(Column(name, categories=("usual", "rare")) for name in "abc")
        public = Public(shape=(6,), classes=("no", "yes"), kind="table", columns=columns, target="y")
        view = View(public)
        plan = self.plan(view.sizes, 100, budget)
        near = budget.neighbours
        usual = torch.tensor([1.0, 0.0]).repeat(99, 3)

        def counted(world: int) -> Dataset:
            extra = torch.tensor([0.0, 1.0] if world else [1.0, 0.0]).repeat(canaries, 3)
            there = bool(world) or near == "replace-one"
            features = torch.cat([usual, extra]) if there else usual
            labels = torch.cat([torch.zeros(99), torch.full((canaries if there else 0,), float(world))]).long()
            groups = torch.arange(len(labels)).clamp(max=99) if canaries > 1 else None
            return Dataset("canary", features, labels, public, groups)

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            one = Counts(counted(world), view, budget, rng, EventLog())
            tables: list[tuple[Columns, float]] = [((column,), plan.one_way) for column in range(4)]
            tables += [((column, 3), plan.target) for column in range(plan.with_target)]
            others: list[Columns] = [(0, 1), (0, 2), (1, 2)]
            tables += [(pair, plan.pair) for pair in others[: plan.pairs - plan.with_target]]
            # Everything that the canary adds to, weighed by its exactness, is the sufficient statistic.
            return sum(
                (one.noised(columns, sigma, trials).flatten(1)[:, -1] / sigma**2 for columns, sigma in tables),
                start=torch.zeros(trials, dtype=torch.float64),
            )

        spent = accountants.epsilon(plan.event, budget.delta, accountant="rdp", neighbours=near)
        unit: Unit = "person" if canaries > 1 else "record"
        name = f"{self.name}: a canary with values that nobody else has"
        return proven_game(name, play, budget, spent.proof(), source="the accountant", gaussian=True, unit=unit)


class View:
    """Records as places of slots, one a column, the target last; of vectors and small pictures, every feature a column."""

    def __init__(self, public: Public) -> None:
        if public.kind == "table" and public.columns:
            described = public
        elif math.prod(public.shape) <= _MOST_FEATURES:
            names = (f"feature {place}" for place in range(math.prod(public.shape)))
            columns = tuple(Column(name, low=0.0, high=_LEVELS - 1, integer=True) for name in names)
            described = replace(public, kind="table", columns=columns, shape=(len(columns),))
        else:
            raise DataError(
                f"marginals counts every pair of columns, and {math.prod(public.shape)} features are more than "
                f"{_MOST_FEATURES}; take dp-gan for pictures."
            )
        try:
            self.coding = Coding(described, steps=_FINE)
        except SettingError:
            self.coding = Coding(described, steps=_COARSE)
        self.sizes: tuple[int, ...] = (*self.coding.sizes, len(public.classes))
        self.ordered: tuple[bool, ...] = (*self.coding.ordered, False)

    def slots(self, dataset: Dataset) -> torch.Tensor:
        """(records, columns), the smallest whole numbers that hold them."""
        parts = [self.coding.slots(part.flatten(1)).short() for part in dataset.features.split(_ROWS)]
        features = torch.cat(parts) if parts else torch.zeros(0, len(self.sizes) - 1, dtype=torch.int16)
        return torch.cat([features, dataset.labels.short().unsqueeze(1)], dim=1)


class Groups:
    """Slots that are told apart in pairs: rare ones are joined, and neighbouring numbers until enough records have them.

    Formal guarantee
    ----------------
    None is needed: it reads noisy counts and public sizes.
    """

    def __init__(
        self, noisy: list[torch.Tensor], ordered: tuple[bool, ...], sigma: float, records: int, most: int
    ) -> None:
        self.fine = [_on_simplex(counts / max(1, records)) for counts in noisy]
        """The shares of every slot."""
        self.of_slot = [
            _neighbours_joined(counts, max(_NOISE_FLOOR * sigma, records / most))
            if in_order
            else _rare_joined(counts, _NOISE_FLOOR * sigma)
            for counts, in_order in zip(noisy, ordered, strict=True)
        ]
        """The group of every slot, by column."""
        self.sizes = tuple(int(groups.max()) + 1 for groups in self.of_slot)
        self.joined = [len(groups) / size for groups, size in zip(self.of_slot, self.sizes, strict=True)]
        """How many slots a group has on average."""

    @property
    def shares(self) -> list[torch.Tensor]:
        """The shares of every group."""
        found = zip(self.fine, self.of_slot, self.sizes, strict=True)
        return [torch.zeros(size).index_add(0, groups, fine.float()) for fine, groups, size in found]

    def slot(self, column: int, group: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A slot for every group that was drawn, by the slots' own shares."""
        order = self.of_slot[column].argsort(stable=True)
        shares = self.fine[column][order] + 1e-12
        ends = shares.cumsum(0)
        size = torch.zeros(self.sizes[column], dtype=torch.float64).index_add(0, self.of_slot[column][order], shares)
        high = size.cumsum(0)
        drawn = high[group] - size[group] * torch.rand(len(group), dtype=torch.float64, generator=generator)
        return order[torch.searchsorted(ends, drawn.clamp(max=float(ends[-1]))).clamp(max=len(order) - 1)]


def _neighbours_joined(counts: torch.Tensor, floor: float) -> torch.Tensor:
    """Groups of neighbouring slots with at least `floor` records each, by their noisy counts."""
    groups, group, mass = torch.zeros(len(counts), dtype=torch.int64), 0, 0.0
    for place, count in enumerate(counts.clamp_min(0).tolist()):
        groups[place] = group
        mass += count
        if mass >= floor:
            group, mass = group + 1, 0.0
    last = int(groups.max())
    return groups.clamp(max=max(0, last - 1)) if mass and last == group else groups


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

    def __init__(self, dataset: Dataset, view: View, budget: Budget, rng: Randomness, log: EventLog) -> None:
        self._slots = view.slots(dataset)
        self._sizes = view.sizes
        weights = dataset.weights
        self._weights = None if weights is None else weights.numpy()
        self._near, self._rng, self._log = budget.neighbours, rng, log
        self.records = dataset.persons
        self._counted: dict[Columns, torch.Tensor] = {}

    def group(self, groups: Groups) -> None:
        """Tell only groups of slots apart from now on."""
        parts = [groups.of_slot[place].short()[column.long()] for place, column in enumerate(self._slots.unbind(1))]
        self._slots, self._sizes = torch.stack(parts, dim=1), groups.sizes
        self._counted.clear()

    def _exact(self, columns: Columns) -> torch.Tensor:
        """The count of every cell: a record, or a person, adds 1 to one cell, or shares of 1 to several."""
        if columns not in self._counted:
            sizes = [self._sizes[column] for column in columns]
            cells = np.ravel_multi_index([self._slots[:, column].numpy() for column in columns], sizes)
            counted = np.bincount(cells, self._weights, minlength=math.prod(sizes)).astype(np.float64)
            self._counted[columns] = torch.from_numpy(counted).view(*sizes)
        return self._counted[columns]

    def noised(self, columns: Columns, sigma: float, times: int = 1) -> torch.Tensor:
        """The noisy counts of every cell of some columns, so many times over."""
        self._log.append(GaussianDpEvent(sigma), times)
        exact = self._exact(columns)
        return Gaussian(1.0, sigma).release(exact.expand(times, *exact.shape).contiguous(), self._rng)

    def measure(self, pairs: list[Columns], plan: Plan) -> list[Measurement]:
        """The noisy counts of some pairs, as shares of the records."""
        found = []
        for pair in pairs:
            sigma = plan.target if pair[1] == plan.columns - 1 else plan.pair
            shares = self.noised(pair, sigma)[0] / self.records
            found.append(Measurement(pair, shares.float(), sigma / self.records))
        return found

    def choose(self, pairs: list[Columns], count: int, mixture: Mixture, plan: Plan) -> list[Columns]:
        """Take so many pairs out of `pairs` that the mixture is most wrong about, beyond what the noise would add."""
        model = mixture.pairs()
        errors = torch.stack([(self._exact(pair) - self.records * model[pair]).abs().sum() for pair in pairs])
        cells = torch.tensor([self._sizes[one] * self._sizes[other] for one, other in pairs], dtype=torch.float64)
        scores = errors - math.sqrt(2 / math.pi) * plan.pair * cells
        sensitivity = _SLACK * (2 if self._near == "replace-one" else 1)
        mechanism = Exponential(sensitivity, plan.choice, self._near)
        found = []
        for _ in range(count):
            self._log.append(mechanism.event)
            place = int(mechanism.release(scores.unsqueeze(0), self._rng))
            found.append(pairs.pop(place))
            scores = torch.cat([scores[:place], scores[place + 1 :]])
        return found


def sample(
    mixture: Mixture, groups: Groups, view: View, dataset: Dataset, rows: int, conditions: Conditions
) -> Dataset:
    """Synthetic records that meet the conditions, coded like the private ones: drawn until there are enough."""
    generator = mixture.generator
    public = dataset.public
    features, labels, kept, drawn = [], [], 0, 0
    while kept < rows:
        wanted = min(_ROWS, rows - kept) if not conditions.any else _ROWS
        places = mixture.sample(wanted)
        slots = torch.stack(
            [groups.slot(column, group, generator) for column, group in enumerate(places.unbind(1))], dim=1
        )
        made = view.coding.from_slots(slots[:, :-1], generator).view(-1, *public.shape)
        label = slots[:, -1]
        if public.task != "classification":
            label = ((label + torch.rand(len(label), generator=generator)) / BINS).float()
        meets = conditions.met(public, made, label)
        features.append(made[meets][: rows - kept])
        labels.append(label[meets][: rows - kept])
        kept, drawn = kept + len(labels[-1]), drawn + wanted
        if drawn > 1000 * _ROWS or (kept == 0 and drawn > 50 * _ROWS):
            raise DataError(
                "hardly any synthetic record meets the condition `where`; nothing is written, and the budget of this "
                "run is spent. Loosen it."
            )
    if not features:
        return Dataset(f"synthetic {dataset.name}", torch.zeros(0, *public.shape), dataset.labels[:0], public)
    return Dataset(f"synthetic {dataset.name}", torch.cat(features), torch.cat(labels), public)

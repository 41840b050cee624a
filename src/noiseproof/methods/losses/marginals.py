"""marginals: noisy counts of columns, pairs and triples of them, chosen by a private look, and a mixture fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch

from noiseproof.data.compact import CompactTable
from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.data.lazy import SMALL, StoredTensor
from noiseproof.errors import DataError, SettingError
from noiseproof.methods import register
from noiseproof.methods.common import BelowOne, Count, Positive, claim_of, initial_seed, proven_game, seeded_by
from noiseproof.methods.losses.coding import check_records
from noiseproof.methods.losses.conditions import Conditions
from noiseproof.methods.losses.counts import Counts, Groups, View, count_event
from noiseproof.methods.losses.gan import BINS, Synthesizer, as_classes
from noiseproof.methods.losses.mixture import Columns, Mixture
from noiseproof.networks import Network
from noiseproof.privacy import Budget, EventLog, Game, Neighbours, Randomness, Reproducible, accountants, calibration
from noiseproof.privacy.accountants import Spent
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, PureDpEvent, SelfComposedDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease
from noiseproof.tensors import seeded_generator

ASSUMPTIONS = (
    "the number of records is public: how many pairs are counted and the number of rows follow from it",
    "counts and the errors that pairs are chosen by are exact up to a millionth of a record",
)
_ROWS = 1 << 15
"""Synthetic rows that are drawn at a time."""
_MANY = 1 << 17
"""Synthetic rows of which chance makes no odds: their target is drawn with the rest."""
_FEW, _CELLS = 4, 1 << 23
"""Values of a target that is counted in triples, and cells of pairs of slots with it, at most: fitting looks at all of them."""
_HALVES = 4
"""Cells of halves of a column by halves of the target."""
_VALUES = range(24, 7, -1)
"""Groups of a number's values that pairs may be counted over."""
_ONE_WAY = (0.15, 0.3, 0.5)
"""The columns' share of the budget where noise leaves all pairs of the finest groups, fewer or coarser ones, hardly those with
the target."""
_FEWEST_COMPONENTS, _MOST_COMPONENTS, _RECORDS_A_COMPONENT = 256, 1024, 8


@dataclass(frozen=True)
class NoiseLevels:
    """How noisy everything will be, from public numbers alone."""

    columns: int
    pairs: int
    """Pairs of columns that are counted, those with the target among them."""
    chosen: int
    """How many of them are chosen by a private look; 0 where all are counted."""
    values: int
    """Groups of a number's values that pairs are counted over, at most about so many."""
    one_way: tuple[float, ...]
    """The noise's standard deviation on counts of each column's slots."""
    pair: float
    """The same on pairs of columns."""
    target: float
    """The same on pairs with the target, of which there are one fewer than columns, or fewer where pairs are."""
    triples: int
    """Pairs of columns that are counted with the target: all or none."""
    triple: float
    """The noise on them."""
    choice: float
    """The epsilon of one choice."""
    neighbours: Neighbours

    @property
    def with_target(self) -> int:
        """How many of the pairs are with the target."""
        return min(self.pairs, self.columns - 1)

    def sigma(self, pair: Columns) -> float:
        """The noise on the counts of a pair."""
        return self.target if pair[1] == self.columns - 1 else self.pair

    @property
    def event(self) -> DpEvent:
        """All that is done to the records."""
        others = self.pairs - self.with_target
        tables = (
            *((sigma, 1) for sigma in self.one_way),
            (self.target, self.with_target),
            (self.pair, others),
            (self.triple, self.triples),
        )
        parts: list[DpEvent] = [
            SelfComposedDpEvent(count_event(sigma, self.neighbours), count) for sigma, count in tables if count
        ]
        if self.chosen:
            choice = PureDpEvent(self.choice, self.neighbours, bounded_range=True)
            parts.append(SelfComposedDpEvent(choice, self.chosen))
        return ComposedDpEvent(parts)

    def spent(self, event: DpEvent, delta: float) -> Spent:
        """What an event like the plan's costs, by the tightest accountant: Gaussian noise alone composes exactly."""
        accountant = "rdp" if self.chosen else "gdp"
        return accountants.epsilon(event, delta, accountant=accountant, neighbours=self.neighbours)


@register
@dataclass(frozen=True)
class Marginals(Synthesizer):
    """Noisy counts of columns and of pairs of columns; a mixture of simple distributions is fitted to all of them.

    Every column is counted by itself, and with the target unless noise would hide all of that. Which other pairs are counted
    is chosen in a few rounds, by the exponential mechanism, where the model so far is most wrong; where the budget is ample,
    all are, and each with the target, too. Values that are too rare for the noise are joined for counting pairs. What is
    fitted, sampled and joined follows from noisy counts alone.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP of the budget for the synthetic records. Each table of counts is a Gaussian mechanism: a record lies
    in one cell, so that it adds 1, or in one range of each length of a number's, to which it adds a norm of 1. Each choice
    is an exponential mechanism over the L1 distances between a pair's counts and the model's, which a record moves by at
    most 1. How many there are and their noise is fixed beforehand from public numbers, so that adaptive composition applies
    as it is. Unit: record, or person, whose records then count for 1 together. Neighbours: as the budget says. McKenna,
    Mullins, Sheldon and Miklau 2022 (AIM) choose and measure so; Liu, Vietri and Wu 2021 fit a generator.
    Costs: seconds to a minute, whatever the number of records.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("marginals", records, epsilon=3, rows=100, components=16, steps=10)
        >>> release.card.verdict
        'proven'
        >>> release.dataset.features.shape
        torch.Size([100, 4])
    """

    name: ClassVar[str] = "marginals"
    units: ClassVar[tuple[str, ...]] = ("record", "person")
    proves: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")
    claims: ClassVar[str] = "(epsilon, delta) for a record"

    where: str = ""
    """What every synthetic row must meet, such as `age >= 60 and discharge >= admission`: a condition or a public rule. A
    number or date that is to come after another is learned by how much it does; a total of whole numbers (`all = ours +
    theirs`) is made of those that it adds up."""
    pairs: Count | None = None
    """Pairs of columns to count; None by the number of records, columns and the budget: none where noise would hide all."""
    one_way: BelowOne | None = None
    """The share of the budget (in zCDP) for counts of single columns; None 0.15, and where noise lets few groups of values be
    told apart 0.3 or 0.5: then columns are most of what can be learned."""
    choice: BelowOne = 0.1
    """The share for choosing pairs, where not all are counted."""
    three_way: BelowOne = 0.25
    """The share for counts of pairs with the target, where all pairs are counted and noise would not hide these; 0 for none."""
    emphasis: Positive = 3.0
    """How many times the budget of another pair one with the target has."""
    rounds: Count = 6
    """Rounds of choosing, counting and fitting, where not all pairs are counted."""
    components: Count | None = None
    """Product distributions that the mixture is made of; None for one of eight records, from 256 to 1,024."""
    values: Count | None = None
    """Groups of a number's values that pairs are counted over, at most about so many; None from 8 to 24: as many as leave
    all pairs above the noise."""
    steps: Count = 200
    """Steps of fitting in a round, at most; three times as many at the end. It ends where only noise is left to fit."""
    lr: Positive = 0.1
    """Adam's learning rate for the mixture, at the start of each round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_way = _ONE_WAY[-1] if self.one_way is None else self.one_way
        if one_way <= 0 or self.choice <= 0 or one_way + max(self.choice, self.three_way) >= 1:
            raise SettingError(
                "marginals' shares one_way and choice must be above 0, and one_way (0.5 unless you give it) with choice or "
                "three_way below 1."
            )
        Conditions.read(self.where)

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> DataRelease:
        """Count within the budget, fit the mixture and release `rows` synthetic records."""
        given, dataset = dataset, as_classes(dataset)
        check_records(dataset)
        conditions = Conditions.read(self.where).of(given.public)
        view = View(dataset.public, conditions.orders(dataset.public))
        plan = self.plan(view, dataset.persons, budget)
        log = EventLog()
        ranges = view.ranges(plan.one_way, dataset.persons)
        counts = Counts(dataset, view, budget.neighbours, rng, log, ranges)
        noisy = [counts.noised((column,), sigma)[0] for column, sigma in enumerate(plan.one_way)]
        groups = Groups(noisy, view.widths, ranges, plan.one_way, counts.records, plan.values)
        measured = groups.measured(counts.records)
        counts.group(groups)
        mixture = Mixture(groups.sizes, self._components(dataset.persons), seeded_generator(initial_seed(rng)))
        mixture.start_at([one.shares for one in measured])
        with progress.task(self.name, self.rounds + 1) as task:
            for pairs in self._pairs(counts, plan, mixture):
                measured += [counts.measure(pair, plan.sigma(pair)) for pair in pairs]
                loss = mixture.fit(measured, self.steps, self.lr)
                task.advance(pairs=len(measured) - plan.columns, loss=loss)
            measured += [counts.measure(triple, plan.triple) for triple in _triples(plan)]
            task.advance(loss=mixture.fit(measured, 3 * self.steps, self.lr))
        spent = plan.spent(log.event, budget.delta)
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=claim_of(budget),
            proven=spent.proof(*ASSUMPTIONS, *rng.assumptions),
            ran={
                "pairs counted": plan.pairs,
                "pairs chosen": plan.chosen,
                "values": plan.values,
                "one-way sigmas": list(plan.one_way),
                "pair sigma": plan.pair,
                "target pair sigma": plan.target,
                "triples counted": plan.triples,
                "triple sigma": plan.triple,
            },
        )
        rows = dataset.persons if self.rows is None else self.rows
        synthetic = sample(mixture, groups, view, given, rows, conditions)
        return DataRelease(synthetic, card, self.settings()).logged(log.runs)

    def _components(self, records: int) -> int:
        """More than a fraction of the records learn nothing, and take their time."""
        return self.components or min(_MOST_COMPONENTS, max(_FEWEST_COMPONENTS, records // _RECORDS_A_COMPONENT))

    def planned_event(self, dataset: Dataset, budget: Budget) -> DpEvent:
        """All counts and, where pairs are chosen, the choices."""
        public = as_classes(dataset).public
        view = View(public, Conditions.read(self.where).orders(public))
        return self.plan(view, dataset.persons, budget).event

    def plan(self, view: View, records: int, budget: Budget) -> NoiseLevels:
        """How many pairs are counted and with how much noise: more pairs for more records, a larger budget, fewer cells."""
        sizes, columns = view.sizes, len(view.sizes)
        everything = columns * (columns - 1) // 2
        rho = 0.5 / calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma ** 2

        def affordable(values: int) -> float:
            # So many that the noise alone moves a pair's shares by a fifth or less: the mixture evens most of it out.
            cells = sum(_groups(view, values)) ** 2 / columns**2
            return 2 * rho * (1 - (self.one_way or _ONE_WAY[0]) - self.choice) * (records / (2 * cells)) ** 2

        # Coarser groups where noise would hide pairs of fine ones, and the more of the budget for columns.
        values = self.values or next((each for each in _VALUES if affordable(each) >= everything), _VALUES[-1])
        coarse = (affordable(_VALUES[0]) < everything) + (affordable(_VALUES[-1]) < columns - 1)
        pairs = min(everything, self.pairs or max(columns - 1, math.floor(min(affordable(values), 1e9))))
        if self.pairs is None and (columns - 1) / (1 - _ONE_WAY[0]) > 2 * rho * (records / _HALVES) ** 2:
            # Noise would hide even which half of a column goes with which class: columns have the whole budget.
            pairs = 0
        chosen = 0 if pairs == everything else max(0, pairs - (columns - 1))
        choice = self.choice if chosen else 0.0
        # All or no triples, by the same measure: then noise is all there is, which composes exactly.
        small = sizes[-1] <= _FEW and sizes[-1] * sum(sizes) ** 2 <= _CELLS
        triples = (columns - 1) * (columns - 2) // 2 if small and pairs == everything else 0
        wide = sum(_groups(view, values)[:-1]) ** 2 / max(1, columns - 1) ** 2 * sizes[-1]
        if triples > 2 * rho * self.three_way * (records / (2 * wide)) ** 2:
            triples = 0
        three_way = self.three_way if triples else 0.0
        one_way = (self.one_way or _ONE_WAY[coarse]) if pairs else 1.0
        two_way = 1 - one_way - choice - three_way if pairs else 1.0
        # Pairs with the target are what classifiers learn from: each has the budget of several others.
        shares = pairs + (self.emphasis - 1) * min(pairs, columns - 1)

        # A column of many values has more cells that noise may move, and the larger part of the budget.
        weights = [math.sqrt(size) for size in sizes]

        def at(noise: float) -> NoiseLevels:
            return NoiseLevels(
                columns,
                pairs,
                chosen,
                values,
                one_way=tuple(noise * math.sqrt(sum(weights) / weight / one_way) for weight in weights),
                pair=noise * math.sqrt(shares / two_way) if pairs else 0.0,
                target=noise * math.sqrt(shares / two_way / self.emphasis) if pairs else 0.0,
                triples=triples,
                triple=noise * math.sqrt(triples / three_way) if triples else 0.0,
                choice=2 / noise * math.sqrt(choice / max(1, chosen)),
                neighbours=budget.neighbours,
            )

        def epsilon(noise: float) -> float:
            found = at(noise)
            return found.spent(found.event, budget.delta).epsilon

        return at(calibration.calibrate(epsilon, budget.epsilon, low=1e-3))

    def _pairs(self, counts: Counts, plan: NoiseLevels, mixture: Mixture) -> Iterator[list[Columns]]:
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
            yield counts.choose(others, take, mixture.pairs(), plan.pair, plan.choice)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A canary whose value nobody else has, in every count of a training that counts four columns and their pairs."""
        names = tuple(Column(name, categories=("usual", "rare")) for name in "ab")
        columns = (*names, Column("c", low=0.0, high=1.0))
        public = Public(shape=(5,), classes=("no", "yes"), kind="table", columns=columns, target="y")
        view = View(public)
        plan = self.plan(view, 100, budget)
        near = budget.neighbours
        usual = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])

        def counted(world: int) -> Dataset:
            extra = (1 - usual if world else usual).repeat(canaries, 1)
            there = bool(world) or near == "replace-one"
            features = torch.cat([usual.repeat(99, 1), *[extra] * there])
            labels = torch.cat([torch.zeros(99), torch.full((canaries if there else 0,), float(world))]).long()
            groups = torch.arange(len(labels)).clamp(max=99) if canaries > 1 else None
            return Dataset("canary", features, labels, public, groups)

        tables: list[tuple[Columns, float]] = [((column,), sigma) for column, sigma in enumerate(plan.one_way)]
        tables += [((column, 3), plan.target) for column in range(plan.with_target)]
        others: list[Columns] = [(0, 1), (0, 2), (1, 2)]
        tables += [(pair, plan.pair) for pair in others[: plan.pairs - plan.with_target]]
        tables += [(triple, plan.triple) for triple in _triples(plan)]
        ranges = view.ranges(plan.one_way, 100)
        worlds = [Counts(counted(world), view, near, Reproducible(0), EventLog(), ranges) for world in (0, 1)]
        # Everything that differs, weighed by its exactness, is the sufficient statistic.
        differences = [(worlds[1].exact(columns) - worlds[0].exact(columns)).flatten() for columns, _ in tables]

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            one = Counts(counted(world), view, near, seeded_by(generator), EventLog(), ranges)
            score = torch.zeros(trials, dtype=torch.float64)
            for (columns, sigma), difference in zip(tables, differences, strict=True):
                score += one.noised(columns, sigma, trials).flatten(1) @ difference / sigma**2
            return score

        spent = plan.spent(plan.event, budget.delta)
        name = f"{self.name}: a canary with values that nobody else has"
        return proven_game(name, play, budget, spent.proof(), source="the accountant", gaussian=True, canaries=canaries)


def _groups(view: View, values: int) -> list[int]:
    """Groups of each column's values that pairs are counted over, at most: of a number fewer than of categories."""
    most = (_VALUES[0] if width is None else values for width in view.widths)
    return [min(size, each) for size, each in zip(view.sizes, most, strict=True)]


def _triples(plan: NoiseLevels) -> list[Columns]:
    """Every pair of columns with the target, if triples are counted."""
    target = plan.columns - 1
    found: list[Columns] = [(one, other, target) for one, other in combinations(range(target), 2)]
    return found[: plan.triples]


def sample(
    mixture: Mixture, groups: Groups, view: View, dataset: Dataset, rows: int, conditions: Conditions
) -> Dataset:
    """Synthetic records that meet the conditions, coded like the private ones, or to be coded when looked at if many."""
    public = dataset.public
    labels = torch.empty(rows, dtype=dataset.labels.dtype)

    def features() -> Iterator[torch.Tensor]:
        start = 0
        for made, label in _drawn(mixture, groups, view, public, rows, conditions):
            labels[start : start + len(label)] = label
            start += len(label)
            yield made

    if public.columns and 4 * rows * math.prod(public.shape) > SMALL:
        whole: torch.Tensor = StoredTensor(CompactTable.of(public.columns, rows, features()))
    else:
        whole = torch.cat([torch.zeros(0, *public.shape), *features()])
    return Dataset(f"synthetic {dataset.name}", whole, labels, public)


def _drawn(
    mixture: Mixture, groups: Groups, view: View, public: Public, rows: int, conditions: Conditions
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Features and labels of records that meet the conditions, some at a time, until there are enough."""
    generator = mixture.generator
    kept = drawn = 0
    while kept < rows:
        places = mixture.sample(_ROWS if conditions.any else min(_ROWS, rows - kept), even_target=rows < _MANY)
        slots = torch.stack(
            [groups.slot(column, group, generator) for column, group in enumerate(places.unbind(1))], dim=1
        )
        made = conditions.fill(public, view.features(slots[:, :-1], generator).view(-1, *public.shape))
        label = slots[:, -1]
        if public.task != "classification":
            label = ((label + torch.rand(len(label), generator=generator)) / BINS).float()
        meets = conditions.met(public, made, label).nonzero().squeeze(1)[: rows - kept]
        yield made[meets], label[meets]
        kept, drawn = kept + len(meets), drawn + len(places)
        if drawn > 2000 * _ROWS or (kept == 0 and drawn > 100 * _ROWS):
            raise DataError(
                "hardly any synthetic record meets the condition `where`; nothing is written, and the budget of this "
                "run is spent. Loosen it."
            )

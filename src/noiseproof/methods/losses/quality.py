"""Quality of synthetic records beside real ones. Computed from private records, for their owner's eyes: no release."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from noiseproof.data import Column, layout
from noiseproof.data.lazy import StoredTensor, in_memory
from noiseproof.errors import DataError
from noiseproof.methods.losses.coding import Coding
from noiseproof.methods.losses.gan import as_classes, fit_classifier
from noiseproof.releases.measures import Measures, measure

if TYPE_CHECKING:
    from noiseproof.data.dataset import Dataset


_MOST = 60_000
"""Records of each kind that measures are taken of, at most: as many as tell anything, in bounded time and memory."""
_NUMBERS, _TAUGHT = 1 << 22, 10_000
"""Coded numbers that trees are taught by, at most, of which they hold several copies in twice the precision; and records that
they are taught by in any case."""
_VALUES = 12
"""Values of a column that are shown side by side."""
_CHUNK = 1024
_PAIRS = 2000
"""Records whose distances tell how varied a class is."""
COLLAPSED = 0.3
"""A class whose records are less than this share as far apart as the real ones' has collapsed to few kinds."""


@dataclass(frozen=True)
class Quality:
    """How good synthetic records are, by the measures of Ma et al. and two of ours. Of a numeric target, R2 for accuracy."""

    real_to_real: float
    """Accuracy on real test records of a classifier that real ones taught."""
    synthetic_to_real: float
    """The same, taught by synthetic records."""
    real_to_synthetic: float
    """Accuracy on synthetic records of a classifier that real test records taught: how often a sample shows its label."""
    majority: float
    """Accuracy on the test records of naming the commonest class always; of a number 0, the R2 of its mean."""
    measures: dict[str, Measures]
    """All measures of `real_to_real` and of `synthetic_to_real`."""
    by_class: dict[str, float]
    """`real_to_synthetic` for each class."""
    pmf_errors: dict[str, float]
    """Eq. (22) for each column of a table."""
    correlation_error: float | None
    """Mean difference of Cramer's V over all pairs of a table's columns."""
    spread: dict[str, float]
    """How far a class's synthetic records are apart, as a share of how far its real ones are."""
    shares: dict[str, list[tuple[str, float, float]]]
    """Of each column of a table its commonest values, or tenths of its numbers: real share, synthetic share."""
    variations: dict[str, float]
    """Total variation between real and synthetic shares of each column."""
    pairs: dict[str, tuple[float, float]]
    """The pairs of columns whose Cramer's V differs most: real, synthetic."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Classes whose records are nearly all alike."""
        fallen = [name for name, value in self.spread.items() if value < COLLAPSED]
        if not fallen:
            return ()
        return (f"mode collapse: the synthetic records of class {', '.join(fallen)} are nearly all alike.",)

    def to_json(self) -> dict[str, Any]:
        """Plain values, warnings included."""
        told = {name: one.model_dump(exclude_none=True) for name, one in self.measures.items()}
        return {**vars(self), "measures": told, "warnings": list(self.warnings)}


def quality(synthetic: Dataset, real: Dataset, test: Dataset, *, seed: int = 0) -> Quality:
    """Measure synthetic records beside the real ones they stand for, and others that the generator never saw.

    Of more than 60,000 records of a kind, as many are drawn at random.

    Formal guarantee
    ----------------
    None: every number is computed from private records without noise. Show them to nobody but the records' owner.
    """
    if not len(synthetic) or not len(test):
        raise DataError("quality needs synthetic records and test records, at least one of each.")
    synthetic, real, test = (_few(each, seed) for each in (synthetic, real, test))
    judged = answers(test, synthetic, seed=seed)
    found = {
        "real_to_real": _between_real(real, test, seed),
        "synthetic_to_real": measure(answers(synthetic, test, seed=seed), test),
    }
    right = judged.argmax(1) == synthetic.labels
    by_class = {
        name: float(right[synthetic.labels == place].double().mean())
        for place, name in enumerate(synthetic.public.classes)
        if bool((synthetic.labels == place).any())
    }
    scores = {name: one.r2 if one.accuracy is None else one.accuracy for name, one in found.items()}
    between = measure(judged, synthetic)
    # Shares and distances are of classes; a number has parts of its range.
    shares = side_by_side(synthetic, real) if real.public.kind == "table" else {}
    synthetic, real = as_classes(synthetic), as_classes(real)
    table = Coding(real.public).table
    return Quality(
        real_to_real=scores["real_to_real"] or 0.0,
        synthetic_to_real=scores["synthetic_to_real"] or 0.0,
        real_to_synthetic=(between.r2 if between.accuracy is None else between.accuracy) or 0.0,
        majority=found["real_to_real"].majority or 0.0,
        measures=found,
        by_class=by_class,
        pmf_errors=pmf_errors(synthetic, real) if table else {},
        correlation_error=correlation_error(synthetic, real) if table else None,
        spread=spread(synthetic, real, seed=seed),
        shares={name: rows[:_VALUES] for name, rows in shares.items()},
        variations={name: sum(abs(a - b) for _, a, b in rows) / 2 for name, rows in shares.items()},
        pairs=worst_pairs(synthetic, real) if table else {},
    )


def side_by_side(synthetic: Dataset, real: Dataset) -> dict[str, list[tuple[str, float, float]]]:
    """Of every column of two tables the shares of its values, the commonest first, or of tenths of its real numbers."""
    public = real.public
    columns = [
        (column, [each.features[:, place] for each in (real, synthetic)]) for column, place in layout(public.columns)
    ]
    low, high = public.target_bounds or (None, None)
    target = Column(public.target or "label", low, high, public.classes)
    labels = [each.labels for each in (real, synthetic)]
    if target.categories:
        labels = [functional.one_hot(each, len(public.classes)) for each in labels]
    found = {}
    for column, parts in [*columns, (target, [each.view(len(each), -1) for each in labels])]:
        names = [*column.categories, "missing"]
        slots = [part.argmax(1) for part in parts]
        if column.numeric:
            missing = [part[:, 1] > 0.5 if column.missing else torch.zeros(len(part)).bool() for part in parts]
            known = parts[0][~missing[0], 0]
            ends = known.quantile(torch.arange(1, 10) / 10).unique() if len(known) else known
            names = [*(f"to {_in_units(column, float(end))}" for end in ends), "above", "missing"]
            placed = [torch.bucketize(part[:, 0].contiguous(), ends) for part in parts]
            slots = [torch.where(gap, len(ends) + 1, place) for gap, place in zip(missing, placed, strict=True)]
        shares = [torch.bincount(slot, minlength=len(names)).double() / len(slot) for slot in slots]
        rows = [(name, float(shares[0][place]), float(shares[1][place])) for place, name in enumerate(names)]
        rows = [row for row in rows if row[1] or row[2]]
        found[column.name] = rows if column.numeric else sorted(rows, key=lambda row: -max(row[1:]))
    return found


def _in_units(column: Column, coded: float) -> str:
    value = (column.low or 0.0) + coded * ((column.high or 1.0) - (column.low or 0.0))
    return str(np.datetime64(round(value), "D")) if column.date else f"{value:.4g}"


def worst_pairs(synthetic: Dataset, real: Dataset) -> dict[str, tuple[float, float]]:
    """The pairs of columns whose Cramer's V differs most between two tables."""
    true, made = correlations(real), correlations(synthetic)
    names = [*(column.name for column in real.public.columns), real.public.target or "label"]
    pairs = [(one, other) for one in range(len(names)) for other in range(one + 1, len(names))]
    pairs.sort(key=lambda pair: -abs(float(true[pair] - made[pair])))
    return {
        f"{names[one]}, {names[other]}": (float(true[one, other]), float(made[one, other])) for one, other in pairs[:8]
    }


def answers(taught_by: Dataset, asked: Dataset, *, seed: int = 0) -> torch.Tensor:
    """Answers to `asked` of a model of `taught_by`: boosted trees for tables and numbers, a small network for the rest.

    Class probabilities, (records, classes), or numbers, (records, 1).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    of_numbers = taught_by.public.task != "classification"
    if by_trees := of_numbers or Coding(taught_by.public).table:
        taught_by = _few(taught_by, seed, max(_TAUGHT, _NUMBERS // math.prod(taught_by.public.shape)))
    features, labels = taught_by.features.flatten(1).numpy(), taught_by.labels.numpy()
    asked_for = [part.flatten(1).numpy() for part in asked.features.split(_CHUNK)]
    if of_numbers:
        numbers = HistGradientBoostingRegressor(max_iter=60, random_state=seed).fit(features, labels)
        return torch.from_numpy(np.concatenate([numbers.predict(part) for part in asked_for]))[:, None]
    present = taught_by.labels.unique()
    found = torch.zeros(len(asked), taught_by.classes, dtype=torch.float64)
    if len(present) == 1:
        found[:, present] = 1.0
        return found
    if by_trees:
        trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(features, labels)
        found[:, present] = torch.from_numpy(np.concatenate([trees.predict_proba(part) for part in asked_for]))
        return found
    network: dict[str, Any] = {
        "hidden": 128,
        "lr": 2e-3,
        "batch_size": 128,
        "steps": max(400, 4 * len(taught_by) // 128),
    }
    return fit_classifier(taught_by, seed=seed, **network)(asked.features)


def pmf(dataset: Dataset) -> dict[str, torch.Tensor]:
    """Each column's shares of categories, or of bins of a number; the target's shares of classes last."""
    coding = Coding(dataset.public)
    sums = [coding.coarsen(coding.encode(part)).double().sum(0) for part in dataset.features.split(_CHUNK)]
    means = torch.stack(sums).sum(0) / max(1, len(dataset))
    parts = dict(zip((c.name for c in dataset.public.columns), means.split(list(coding.coarse_sizes)), strict=True))
    labels = torch.bincount(dataset.labels, minlength=dataset.classes).double() / max(1, len(dataset))
    return {**parts, dataset.public.target or "label": labels}


def pmf_error(generated: torch.Tensor, real: torch.Tensor) -> float:
    """Eq. (22): sum over x = 1, 2, ... of |p_g(x) - p_r(x)| x, by a category's place in the list."""
    places = torch.arange(1, len(real) + 1, dtype=torch.float64)
    return float(((generated - real).abs().double() * places).sum())


def pmf_errors(synthetic: Dataset, real: Dataset) -> dict[str, float]:
    """Eq. (22) for every column."""
    generated, true = pmf(synthetic), pmf(real)
    return {name: pmf_error(generated[name], true[name]) for name in true}


def correlations(dataset: Dataset) -> torch.Tensor:
    """Cramer's V of every pair of columns, the target among them, from their joint shares."""
    coding = Coding(dataset.public)
    sizes = [*coding.coarse_sizes, dataset.classes]
    joint = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)
    for features, labels in zip(dataset.features.split(_CHUNK), dataset.labels.split(_CHUNK), strict=True):
        onehot = functional.one_hot(labels, dataset.classes)
        slots = torch.cat([coding.coarsen(coding.encode(features)), onehot], dim=1).double()
        joint += slots.T @ slots / len(dataset)
    shares = joint.diagonal()
    expected = torch.outer(shares, shares)
    terms = torch.where(expected > 0, (joint - expected).square() / expected.clamp_min(1e-300), 0.0)
    columns = len(sizes)
    member = functional.one_hot(torch.repeat_interleave(torch.arange(columns), torch.tensor(sizes)), columns).double()
    present = (member * (shares > 0)[:, None]).sum(0)
    least = torch.minimum(present[:, None], present[None, :]) - 1
    return (member.T @ terms @ member / least.clamp_min(1)).sqrt().clamp(max=1)


def correlation_error(synthetic: Dataset, real: Dataset) -> float:
    """The mean difference of Cramer's V over all pairs of columns."""
    difference = (correlations(synthetic) - correlations(real)).abs()
    first, second = torch.triu_indices(len(difference), len(difference), 1)
    return float(difference[first, second].mean())


def spread(synthetic: Dataset, real: Dataset, *, seed: int = 0) -> dict[str, float]:
    """Mean distance of two records of a class, synthetic over real; what has fewer than two records is left out."""
    found = {}
    for place, name in enumerate(real.public.classes):
        ours, theirs = (_distance(each, place, seed) for each in (synthetic, real))
        if ours is not None and theirs:
            found[name] = ours / theirs
    return found


def _distance(dataset: Dataset, place: int, seed: int) -> float | None:
    index = (dataset.labels == place).nonzero().squeeze(1)
    if len(index) < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    first = index[torch.randint(len(index), (_PAIRS,), generator=generator)]
    second = index[torch.randint(len(index), (_PAIRS,), generator=generator)]
    apart = first != second
    difference = (dataset.features[first[apart]] - dataset.features[second[apart]]).flatten(1)
    return float(torch.linalg.vector_norm(difference, dim=1).mean()) if len(difference) else None


@lru_cache(maxsize=8)
def _few(dataset: Dataset, seed: int, most: int = _MOST) -> Dataset:
    """So many records at random as are measured."""
    if len(dataset) > most:
        dataset = dataset.take(torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:most])
    elif not isinstance(dataset.features, StoredTensor):
        return dataset
    return replace(dataset, features=in_memory(dataset.features))


@lru_cache(maxsize=2)
def _between_real(real: Dataset, test: Dataset, seed: int) -> Measures:
    """The same for all synthetic sets that are measured beside one real one."""
    return measure(answers(real, test, seed=seed), test)

"""Quality of synthetic records beside real ones. Computed from private records, for their owner's eyes: no release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from noiseproof.errors import DataError
from noiseproof.methods.losses.coding import Coding
from noiseproof.methods.losses.gan import as_classes, fit_classifier
from noiseproof.releases.measures import Measures, measure

if TYPE_CHECKING:
    from noiseproof.data.dataset import Dataset


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

    Formal guarantee
    ----------------
    None: every number is computed from private records without noise. Show them to nobody but the records' owner.
    """
    if not len(synthetic) or not len(test):
        raise DataError("quality needs synthetic records and test records, at least one of each.")
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
    )


def answers(taught_by: Dataset, asked: Dataset, *, seed: int = 0) -> torch.Tensor:
    """Answers to `asked` of a model of `taught_by`: boosted trees for tables and numbers, a small network for the rest.

    Class probabilities, (records, classes), or numbers, (records, 1).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    features, labels = taught_by.features.flatten(1).numpy(), taught_by.labels.numpy()
    asked_for = asked.features.flatten(1).numpy()
    if taught_by.public.task != "classification":
        numbers = HistGradientBoostingRegressor(max_iter=60, random_state=seed).fit(features, labels)
        return torch.from_numpy(numbers.predict(asked_for))[:, None]
    present = taught_by.labels.unique()
    found = torch.zeros(len(asked), taught_by.classes, dtype=torch.float64)
    if len(present) == 1:
        found[:, present] = 1.0
        return found
    if Coding(taught_by.public).table:
        trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(features, labels)
        found[:, present] = torch.from_numpy(trees.predict_proba(asked_for))
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
    means = coding.coarsen(coding.encode(dataset.features).double()).mean(dim=0)
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
    onehot = functional.one_hot(dataset.labels, dataset.classes).double()
    slots = torch.cat([coding.coarsen(coding.encode(dataset.features).double()), onehot], dim=1)
    sizes = [*coding.coarse_sizes, dataset.classes]
    joint = slots.T @ slots / len(dataset)
    shares = slots.mean(dim=0)
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


@lru_cache(maxsize=2)
def _between_real(real: Dataset, test: Dataset, seed: int) -> Measures:
    """The same for all synthetic sets that are measured beside one real one."""
    return measure(answers(real, test, seed=seed), test)

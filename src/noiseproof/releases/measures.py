"""How good a release's answers are, by test records: accuracy beside what it hides, and which measure ranks.

| task | ranks | because |
| --- | --- | --- |
| classes, their public shares declared and about even | accuracy | every class weighs the same in it |
| other classes | ROC AUC, of several classes the mean of one against the rest | where classes are rare, naming the
commonest always is accurate, and of no use |
| numbers and counts | R2 | it is free of units, and orders models as their squared errors do |

Two values whose difference is within its standard error are a tie. The rule is fixed before any record is read. Where a
method was fitted several times (`combined`), that error includes how much its own noise moves a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError
from noiseproof.releases.release import ModelRelease, PredictionRelease, check_features

Ranking = Literal["accuracy", "roc_auc", "r2"]

NAMES = {
    "accuracy": "accuracy",
    "majority": "share of the commonest class",
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "log_loss": "log loss",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "coverage": "coverage of intervals",
    "interval_width": "mean width of intervals",
}
"""What each measure is called, in the order in which they are shown."""

PERCENT = ("accuracy", "majority", "balanced_accuracy", "coverage")
"""Those that are shares of the records."""

EVEN = 1.5
"""Declared shares are about even where none is more than so many times what it would be if all were alike."""

_NEAR = 0.05
_BINS = 15
_LEAST = 1e-15

Floats: TypeAlias = npt.NDArray[np.float64]


class Measures(BaseModel):
    """How good answers to test records are. None where a measure is not defined: see `measure`.

    Formal guarantee
    ----------------
    None: every number is computed from private records without noise, for the eyes of their owner.

    Attributes:
        ranked_by: The measure that models are to be compared by.
        standard_error: That of the measure that ranks, over test records drawn again.
        fits: How many fits of the method every number is the mean of.
        spread: The standard deviation of the measure that ranks, from fit to fit; None of a single fit.
        worst: The worst of the fits, by the measure that ranks.
        best: The best of them.
        records: How many test records there were.
        positive: Of two classes the rarer one, whose average precision is given.
        only_class: The class that every record was given, where the answers name one class alone.
        accuracy: Share of the records whose likeliest class is theirs.
        majority: The accuracy of naming the commonest class of the test records always.
        balanced_accuracy: Mean over the classes of the share of their records that are labelled right.
        roc_auc: Area under the ROC curve; of several classes the mean of each against the rest. Answers that are labels
            alone have one threshold: theirs is the balanced accuracy.
        average_precision: Of the rarer of two classes; of several the mean of each against the rest.
        log_loss: Mean of -log of the probability of the true class; probabilities below 2e-16 count as that.
        brier: Mean squared error of the probabilities, summed over the classes (of two classes, of one).
        calibration_error: Mean distance between the probability of the named class and how often it is right, over 15 bins.
        r2: The share of the target's variance that the predictions explain; below 0 is worse than its mean.
        mae: Mean absolute error, in the target's units.
        rmse: Root of the mean squared error, in the target's units.
        coverage: Share of the targets that lie in their interval, where the release gives intervals.
        interval_width: Their mean width, in the target's units.

    Examples:
        `evaluate` and `measure` return it:

        >>> import torch
        >>> from noiseproof.data import from_arrays
        >>> from noiseproof.releases import measure
        >>> data = from_arrays(torch.rand(4, 2), [0, 0, 1, 1], classes=["no", "yes"], low=0, high=1)
        >>> found = measure(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]), data)
        >>> found.ranked_by, found.value, found.accuracy
        ('roc_auc', 0.75, 0.75)
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    ranked_by: Ranking
    standard_error: float | None = None
    fits: int = 1
    spread: float | None = None
    worst: float | None = None
    best: float | None = None
    records: int
    positive: str | None = None
    only_class: str | None = None
    accuracy: float | None = None
    majority: float | None = None
    balanced_accuracy: float | None = None
    roc_auc: float | None = None
    average_precision: float | None = None
    log_loss: float | None = None
    brier: float | None = None
    calibration_error: float | None = None
    r2: float | None = None
    mae: float | None = None
    rmse: float | None = None
    coverage: float | None = None
    interval_width: float | None = None

    @property
    def value(self) -> float:
        """The measure that ranks."""
        return float(getattr(self, self.ranked_by))

    @property
    def error(self) -> float | None:
        """How far the value of one more release may lie from `value`: by other test records, and by its own noise."""
        return None if self.standard_error is None else float(np.hypot(self.standard_error, self.spread or 0.0))

    @property
    def shown(self) -> dict[str, float]:
        """The measures that are defined, by what they are called."""
        return {name: getattr(self, field) for field, name in NAMES.items() if getattr(self, field) is not None}

    @property
    def guesses(self) -> bool:
        """Whether the measure that ranks is at most five points above that of a constant answer."""
        constant = {"accuracy": self.majority, "roc_auc": 0.5, "r2": 0.0}[self.ranked_by]
        found = getattr(self, self.ranked_by)
        return constant is not None and found is not None and bool(found <= constant + _NEAR)

    @property
    def remark(self) -> str | None:
        """What a reader must know who would go by the accuracy."""
        if self.only_class is None:
            return None
        return f"predicts {self.only_class} for every record"


def stated(measure: str, value: float | None) -> str:
    """A measure's value as a reader would write it: a share as a percentage, a dash where there is none."""
    if value is None:
        return "—"
    return f"{value:.1%}" if measure in PERCENT else f"{value:.3f}"


def ranking(public: Public) -> Ranking:
    """The measure by which models for such records are compared: see the module's table.

    Args:
        public: The task, and the classes' shares if they are declared.

    Returns:
        The measure's name.

    Formal guarantee
    ----------------
    It reads what is public alone.

    Examples:
        >>> from noiseproof.data import Public
        >>> from noiseproof.releases import ranking
        >>> ranking(Public(shape=(4,), classes=("no", "yes")))
        'roc_auc'
        >>> ranking(Public(shape=(4,), classes=("no", "yes"), class_shares=(0.5, 0.5)))
        'accuracy'
    """
    if public.task != "classification":
        return "r2"
    even = public.class_shares and max(public.class_shares) * len(public.classes) <= EVEN
    return "accuracy" if even else "roc_auc"


def is_tie(one: Measures, other: Measures) -> bool:
    """Whether two methods differ by no more than the standard error of the difference of two releases.

    Both were tested on the same records, so that their errors go together and the true standard error is smaller than the
    one that is taken here, sqrt(a^2 + b^2): what is called no tie is none.
    """
    if one.ranked_by != other.ranked_by or one.error is None or other.error is None:
        return False
    return abs(one.value - other.value) <= float(np.hypot(one.error, other.error))


def combined(fits: Sequence[Measures]) -> Measures:
    """The means over several fits of one method, and how far the fits lie apart.

    Args:
        fits: The measures of each, by the same test records; at least one.

    Returns:
        The means, with `spread`, `worst` and `best` of the measure that ranks; the first itself where it is the only one.

    Examples:
        >>> import torch
        >>> from noiseproof.data import from_arrays
        >>> from noiseproof.releases import combined, measure
        >>> data = from_arrays(torch.rand(4, 2), [0, 0, 1, 1], classes=["no", "yes"], low=0, high=1)
        >>> right, wrong = torch.eye(2)[data.labels], torch.eye(2)[1 - data.labels]
        >>> found = combined([measure(right, data), measure(wrong, data)])
        >>> found.fits, found.accuracy, found.worst, found.best
        (2, 0.5, 0.0, 1.0)
    """
    first, values = fits[0], [one.value for one in fits]
    if len(fits) == 1:
        return first
    means = {
        name: float(np.mean(found))
        for name in (*NAMES, "standard_error")
        if None not in (found := [getattr(one, name) for one in fits])
    }
    same = all(one.only_class == first.only_class for one in fits)
    return first.model_copy(
        update={
            **means,
            "only_class": first.only_class if same else None,
            "fits": len(fits),
            "spread": float(np.std(values, ddof=1)),
            "worst": min(values),
            "best": max(values),
        }
    )


def evaluate(release: ModelRelease | PredictionRelease, dataset: Dataset) -> Measures:
    """Measure a release by test records, for the eyes of their owner.

    Args:
        release: What answers. A `PredictionRelease` is rehearsed: answers with the noise of real ones, which must not leave
            and so cost nothing.
        dataset: Records that it did not learn from.

    Returns:
        The measures.

    Formal guarantee
    ----------------
    None: see `Measures`. They are no part of the release.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.releases import evaluate
        >>> data = npf.load("digits")
        >>> release = npf.train("dp-sgd", data.train, epsilon=3, network="linear", epochs=20)
        >>> found = evaluate(release, data.test)
        >>> found.ranked_by, found.value > 0.5, found.records == len(data.test)
        ('accuracy', True, True)
    """
    from noiseproof.privacy import Secure

    if isinstance(release, PredictionRelease):
        answers = release.answer_paid(check_features(dataset.features, release.public.shape), Secure())
    else:
        answers = release.predict(dataset.features)
    return measure(answers, dataset, release.settings.get("threshold"))


def measure(answers: torch.Tensor, dataset: Dataset, threshold: float | None = None) -> Measures:
    """Measure answers to the records of a data set.

    Args:
        answers: (records, classes) probabilities, which are scaled to sum to 1; of a numeric target (records, 1), or
            (records, 3) with an interval's ends behind, coded as the labels are.
        dataset: The records and their labels.
        threshold: Of two classes, the probability from which on the second is named; None names the likelier.

    Returns:
        The measures; those that need two classes among the labels, or targets that differ, are None where there are none,
        and accuracy ranks where the test records have no two classes.

    Raises:
        DataError: If there is no record.

    Formal guarantee
    ----------------
    None: see `Measures`.

    Examples:
        >>> import torch
        >>> from noiseproof.data import from_arrays
        >>> from noiseproof.releases import measure
        >>> data = from_arrays(torch.rand(4, 2), [10.0, 20.0, 30.0, 40.0], low=0, high=1, target_bounds=(0, 50))
        >>> found = measure(torch.tensor([[0.2], [0.4], [0.6], [0.6]]), data)  # coded: 10, 20, 30 and 30
        >>> round(found.mae, 2), round(found.r2, 2)
        (2.5, 0.8)
    """
    if not len(dataset):
        raise DataError(f"{dataset.name} has no test record to measure by.")
    given = answers.detach().cpu().double().numpy()
    if dataset.public.task == "classification":
        return _of_classes(given, dataset.labels.cpu().numpy(), dataset.public, threshold)
    return _of_numbers(given, dataset.labels.cpu().double().numpy(), dataset.public)


def _of_classes(answers: Floats, labels: npt.NDArray[np.int64], public: Public, threshold: float | None) -> Measures:
    from sklearn.metrics import average_precision_score, log_loss, recall_score, roc_auc_score

    scores = np.clip(answers, 0, None)
    total = scores.sum(1, keepdims=True)
    scores = np.where(total > 0, scores / np.where(total > 0, total, 1), 1 / scores.shape[1])
    records, classes = scores.shape
    named = scores.argmax(1) if threshold is None else (scores[:, 1] >= threshold).astype(np.int64)
    right = named == labels
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts)
    onehot = np.eye(classes)[labels]
    rarer = int(counts.argmin()) if classes == 2 else None
    # Of two classes both have the same curve.
    judged = present if rarer is None else np.array([rarer])
    defined = len(present) > 1
    ranked_by: Ranking = ranking(public) if defined else "accuracy"
    accuracy = float(right.mean())
    error = float(np.sqrt(accuracy * (1 - accuracy) / records))
    if ranked_by == "roc_auc":
        error = _spread(np.mean([_auc_influence(onehot[:, place], scores[:, place]) for place in judged], axis=0))

    def over_classes(score: Callable[[Floats, Floats], float]) -> float | None:
        return float(np.mean([score(onehot[:, each], scores[:, each]) for each in judged])) if defined else None

    return Measures(
        ranked_by=ranked_by,
        standard_error=error,
        records=records,
        positive=None if rarer is None else public.classes[rarer],
        only_class=public.classes[int(named[0])] if defined and (named == named[0]).all() else None,
        accuracy=accuracy,
        majority=float(counts.max()) / records,
        balanced_accuracy=float(recall_score(labels, named, labels=present, average="macro", zero_division=0)),
        roc_auc=over_classes(roc_auc_score),
        average_precision=over_classes(average_precision_score),
        log_loss=float(log_loss(labels, scores, labels=np.arange(classes))),
        brier=float(np.square(scores - onehot).sum(1).mean()) / (2 if classes == 2 else 1),
        calibration_error=_calibration_error(scores.max(1), right),
    )


def _calibration_error(confidence: Floats, right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error over bins of equal width (Guo et al. 2017)."""
    place = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(place, weights=confidence - right, minlength=_BINS)
    return float(np.abs(gaps).sum()) / len(confidence)


def _auc_influence(positive: Floats, scores: Floats) -> Floats:
    """What each record adds to the deviation of an AUC from its mean: DeLong's placements."""
    from scipy.stats import rankdata

    members = positive > 0
    count, others = int(members.sum()), int((~members).sum())
    ranks = rankdata(scores)
    placed = np.empty(len(scores))
    # How many of the other kind a record is ranked right against, ties as halves.
    placed[members] = (ranks[members] - rankdata(scores[members])) / others
    placed[~members] = 1 - (ranks[~members] - rankdata(scores[~members])) / count
    auc = placed[members].mean()
    share = np.where(members, count, others) / len(scores)
    return np.asarray((placed - auc) / share)


def _spread(influence: Floats) -> float:
    """The standard error of an estimate to which each record contributes so much."""
    return float(np.sqrt(np.square(influence).mean() / len(influence)))


def _of_numbers(answers: Floats, labels: Floats, public: Public) -> Measures:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    assert public.target_bounds is not None
    span = public.target_bounds[1] - public.target_bounds[0]
    predicted = np.clip(answers[:, 0], 0, 1)
    squared, around = np.square(labels - predicted), np.square(labels - labels.mean())
    variance = around.mean()
    r2 = float(r2_score(labels, predicted)) if variance > 0 else 0.0
    influence = (r2 - 1) * (squared / max(squared.mean(), _LEAST) - around / max(variance, _LEAST))
    found: Any = {}
    if answers.shape[1] == 3:
        low, high = answers[:, 1], answers[:, 2]
        found["coverage"] = float(((low <= labels) & (labels <= high)).mean())
        found["interval_width"] = float((high - low).mean()) * span
    return Measures(
        ranked_by="r2",
        standard_error=_spread(influence),
        records=len(labels),
        r2=r2,
        mae=float(mean_absolute_error(labels, predicted)) * span,
        rmse=float(root_mean_squared_error(labels, predicted)) * span,
        **found,
    )

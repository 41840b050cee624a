"""Estimators with scikit-learn's manners: `PrivateClassifier`, `PrivateRegressor`, `PrivateSynthesizer`.

What is public (bounds, classes) is an argument. A fit spends a budget, and so does every fit of a clone: in
`cross_val_score` and searches all fits share one budget, or are refused.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from noiseproof.data.arrays import READ_BOUNDS, READ_CLASSES, READ_TARGET, Array, Bound, Facts, from_arrays, scaled
from noiseproof.data.dataset import Dataset
from noiseproof.errors import BudgetError, SettingError, UnsupportedError
from noiseproof.privacy.budget import Budget, check_neighbours
from noiseproof.run.training import train

if TYPE_CHECKING:
    import torch

    from noiseproof.releases.release import Release

__all__ = ["PrivateClassifier", "PrivateRegressor", "PrivateSynthesizer"]

Bounds = tuple[Bound, Bound] | Literal["data"] | None
Classes = Sequence[Any] | Literal["data"] | None


class _Purse:
    """What share of its budget an estimator and all its clones have spent together."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.lock = threading.Lock()


@dataclass(eq=False, repr=False)
class _PrivateEstimator(BaseEstimator):
    """What the estimators share: parameters, public facts from them, one budget for all clones, no pickles."""

    method: str
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 1e-5
    neighbours: str = "add-or-remove"
    bounds: Bounds = None
    settings: Mapping[str, Any] | None = None
    fits: int | None = 1
    random_state: int | None = None

    if TYPE_CHECKING:
        release_: Release
        classes_: Array

    def _fit(self, X: Array, y: Array, facts: Facts, read: str | None, **options: Any) -> Self:
        """Train on validated arrays, `y` coded; spends the share of one fit.

        Args:
            X: The features.
            y: The labels.
            facts: What is public of the labels.
            read: The note on what was read off the labels instead.
            options: Those of `train`.
        """
        low, high = self._bounds(X)
        facts["low"], facts["high"] = low, high
        records = from_arrays(X, y, name="the records", **facts)
        notes = (*((READ_BOUNDS,) if isinstance(self.bounds, str) else ()), *((read,) if read else ()))
        if notes:
            records = replace(records, public=replace(records.public, bounds="data", notes=notes))
        if self.random_state is not None and not isinstance(self.random_state, int | np.integer):
            raise SettingError("random_state is None for secure randomness, or a whole number for a rehearsal.")
        terms: Any = {**self._share(), "neighbours": check_neighbours(self.neighbours), **options}
        seed = None if self.random_state is None else int(self.random_state)
        self.release_ = train(self.method, records, **terms, seed=seed, **dict(self.settings or {}))
        if self.fits is not None and self.fits > 1:
            told = (
                f"One of {self.fits} fits that share epsilon {self.epsilon:g} and delta {self.delta:g}; choosing among them "
                "by exact scores is a look at the records that this guarantee does not account for."
            )
            card = self.release_.card
            self.release_.card = card.model_copy(update={"notes": (*card.notes, told)})
        self._low, self._high = low, high
        return self

    def _fit_classes(self, X: Any, y: Any, classes: Classes, **options: Any) -> Self:
        """Train on labels that are classes, which are set, sorted, as `classes_`."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_ = _sorted_classes(classes, y)
        facts: Facts = {"task": "classification", "classes": [str(name) for name in self.classes_]}
        read = READ_CLASSES if isinstance(classes, str) else None
        return self._fit(X, np.searchsorted(self.classes_, y), facts, read, **options)

    def _bounds(self, X: Array) -> tuple[Array, Array]:
        if self.bounds is None:
            raise SettingError(
                "give the public bounds of the features as bounds=(low, high); bounds='data' reads them off the records, "
                "and then nothing is proven."
            )
        if isinstance(self.bounds, str):
            if self.bounds != "data":
                raise SettingError(f"bounds is a pair (low, high) or 'data', not {self.bounds!r}.")
            low, high = X.min(axis=0), X.max(axis=0)
            return low, np.where(high > low, high, low + 1)
        low, high = (np.asarray(bound, np.float64) for bound in self.bounds)
        return low, high

    def _share(self) -> dict[str, float]:
        """The epsilon and delta of one fit, taken out of what all clones have; refuses where nothing is left."""
        Budget(self.epsilon, self.delta)
        if self.fits is None:
            return {"epsilon": self.epsilon, "delta": self.delta}
        if self.fits < 1:
            raise SettingError(
                f"fits is 1 or more, or None for fits that each spend the whole epsilon; not {self.fits}."
            )
        purse = self._purse()
        with purse.lock:
            if purse.spent + 1 / self.fits > 1 + 1e-9:
                raise BudgetError(
                    f"epsilon {self.epsilon:g} is for {self.fits} fit{'s' if self.fits > 1 else ''} of this estimator and its "
                    "clones, and is spent; give fits=N to split it among N (folds of cross_val_score, candidates of a "
                    "search and its last fit), or make a new estimator and add up what both spend."
                )
            purse.spent += 1 / self.fits
        return {"epsilon": self.epsilon / self.fits, "delta": self.delta / self.fits}

    def _purse(self) -> _Purse:
        found: _Purse = self.__dict__.setdefault("_shared_purse", _Purse())
        return found

    def __sklearn_clone__(self) -> Self:
        made = type(self)(**copy.deepcopy(self.get_params(deep=False)))
        made.__dict__["_shared_purse"] = self._purse()
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedError(
            "a private estimator is not pickled: a copy would forget what was spent, and whoever loads a pickle runs its "
            "code; use clone(), release_.save(folder), and one process (n_jobs=1) in searches."
        )

    def _coded(self, X: Any) -> torch.Tensor:
        """Rows to predict, coded by the bounds of the fit."""
        check_is_fitted(self, "release_")
        return scaled(validate_data(self, X, dtype=np.float64, reset=False), self._low, self._high)


@dataclass(eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, _PrivateEstimator):
    """A classifier trained within a privacy budget.

    Args:
        method: A method of `noiseproof methods` that gives a model or predictions.
        epsilon: The privacy budget of all fits together.
        delta: The privacy budget of all fits together.
        neighbours: When two data sets are neighbours.
        bounds: The public bounds of the features, (low, high), as numbers or one for each; values outside are clipped.
            `"data"` reads them off the records: nothing is then proven.
        classes: The public list of classes; `"data"` reads it off the labels: nothing is then proven.
        network: The network to train, by name; by default one that suits the data.
        recipe: For dp-sgd: see `noiseproof.methods.recipes`.
        queries: How many answers a prediction method must be able to give.
        settings: The method's settings.
        fits: How many fits the budget is for, of this estimator and its clones together; each gets 1 / fits of it, and one
            more is refused. None: every fit spends the whole budget, and adding up is yours to do.
        random_state: None for secure randomness. A whole number makes a rehearsal, which must not leave.

    Attributes:
        classes_: The classes, sorted.
        release_: What the fit released; `release_.card` says what is proven, `release_.save` keeps it.

    Formal guarantee
    ----------------
    That of the method on the card, for a record of X and y, provided that the steps of a pipeline before it work on each
    record alone (`Normalizer`, a `OneHotEncoder` of given categories): a `StandardScaler` or a feature selection learns
    from the records and is not accounted for. All fits of the estimator and its clones together spend at most (epsilon,
    delta), by basic composition, unless `fits` is None. `score`, `cross_val_score` and searches compare with private
    labels without noise: their results are for the owner of the records.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.model_selection import cross_val_score
        >>> from noiseproof.sklearn import PrivateClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = PrivateClassifier(epsilon=3, bounds=(0, 8), classes=[0, 1, 2], fits=3)
        >>> len(cross_val_score(model, X, y, cv=3))
        3
    """

    method: str = "dp-sgd"
    _: KW_ONLY
    classes: Classes = None
    network: str | None = None
    recipe: str = "auto"
    queries: int = 1

    def fit(self, X: Any, y: Any) -> Self:
        """Train on private records.

        Args:
            X: The features, (records, features).
            y: A class for each record.

        Returns:
            The estimator.

        Raises:
            SettingError: If bounds or classes are missing, or a setting is impossible.
            BudgetError: If the budget is spent.
        """
        options = {"network": self.network, "recipe": self.recipe, "queries": self.queries}
        return self._fit_classes(X, y, self.classes, **options)

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities, (records, classes), in the order of `classes_`; a prediction method spends answers."""
        coded = self._coded(X)
        release: Any = self.release_
        found: Array = release.predict(coded).double().numpy()
        return found / found.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row; a prediction method spends answers."""
        shares = self.predict_proba(X)
        chosen: Array = self.classes_[shares.argmax(axis=1)]
        return chosen

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


@dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _PrivateEstimator):
    """A regression trained within a privacy budget.

    Args:
        method: A method that predicts numbers: functional (least squares), dp-sgd and others of `noiseproof methods`.
        epsilon: The privacy budget of all fits together.
        delta: The privacy budget of all fits together.
        neighbours: When two data sets are neighbours.
        bounds: The public bounds of the features, as for `PrivateClassifier`.
        target_bounds: The public bounds of the target, (low, high); targets are clipped to them, and predictions lie within.
            `"data"` reads them off the records: nothing is then proven.
        network: The network to train, by name; by default one that suits the data.
        queries: How many answers a prediction method must be able to give.
        settings: The method's settings.
        fits: As for `PrivateClassifier`.
        random_state: As for `PrivateClassifier`.

    Attributes:
        release_: What the fit released.

    Formal guarantee
    ----------------
    That of the method on the card, under the terms of `PrivateClassifier`.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> from noiseproof.sklearn import PrivateRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = PrivateRegressor(epsilon=3, bounds=(-0.2, 0.2), target_bounds=(0, 400)).fit(X, y)
        >>> model.release_.card.verdict
        'proven'
        >>> model.predict(X[:5]).shape
        (5,)
    """

    method: str = "functional"
    _: KW_ONLY
    target_bounds: tuple[float, float] | Literal["data"] | None = None
    network: str | None = None
    queries: int = 1

    def fit(self, X: Any, y: Any) -> Self:
        """Train on private records.

        Args:
            X: The features, (records, features).
            y: A number for each record.

        Returns:
            The estimator.

        Raises:
            SettingError: If bounds are missing, or a setting is impossible.
            BudgetError: If the budget is spent.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        if self.target_bounds is None:
            raise SettingError(
                "give the public bounds of the target as target_bounds=(low, high); target_bounds='data' reads them off the "
                "records, and then nothing is proven."
            )
        options = {"network": self.network, "queries": self.queries}
        if isinstance(self.target_bounds, str):
            return self._fit(X, y, {"task": "regression"}, READ_TARGET, **options)
        return self._fit(X, y, {"task": "regression", "target_bounds": self.target_bounds}, None, **options)

    def predict(self, X: Any) -> Array:
        """The predicted numbers, in the units of y; a prediction method spends answers."""
        coded = self._coded(X)
        release: Any = self.release_
        found: Array = release.public.in_units(release.predict(coded)[:, 0].double()).numpy()
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


@dataclass(eq=False, repr=False)
class PrivateSynthesizer(_PrivateEstimator):
    """Synthetic records in the place of private ones; `sample` gives them.

    Args:
        method: A method that makes records: marginals, moments, dp-gan, zero-gan and others of `noiseproof methods`.
        epsilon: The privacy budget of all fits together.
        delta: The privacy budget of all fits together.
        neighbours: When two data sets are neighbours.
        bounds: The public bounds of the features, as for `PrivateClassifier`.
        classes: The public list of classes, as for `PrivateClassifier`.
        rows: Synthetic records to make; None as many as there are private ones.
        settings: The method's settings.
        fits: As for `PrivateClassifier`.
        random_state: As for `PrivateClassifier`.

    Attributes:
        classes_: The classes, sorted.
        release_: What the fit released.

    Formal guarantee
    ----------------
    That of the method on the card, under the terms of `PrivateClassifier`. What is made of the synthetic records costs
    nothing more.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from noiseproof.sklearn import PrivateSynthesizer
        >>> X, y = load_iris(return_X_y=True)
        >>> model = PrivateSynthesizer("moments", epsilon=3, bounds=(0, 8), classes=[0, 1, 2], rows=500).fit(X, y)
        >>> model.release_.card.verdict
        'proven'
        >>> features, labels = model.sample()
        >>> features.shape, labels.shape
        ((500, 4), (500,))
    """

    method: str = "dp-gan"
    _: KW_ONLY
    classes: Classes = None
    rows: int | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Learn to make records like these; as `PrivateClassifier.fit`."""
        return self._fit_classes(X, y, self.classes, **({} if self.rows is None else {"rows": self.rows}))

    def sample(self, n_samples: int | None = None) -> tuple[Array, Array]:
        """Synthetic features in the units of X, and their classes.

        Args:
            n_samples: How many of the records that were made; all of them by default.

        Returns:
            (records, features) and (records,).
        """
        check_is_fitted(self, "release_")
        made: Dataset = self.release_.dataset  # type: ignore[attr-defined]
        count = len(made) if n_samples is None else n_samples
        if not 0 < count <= len(made):
            raise SettingError(f"{len(made)} records were made, so that 1 to {len(made)} can be had, not {count}.")
        features = made.features[:count].double().numpy()
        return self._low + features * (self._high - self._low), self.classes_[made.labels[:count].numpy()]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _sorted_classes(classes: Classes, y: Array) -> Array:
    """The public list of classes, sorted, or that of the labels where it is to be read off them."""
    check_classification_targets(y)
    if classes is None:
        raise SettingError(
            "give the public list of classes as classes=[...]; classes='data' reads it off the labels, and then nothing is "
            "proven."
        )
    if isinstance(classes, str) and classes != "data":
        raise SettingError(f"classes is a list or 'data', not {classes!r}.")
    present = np.unique(y)
    known: Array = present if isinstance(classes, str) else np.unique(np.asarray(classes))
    if not np.isin(present, known).all():
        wrong = int((~np.isin(y, known)).sum())
        raise SettingError(f"{wrong} labels are outside the {len(known)} classes.")
    if len(present) < 2:
        raise SettingError("the labels are of one class only; there is nothing to learn.")
    return known

"""Estimators pass scikit-learn's own checks, and share one budget among clones."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from noiseproof.errors import BudgetError, SettingError, UnsupportedError
from noiseproof.methods.losses import coding
from noiseproof.sklearn import PrivateClassifier, PrivateRegressor, PrivateSynthesizer

PICKLES = {
    "check_estimators_pickle": "a pickled copy would forget what was spent, and loading a pickle runs its code; "
    "`release_.save` writes a bundle"
}
"""What privacy forbids; docs/sklearn.md says the same."""

READ = {"bounds": "data", "classes": "data", "fits": None}
"""The checks bring data of their own, without public bounds, and fit again and again."""

QUICK = {"steps": 1, "generator_steps": 2, "generated": 20, "width": 20}


@parametrize_with_checks(
    [PrivateClassifier(**READ, settings={"epochs": 2})],
    expected_failed_checks=lambda _: PICKLES,
)
@pytest.mark.filterwarnings("default")
def test_the_classifier_passes_scikit_learns_checks(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [PrivateRegressor(bounds="data", target_bounds="data", fits=None)], expected_failed_checks=lambda _: PICKLES
)
@pytest.mark.filterwarnings("default")
def test_the_regressor_passes_scikit_learns_checks(estimator, check):
    check(estimator)


@parametrize_with_checks([PrivateSynthesizer(**READ, settings=QUICK)], expected_failed_checks=lambda _: PICKLES)
@pytest.mark.filterwarnings("default")
def test_the_synthesizer_passes_scikit_learns_checks_where_it_may_learn_from_fewer_than_fifty_records(
    estimator, check, monkeypatch
):
    monkeypatch.setattr(coding, "FEWEST", 1)
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, np.array(["malignant", "benign"])[y], (0.0, X.max(axis=0) * 1.5)


def test_a_fit_with_public_bounds_and_classes_is_proven_and_predicts_the_users_labels(cancer):
    X, y, bounds = cancer
    model = PrivateClassifier(epsilon=3, bounds=bounds, classes=["benign", "malignant"]).fit(X, y)
    assert model.release_.card.verdict == "proven"
    assert model.release_.card.proven.epsilon <= 3
    assert set(model.predict(X)) <= {"benign", "malignant"}
    assert model.predict_proba(X).shape == (len(X), 2)


@pytest.mark.parametrize("read", [{"bounds": "data"}, {"classes": "data"}])
def test_what_is_read_off_the_records_proves_nothing(cancer, read):
    X, y, bounds = cancer
    terms = {"bounds": bounds, "classes": ["benign", "malignant"], **read}
    model = PrivateClassifier(**terms, settings={"epochs": 1}).fit(X, y)
    assert model.release_.card.verdict == "nothing proven"
    assert "read off the records" in " ".join(model.release_.card.notes)


def test_what_is_public_must_be_said(cancer):
    X, y, bounds = cancer
    with pytest.raises(SettingError, match="public bounds of the features"):
        PrivateClassifier(classes=["benign", "malignant"]).fit(X, y)
    with pytest.raises(SettingError, match="public list of classes"):
        PrivateClassifier(bounds=bounds).fit(X, y)
    with pytest.raises(SettingError, match="outside the 2 classes"):
        PrivateClassifier(bounds=bounds, classes=["benign", "other"]).fit(X, y)


def test_a_refused_fit_spends_nothing_and_a_second_one_is_refused(cancer):
    X, y, bounds = cancer
    model = PrivateClassifier(bounds=bounds, classes=["benign", "malignant"], settings={"epochs": 1})
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(X, np.nan), y)
    model.fit(X, y)
    with pytest.raises(BudgetError, match="is for 1 fit of this estimator and its clones"):
        model.fit(X, y)
    with pytest.raises(BudgetError):
        clone(model).fit(X, y)


def test_folds_share_one_budget_or_are_refused(cancer):
    X, y, bounds = cancer
    terms = {"bounds": bounds, "classes": ["benign", "malignant"], "settings": {"epochs": 1}}
    model = PrivateClassifier(epsilon=6, fits=3, **terms)
    pipeline = make_pipeline(Normalizer(), clone(model).set_params(bounds=(0, 1)))
    assert np.isfinite(cross_val_score(model, X, y, cv=2)).all()
    last = clone(model).fit(X, y)
    assert last.release_.card.proven.epsilon <= 2
    assert any("One of 3 fits" in note for note in last.release_.card.notes)
    with pytest.raises(BudgetError):
        pipeline.fit(X, y)
    with pytest.warns(FitFailedWarning, match="give fits=N"):
        assert np.isnan(cross_val_score(PrivateClassifier(**terms), X, y, cv=3)).sum() == 2


def test_a_search_counts_its_candidates_and_its_last_fit(cancer):
    X, y, bounds = cancer
    model = PrivateClassifier(epsilon=10, fits=5, bounds=bounds, classes=["benign", "malignant"])
    search = GridSearchCV(model, {"settings": [{"epochs": 1}, {"epochs": 2}]}, cv=2).fit(X, y)
    assert search.best_estimator_.release_.card.proven.epsilon <= 2
    with pytest.raises(ValueError, match="is spent"):
        search.fit(X, y)


def test_a_number_is_predicted_in_its_units_and_within_its_bounds(cancer):
    X, _, bounds = cancer
    terms = {"bounds": bounds, "target_bounds": (0, 6000)}
    model = PrivateRegressor(epsilon=3, **terms).fit(X, X[:, 3])
    found = model.predict(X)
    assert model.release_.card.verdict == "proven"
    assert ((found >= 0) & (found <= 6000)).all()
    assert np.corrcoef(found, X[:, 3])[0, 1] > 0.5
    with pytest.raises(SettingError, match="public bounds of the target"):
        PrivateRegressor(bounds=bounds).fit(X, X[:, 3])


def test_pickles_are_refused(cancer):
    with pytest.raises(UnsupportedError, match="would forget what was spent"):
        pickle.dumps(PrivateClassifier())


def test_synthetic_records_have_the_units_and_classes_of_the_private_ones(cancer):
    X, y, bounds = cancer
    maker = PrivateSynthesizer(epsilon=3, bounds=bounds, classes=["benign", "malignant"], rows=40, settings=QUICK)
    features, classes = maker.fit(X, y).sample(30)
    assert features.shape == (30, X.shape[1])
    assert (features >= 0).all()
    assert (features <= bounds[1]).all()
    assert set(classes) <= {"benign", "malignant"}
    assert maker.release_.card.verdict == "proven"
    with pytest.raises(SettingError, match="40 records were made"):
        maker.sample(41)

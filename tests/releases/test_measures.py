"""Measures of answers: what accuracy hides, which measure ranks, how large its error is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError
from noiseproof.releases.measures import Measures, combined, is_tie, measure, ranking, stated


def records(labels, classes=2, shares=()):
    public = Public(shape=(1,), classes=tuple("abcdefgh"[:classes]), class_shares=shares)
    return Dataset("test", torch.zeros(len(labels), 1), torch.as_tensor(labels, dtype=torch.int64), public)


def numbers(labels, bounds=(0.0, 10.0)):
    public = Public(shape=(1,), classes=(), task="regression", target_bounds=bounds)
    return Dataset("test", torch.zeros(len(labels), 1), torch.as_tensor(labels, dtype=torch.float32), public)


def drawn(count, classes=2, seed=0, signal=1.0, rare=0.2):
    """Labels, the last class rare, and probabilities that know something of them."""
    random = np.random.default_rng(seed)
    shares = np.full(classes, (1 - rare) / (classes - 1))
    shares[-1] = rare
    labels = random.choice(classes, count, p=shares)
    logits = random.normal(size=(count, classes)) + signal * np.eye(classes)[labels] + np.log(shares)
    return labels, np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_the_commonest_class_always_is_accurate_and_worth_nothing():
    labels = np.repeat([0, 1], [970, 30])
    found = measure(torch.tensor([[0.97, 0.03]]).expand(1000, -1), records(labels))
    assert found.accuracy == found.majority == pytest.approx(0.97)
    assert (found.balanced_accuracy, found.roc_auc) == (0.5, 0.5)
    assert found.average_precision == pytest.approx(0.03)
    assert (found.ranked_by, found.only_class, found.positive) == ("roc_auc", "a", "b")
    assert found.remark == "predicts a for every record"
    assert found.guesses


def test_five_points_above_a_constant_answer_is_still_a_guess():
    def measures(ranked_by, value, **more):
        return Measures(ranked_by=ranked_by, records=100, **{ranked_by: value, **more})

    assert measures("accuracy", 0.15, majority=0.11).guesses
    assert not measures("accuracy", 0.17, majority=0.11).guesses
    assert measures("roc_auc", 0.55, majority=0.9).guesses
    assert not measures("roc_auc", 0.56, majority=0.9).guesses
    assert measures("r2", -3.0).guesses
    assert not measures("r2", 0.06).guesses


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 5]))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_scikit_learn_finds_the_same(seed, classes):
    labels, scores = drawn(200, classes, seed)
    found = measure(torch.from_numpy(scores), records(labels, classes))
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, scores.argmax(1)))
    assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(labels, scores.argmax(1)))
    several = {"multi_class": "ovr", "average": "macro"} if classes > 2 else {}
    assert found.roc_auc == pytest.approx(
        metrics.roc_auc_score(labels, scores if classes > 2 else scores[:, 1], **several)
    )
    assert found.log_loss == pytest.approx(metrics.log_loss(labels, scores))
    squared = metrics.brier_score_loss(labels, scores if classes > 2 else scores[:, 1], labels=range(classes))
    assert found.brier == pytest.approx(squared)
    if classes == 2:
        rare = int(np.bincount(labels).argmin())
        assert found.average_precision == pytest.approx(
            metrics.average_precision_score(labels == rare, scores[:, rare])
        )


def test_calibration_is_the_distance_between_confidence_and_being_right():
    labels = np.repeat([0, 1], [70, 30])
    assert measure(torch.tensor([[0.7, 0.3]]).expand(100, -1), records(labels)).calibration_error < 1e-7
    sure = measure(torch.tensor([[1.0, 0.0]]).expand(100, -1), records(labels))
    assert sure.calibration_error == pytest.approx(0.3)
    assert np.isfinite(sure.log_loss)


@pytest.mark.parametrize("classes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_standard_error_of_an_auc_is_that_of_records_drawn_again(classes):
    """1,000 draws know a standard deviation to 2.3%, and the bound is five times that: a false alarm in 10^6."""
    drawings = [
        measure(torch.from_numpy(s), records(y, classes)) for y, s in (drawn(400, classes, i) for i in range(1000))
    ]
    spread = np.std([one.roc_auc for one in drawings])
    assert np.mean([one.standard_error for one in drawings]) == pytest.approx(spread, rel=0.12)


def test_the_standard_error_of_r2_is_that_of_records_drawn_again():
    """As above; the delta method itself is good to a few percent at this size."""
    random, values, errors = np.random.default_rng(0), [], []
    for _ in range(1000):
        truth = random.uniform(0.2, 0.8, 500)
        predicted = torch.from_numpy(truth + random.normal(0, 0.1, 500)).clamp(0, 1)
        found = measure(predicted[:, None], numbers(truth))
        values.append(found.r2)
        errors.append(found.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_numbers_are_measured_in_their_own_units():
    truth, predicted = np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.5, 0.7])
    found = measure(torch.from_numpy(predicted)[:, None], numbers(truth))
    assert found.r2 == pytest.approx(metrics.r2_score(truth, predicted))
    assert (found.mae, found.rmse) == (pytest.approx(1.0), pytest.approx(10 * np.sqrt(0.05 / 3)))
    assert found.accuracy is None
    assert found.coverage is None
    ends = torch.tensor([[0.2, 0.0, 0.3], [0.5, 0.6, 0.7], [0.7, 0.5, 0.9]], dtype=torch.float64)
    found = measure(ends, numbers(truth))
    assert found.coverage == pytest.approx(2 / 3, abs=1e-6)
    assert found.interval_width == pytest.approx(10 * (0.3 + 0.1 + 0.4) / 3)


def test_predictions_beyond_the_bounds_count_as_the_bounds():
    assert measure(torch.tensor([[-5.0], [7.0]]), numbers([0.0, 1.0])).r2 == 1.0


def test_the_measure_that_ranks_follows_from_what_is_public():
    assert ranking(records([0, 1]).public) == "roc_auc"
    assert ranking(records([0, 1], shares=(0.5, 0.5)).public) == "accuracy"
    assert ranking(records([0, 1], shares=(0.97, 0.03)).public) == "roc_auc"
    assert ranking(numbers([0.5]).public) == "r2"


def test_what_the_labels_do_not_define_is_left_out():
    one = measure(torch.tensor([[0.4, 0.6]]).expand(5, -1), records([1] * 5))
    assert (one.ranked_by, one.roc_auc, one.average_precision) == ("accuracy", None, None)
    assert one.only_class is None
    flat = measure(torch.full((4, 1), 0.5), numbers([0.5] * 4))
    assert flat.r2 == 0.0
    with pytest.raises(DataError, match="no test record"):
        measure(torch.zeros(0, 2), records([]))


def test_answers_that_are_no_probabilities_are_scaled_and_never_nan():
    wild = torch.tensor([[-1.0, 3.0], [0.0, 0.0], [5.0, 5.0]])
    found = measure(wild, records([1, 0, 1]))
    assert all(np.isfinite(value) for value in found.shown.values())


def made(value, error, ranked_by="roc_auc"):
    return Measures(ranked_by=ranked_by, standard_error=error, records=100, **{ranked_by: value})


def test_values_within_the_standard_error_of_their_difference_are_a_tie():
    assert is_tie(made(0.80, 0.03), made(0.84, 0.03))
    assert not is_tie(made(0.80, 0.03), made(0.85, 0.03))
    assert not is_tie(made(0.80, None), made(0.80, 0.03))
    assert not is_tie(made(0.80, 0.1), made(0.80, 0.1, "accuracy"))


def test_several_fits_have_their_mean_their_spread_and_their_ends():
    found = combined([made(0.95, 0.003), made(0.96, 0.003), made(0.88, 0.003)])
    assert (found.value, found.worst, found.best, found.fits) == (pytest.approx(0.93), 0.88, 0.96, 3)
    assert found.spread == pytest.approx(np.std([0.95, 0.96, 0.88], ddof=1))
    assert found.error == pytest.approx(np.hypot(0.003, found.spread))
    one = made(0.95, 0.003)
    assert combined([one]) == one
    assert one.error == 0.003


def test_methods_whose_noise_moves_them_further_than_they_differ_are_a_tie():
    steady, shaky = made(0.95, 0.003), combined([made(0.96, 0.003), made(0.90, 0.003)])
    assert not is_tie(steady, made(0.93, 0.003))
    assert is_tie(steady, shaky)


def test_measures_are_written_as_readers_do():
    assert [stated("accuracy", 0.9719), stated("roc_auc", 0.8123), stated("r2", None)] == ["97.2%", "0.812", "—"]

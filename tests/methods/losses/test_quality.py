"""Measures of quality, by hand where that is possible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats.contingency import association

from noiseproof.data.tables import decode
from noiseproof.errors import DataError
from noiseproof.methods.losses.quality import correlations, pmf, pmf_error, quality, side_by_side, spread, worst_pairs


def test_equation_22_by_hand():
    generated = torch.tensor([0.5, 0.3, 0.2])
    real = torch.tensor([0.4, 0.4, 0.2])
    assert pmf_error(generated, real) == pytest.approx(0.1 * 1 + 0.1 * 2)


def test_the_real_records_themselves_have_no_error(table, test_table):
    found = quality(table, table, test_table)
    assert set(found.pmf_errors) == {"age", "city", "money", "same", "income"}
    assert max(found.pmf_errors.values()) == 0
    assert found.correlation_error == 0
    assert found.synthetic_to_real == found.real_to_real > found.majority
    assert found.warnings == ()


def test_shares_are_the_columns_frequencies(table):
    frame = decode(table.public, table.features, table.labels)
    assert float(pmf(table)["city"][0]) == pytest.approx(float((frame["city"] == "a").mean()))
    assert float(pmf(table)["income"][1]) == pytest.approx(float((frame["income"] == "high").mean()))


def test_columns_stand_side_by_side_with_their_real_and_synthetic_shares(table):
    half = table.take((table.features[:, 0] < 0.5).nonzero().squeeze(1))
    shares = side_by_side(half, table)
    city = {value: (real, made) for value, real, made in shares["city"]}
    frame = decode(table.public, table.features, table.labels)
    assert city["a"][0] == pytest.approx(float((frame["city"] == "a").mean()))
    assert any(value == "missing" for value, _, _ in shares["money"])
    assert sum(real for _, real, _ in shares["age"]) == pytest.approx(1)
    found = quality(half, table, table)
    assert found.variations["age"] > 0.25 > 0.1 > found.variations["city"]
    assert all(abs(real - made) < 0.2 for real, made in worst_pairs(half, table).values())


def test_correlations_are_cramers_v(table):
    frame = decode(table.public, table.features, table.labels)
    counts = np.array([[((frame.city == c) & (frame.income == i)).sum() for i in ("low", "high")] for c in ("a", "b")])
    assert float(correlations(table)[1, 4]) == pytest.approx(association(counts, "cramer"), rel=1e-9)


def test_records_that_are_all_alike_are_called_a_collapse(pictures):
    alike = pictures.take(torch.arange(2).repeat(100))
    found = quality(alike, pictures, pictures)
    assert max(found.spread.values()) < 0.3
    assert "mode collapse" in found.warnings[0]
    assert spread(pictures, pictures) == {"upper": 1.0, "lower": 1.0}


def test_samples_that_show_another_class_are_counted_by_class(pictures):
    from dataclasses import replace

    wrong = replace(pictures, labels=torch.where(pictures.labels == 0, 1, 1))
    found = quality(wrong, pictures, pictures)
    assert found.by_class == {"lower": pytest.approx(0.5, abs=0.02)}
    with pytest.raises(DataError):
        quality(pictures.take(torch.arange(0)), pictures, pictures)

"""Tables 8-11 follow from the 96 cells to the printed digits, and the tests are the textbook's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from papers.lin import published
from papers.lin.statistics import FACTORS, kruskal_wallis, mann_whitney, normality, significance

MEASURES = ("accuracy", "convergence")
SLIPS = {("11", "clip", "p"), *(("11", "sequence", column) for column in ("U", "W", "Z", "p"))}
"""The printed values of Tables 10 and 11 that do not follow from the paper's own cells."""

samples = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=12).map(np.array)


@pytest.mark.parametrize("measure", MEASURES)
def test_shapiro_wilk_comes_out_as_printed_but_for_one_slip(measure):
    printed = published.normality().query("measure == @measure").reset_index()
    computed = normality(published.cells(), measure)
    assert list(printed["level"]) == [str(level) for levels in FACTORS.values() for level in levels]
    for (_, theirs), (_, ours) in zip(printed.iterrows(), computed.iterrows(), strict=True):
        assert ours["df"] == int(theirs["df"])
        assert published.agrees(ours["p"], theirs["p"])
        slip = (theirs["table"], theirs["level"]) == ("9", "lstm")
        assert published.agrees(ours["statistic"], theirs["statistic"]) is not slip


@pytest.mark.parametrize("measure", MEASURES)
def test_mann_whitney_comes_out_as_printed_but_for_the_slips(measure):
    computed = significance(published.cells(), measure).set_index("factor")
    for _, theirs in published.significance().query("measure == @measure").iterrows():
        for column in "UWZp":
            slip = (theirs["table"], theirs["factor"], column) in SLIPS
            assert published.agrees(computed.loc[theirs["factor"], column], theirs[column]) is not slip


def test_the_true_value_of_table_9s_lstm_is_829():
    frame = normality(published.cells(), "convergence").set_index(["factor", "level"])
    assert round(frame.loc[("model", "lstm"), "statistic"], 3) == 0.829


def test_the_sequence_does_matter_for_convergence():
    row = significance(published.cells(), "convergence").set_index("factor").loc["sequence"]
    assert (row["U"], row["W"]) == (1568.5, 2744.5)
    assert 48 * 48 - row["U"] == 735.5
    assert round(row["Z"], 3) == 3.052
    assert round(row["p"], 4) == 0.0023


def test_accuracy_differs_by_sequence_as_the_paper_says():
    row = significance(published.cells(), "accuracy").set_index("factor").loc["sequence"]
    assert row["U"] == 678
    assert round(row["p"], 4) == 0.0005


@pytest.mark.parametrize("measure", MEASURES)
def test_kruskal_wallis_leads_to_the_same_conclusions_and_finds_the_data_set(measure):
    frame = significance(published.cells(), measure).set_index("factor")
    assert np.allclose(frame["H"].iloc[1:], frame["Z"].iloc[1:] ** 2)
    assert np.allclose(frame["H p"].iloc[1:], frame["p"].iloc[1:])
    assert frame.loc["data", "H"] == pytest.approx(63.42, abs=0.005)
    assert frame.loc["data", "H p"] < 1e-13


@settings(deadline=None, derandomize=True, max_examples=80)
@given(samples, samples)
def test_mann_whitney_is_scipys_without_continuity_correction(first, second):
    u, w, z, p = mann_whitney(first, second)
    if len(set(first) | set(second)) == 1:
        assert (z, p) == (0, 1)
        return
    oracle = stats.mannwhitneyu(second, first, use_continuity=False, method="asymptotic")
    assert u == oracle.statistic
    assert p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert w == stats.rankdata(np.concatenate([first, second]))[len(first) :].sum()
    h, h_p = kruskal_wallis([first, second])
    assert h == pytest.approx(z**2, rel=1e-9, abs=1e-12)
    assert h_p == pytest.approx(p, rel=1e-9)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(samples, samples)
def test_exchanging_the_levels_turns_z_and_keeps_p(first, second):
    u, _, z, p = mann_whitney(first, second)
    other_u, _, other_z, other_p = mann_whitney(second, first)
    assert u + other_u == len(first) * len(second)
    assert other_z == pytest.approx(-z, abs=1e-12)
    assert other_p == pytest.approx(p)


def test_a_training_that_diverged_leaves_its_levels_untested_for_normality_but_still_ranks():
    cells = published.cells()
    cells.loc[cells["sequence"].eq("CA") & cells["sigma"].eq(0.5), "convergence"] = np.inf
    normal = normality(cells, "convergence").set_index(["factor", "level"])["statistic"]
    assert np.isnan(normal["sequence", "CA"])
    assert np.isfinite(normal["sequence", "AC"])
    assert significance(cells, "convergence").set_index("factor").loc["sigma", "Z"] > 0

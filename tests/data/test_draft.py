"""A schema read off the records: what it reads, and what has no bounds worth reading."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from noiseproof.data.draft import draft
from noiseproof.errors import DataError, SettingError

ROWS = 240


def _frame(**columns) -> pd.DataFrame:
    return pd.DataFrame({**columns, "label": ["yes", "no"] * (ROWS // 2)})


def _column(values):
    return draft(_frame(x=values), "label", name="table").columns["x"]


def test_bounds_and_types_of_numbers_are_read():
    whole, fraction = _column(np.arange(ROWS)), _column(np.linspace(-1, 1, ROWS))
    assert (whole.low, whole.high, whole.integer, whole.missing) == (0, ROWS - 1, True, False)
    assert (fraction.low, fraction.high, fraction.integer) == (-1, 1, False)


def test_whole_numbers_with_gaps_are_whole_numbers_that_may_be_missing():
    column = _column([np.nan, *range(1, ROWS)])
    assert (column.low, column.high, column.integer, column.missing) == (1, ROWS - 1, True, True)


def test_a_constant_column_has_bounds_that_can_be_scaled_by():
    column = _column([3] * ROWS)
    assert column.low == 3 < column.high


@pytest.mark.parametrize(
    ("values", "categories", "missing"),
    [
        (["b", "a"] * (ROWS // 2), ("a", "b"), False),
        (["b", None] * (ROWS // 2), ("b",), True),
        (["b", " "] * (ROWS // 2), ("b",), True),
        ([True, False] * (ROWS // 2), ("False", "True"), False),
        (pd.Categorical(["b", "a"] * (ROWS // 2)), ("a", "b"), False),
        (["Mon", "May"] * (ROWS // 2), ("May", "Mon"), False),
    ],
)
def test_categories_are_read_in_order(values, categories, missing):
    column = _column(values)
    assert column.categories == categories
    assert column.missing is missing


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (["yes", "no"], ("no", "yes")),
        ([10, 9], (9, 10)),
        ([1.0, 0.0], (0, 1)),
        ([True, False], ("False", "True")),
    ],
)
def test_classes_are_read_in_order_and_whole_numbers_stay_so(label, classes):
    frame = pd.DataFrame({"x": range(ROWS), "label": label * (ROWS // 2)})
    assert draft(frame, "label", name="table").target.classes == classes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.date_range("2020-01-01", periods=ROWS), "'x' holds dates"),
        ([datetime.date(2020, 1, 1 + day % 28) for day in range(ROWS)], "'x' holds dates"),
        (["2020-01-01", "2021-12-31"] * (ROWS // 2), "'x' holds dates"),
        (["31/12/2021", "1/2/20 10:30"] * (ROWS // 2), "'x' holds dates"),
        (pd.to_timedelta(np.arange(ROWS), unit="s"), "'x' holds dates"),
        ([f"secret {row}" for row in range(ROWS)], "'x' has more than 100 different texts"),
        (["secret", *map(str, range(1, ROWS))], "'x' holds numbers but text in 1 rows"),
        ([np.inf, *range(1, ROWS)], "'x' holds infinite numbers"),
        ([np.nan] * ROWS, "'x' is empty"),
        (["  "] * ROWS, "'x' is empty"),
        ([["secret"]] * ROWS, "'x' holds lists"),
    ],
)
def test_a_column_that_cannot_be_coded_is_refused_by_name_without_a_cell(values, message):
    with pytest.raises(DataError, match=message) as refused:
        _column(values)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.5, 1.5], "holds fractions"),
        ([1, 1], "one class only"),
        (["secret", None], f"missing in {ROWS // 2} rows"),
    ],
)
def test_a_target_that_is_no_class_is_refused_without_a_cell(label, message):
    frame = pd.DataFrame({"x": range(ROWS), "label": label * (ROWS // 2)})
    with pytest.raises(DataError, match=message) as refused:
        draft(frame, "label", name="table")
    assert "secret" not in str(refused.value)


def test_a_target_with_a_class_a_record_is_refused():
    frame = pd.DataFrame({"x": range(1500), "label": range(1500)})
    with pytest.raises(DataError, match="more than 1000 classes"):
        draft(frame, "label", name="table")


def test_a_target_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(SettingError, match="no column 'nothing' to predict; its columns are x, label"):
        draft(_frame(x=range(ROWS)), "nothing", name="table")


def test_a_table_of_the_target_alone_is_refused():
    with pytest.raises(DataError, match="no column besides the target"):
        draft(_frame(), "label", name="table")

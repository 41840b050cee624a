"""The cells of a table's columns as texts, numbers or dates, and which of them are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.data.dataset import Column


MISSING_VALUES = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Texts that stand for a missing value, unless a schema lists them as a category."""


def check_rows(frame: pd.DataFrame, name: object) -> None:
    """Refuse a table without rows."""
    if frame.empty:
        raise DataError(f"{name} has no records, only a header; give a table with rows.")


def texts(values: Any) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Values (distinct ones, as a rule) as texts: whole numbers without a point, other texts without outer blanks."""
    import pandas as pd

    index = pd.Index(values)
    if pd.api.types.is_float_dtype(index.dtype):
        numbers = index.to_numpy(np.float64)
        whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2.0**63)
        shown = np.where(whole, numbers, 0).astype(np.int64).astype(str).astype(object)
        return np.where(whole, shown, numbers.astype(str).astype(object))
    if index.dtype == object:
        # One by one, since a column of numbers with one text in it must read as the same column without that text.
        index = pd.Index(
            [texts([one])[0] if isinstance(one, float | np.floating) else one for one in index], dtype=object
        )
    words: np.ndarray[Any, np.dtype[np.object_]] = index.astype(str).str.strip().to_numpy(object)
    return words


def numbers(series: pd.Series[Any], name: str, marks: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column's numbers, NaN where they are missing."""
    import pandas as pd

    kind = series.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
        return series.to_numpy(np.float64, na_value=np.nan)
    words, missing = as_words(series, marks)
    values = np.full(len(series), np.nan)
    if not pd.api.types.is_datetime64_any_dtype(kind):
        values = pd.to_numeric(words, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = int((np.isnan(values) & ~missing).sum())
    if wrong:
        raise DataError(
            f"column {name!r} is to hold numbers but holds text in {wrong} rows; correct them, or give its categories "
            "in a schema."
        )
    return values


def dates(series: pd.Series[Any], column: Column, marks: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column's dates as days since 1970-01-01 (times of day as parts of a day), NaN where they are missing."""
    import pandas as pd

    words, missing = as_words(series, marks)
    dated = pd.api.types.is_datetime64_any_dtype(series.dtype)
    times = pd.to_datetime(series if dated else words, format=column.date, errors="coerce", utc=True)
    if not dated and column.date != "ISO8601":
        # Spreadsheets give real dates as ISO 8601, whatever way of writing they show.
        times = times.fillna(pd.to_datetime(words, format="ISO8601", errors="coerce", utc=True))
    times = times.dt.tz_localize(None)
    wrong = int((times.isna().to_numpy() & ~missing).sum())
    if wrong:
        raise DataError(
            f"column {column.name!r} is to hold dates written as {column.date} but does not in {wrong} rows; correct "
            "them, or the column's `date` in the schema."
        )
    # In microseconds: pandas' nanoseconds do not reach beyond the years 1677 to 2262.
    moments = times.to_numpy().astype("datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 86_400e6)


def as_words(
    series: pd.Series[Any], marks: Sequence[str]
) -> tuple[pd.Series[Any], np.ndarray[Any, np.dtype[np.bool_]]]:
    """The cells as texts (None where missing), and which are missing."""
    words = series.astype(str).str.strip()
    missing = series.isna().to_numpy() | words.isin(list(marks)).to_numpy()
    return words.where(~missing), missing
